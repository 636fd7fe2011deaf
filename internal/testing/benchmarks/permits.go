package benchmarks

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// perDecision is the pace at which permits return in Per: about half of the tries that a client can send one after the
// other are granted then.
const perDecision = 250 * time.Microsecond

// Per is tries at a limit of so many permits in a window, with the window full and permits returning all the time:
// server-us/op is what a decision costs the server, granted the share that was granted.
func Per(b *testing.B, set *lua.Set, limits ...int) {
	for _, limit := range limits {
		b.Run(fmt.Sprintf("limit=%d", limit), func(b *testing.B) {
			m := start(b, nil)
			p := m.permits(set, limit, time.Duration(limit)*perDecision)
			p.fill(p.per)
			for p.try() { // what has returned meanwhile
			}
			granted := 0
			b.ResetTimer()
			micros := m.blocks(nil, func(int) {
				if p.try() {
					granted++
				}
			})
			b.StopTimer()
			b.ReportMetric(micros, "server-us/op")
			b.ReportMetric(float64(granted)/float64(b.N), "granted/op")
			b.ReportMetric(p.bytes()/float64(limit), "B/permit")
		})
	}
}

// Sweep is tries at a semaphore of which all permits have returned while nobody looked, until all of them are swept:
// max-script-us is the longest that a script has taken, p99-script-us the 99th percentile. On a machine with other work
// the longest is that of a script in the midst of which the server was put aside.
func Sweep(b *testing.B, set *lua.Set, permits int) {
	m := start(b, nil)
	m.must(m.rdb.ConfigSet(ctx, "slowlog-log-slower-than", "0").Err())
	m.must(m.rdb.ConfigSet(ctx, "slowlog-max-len", "1000000").Err())
	var longest, p99, half []float64
	scripts := 0
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		m.must(m.rdb.FlushAll(ctx).Err())
		p := m.permits(set, permits, time.Second)
		p.fill(0)
		m.must(m.rdb.SlowLogReset(ctx).Err())
		b.StartTimer()
		// Those that it takes itself return, too, after a second; so a few are always over.
		for m.rdb.ZCount(ctx, p.keys[0], p.taken(time.Now().Add(-p.per)), "-10000000000000").Val() > 200 {
			for range 100 {
				p.try()
				scripts++
			}
		}
		log := must.Get(m.rdb.SlowLogGet(ctx, -1).Result())(m)
		var took []float64
		for _, entry := range log {
			if entry.Args[0] == "evalsha" {
				took = append(took, float64(entry.Duration)/float64(time.Microsecond))
			}
		}
		longest = append(longest, Percentile(took, 100))
		p99 = append(p99, Percentile(took, 99))
		half = append(half, Median(took))
	}
	b.StopTimer()
	b.ReportMetric(Median(longest), "max-script-us")
	b.ReportMetric(Median(p99), "p99-script-us")
	b.ReportMetric(Median(half), "median-script-us")
	b.ReportMetric(float64(scripts)/float64(b.N), "scripts/op")
}

// permits is a semaphore whose permits return by the clock, with its scripts run by hand.
type permits struct {
	*bench
	set    *lua.Set
	keys   []string
	token  func(i int) string
	limit  int
	per    time.Duration
	limits string
	next   int
}

func (b *bench) permits(set *lua.Set, limit int, per time.Duration) *permits {
	b.Helper()
	keys, token := scriptBench(b, set)
	return &permits{
		bench: b, set: set, keys: keys, limit: limit, per: per,
		token:  func(i int) string { return token(i) + "c1" },
		limits: fmt.Sprintf("0:%d:%d", limit, per.Milliseconds()),
	}
}

// taken is the score of permits that were taken then.
func (p *permits) taken(at time.Time) string {
	return fmt.Sprint(-at.UnixMicro())
}

// fill takes all permits: evenly over the last span, or, if that is 0, so that all have just returned.
func (p *permits) fill(span time.Duration) {
	p.Helper()
	p.try() // writes what else there is
	now := time.Now()
	for from := 1; from < p.limit; from += 1000 {
		_, err := p.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := from; i < min(from+1000, p.limit); i++ {
				at := now.Add(-span + span*time.Duration(i)/time.Duration(p.limit))
				if span == 0 {
					at = now.Add(-p.per - 10*time.Millisecond)
				}
				token := p.token(p.next)
				p.next++
				pipe.Do(ctx, "zadd", p.keys[0], p.taken(at), "@"+token, at.UnixMicro(), "#"+token)
			}
			return nil
		})
		p.must(err)
	}
	p.must(p.rdb.Do(ctx, "zadd", p.keys[0], -p.limit, "spent").Err())
	p.must(p.rdb.PExpire(ctx, p.keys[0], time.Hour).Err())
}

// try asks for a permit.
func (p *permits) try() bool {
	args := protocol.AcquireArgs(nil, p.token(p.next), 6000, p.limits, benchSettings, nil, nil)
	p.next++
	reply := must.Get(p.rdb.EvalSha(ctx, p.set.Acquire.SHA, p.keys, args...).Int64Slice())(p)
	return reply[0] == lua.Granted
}

// bytes is what the permits take in the server's memory.
func (p *permits) bytes() float64 {
	size := must.Get(p.rdb.MemoryUsage(ctx, p.keys[0], 0).Result())(p)
	return float64(size)
}

// Flow is 640 goroutines in 10 keepers that want one permit after the other, far more than there are: x-limit is how many
// of the permits that the limit allows were given out, cmds/op and msgs/op what each took.
func Flow(b *testing.B, limited func(k *lockkeeper.Keeper, limit int, per time.Duration) (func(ctx context.Context) error, error)) {
	const keepers, each = 10, 64
	for _, c := range []struct {
		limit int
		per   time.Duration
	}{{10, 100 * time.Millisecond}, {100, 100 * time.Millisecond}, {1000, time.Second}} {
		b.Run(fmt.Sprintf("limit=%d/per=%v", c.limit, c.per), func(b *testing.B) {
			m := start(b, nil)
			var granted atomic.Int64
			inner, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			for range keepers {
				k, _ := m.keeper()
				wait := must.Get(limited(k, c.limit, c.per))(m)
				for range each {
					wg.Go(func() {
						for {
							if wait(inner) != nil {
								return
							}
							granted.Add(1)
						}
					})
				}
			}
			for granted.Load() < int64(2*c.limit) { // until all wait
				time.Sleep(time.Millisecond)
			}
			m.resetStats()
			before, began := granted.Load(), time.Now()
			b.ResetTimer()
			for granted.Load()-before < int64(b.N) {
				time.Sleep(time.Millisecond)
			}
			n, took := granted.Load()-before, time.Since(began)
			commands, stats := m.commands(), m.stats()
			b.StopTimer()
			cancel()
			wg.Wait()
			b.ReportMetric(float64(n)/(float64(c.limit)*float64(took)/float64(c.per)), "x-limit")
			b.ReportMetric(float64(commands)/float64(n), "cmds/op")
			b.ReportMetric(float64(stats["publish"].Calls)/float64(n), "msgs/op")
			b.ReportMetric(stats["evalsha"].Micros/float64(n), "server-us/op")
		})
	}
}
