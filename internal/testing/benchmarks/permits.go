package benchmarks

import (
	"fmt"
	"strconv"
	"testing"
	"time"

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
			p.fill()
			for p.try() { // what has returned meanwhile
			}
			granted := 0
			b.ResetTimer()
			micros := m.blocks(func() {
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

// permits is a semaphore whose permits return by the clock, with its scripts run by hand.
type permits struct {
	*bench
	set    *lua.Set
	keys   []string
	limit  int
	per    time.Duration
	limits string
	next   int
}

func (b *bench) permits(set *lua.Set, limit int, per time.Duration) *permits {
	b.Helper()
	for _, s := range set.Scripts() {
		b.must(b.rdb.ScriptLoad(ctx, s.Text).Err())
	}
	own := "{lock:x}:" + set.Kind + ":"
	return &permits{
		bench: b, set: set, limit: limit, per: per, limits: fmt.Sprintf("0:%d:%d", limit, per.Milliseconds()),
		keys: []string{own + "holders", own + "meta", own + "queue", own + "tombstones"},
	}
}

func (p *permits) token() string {
	p.next++
	return "3qZaNx7zYpGXgfi8dCj6.5:" + strconv.FormatInt(int64(p.next), 36) + ":30000.6000c1"
}

// fill takes all permits, evenly over the last window.
func (p *permits) fill() {
	p.Helper()
	p.try() // writes what else there is
	now := time.Now()
	for from := 1; from < p.limit; from += 1000 {
		_, err := p.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := from; i < min(from+1000, p.limit); i++ {
				at := now.Add(-p.per + p.per*time.Duration(i)/time.Duration(p.limit)).UnixMicro()
				token := p.token()
				pipe.Do(ctx, "zadd", p.keys[0], -at, "@"+token, at, "#"+token)
			}
			return nil
		})
		p.must(err)
	}
	p.must(p.rdb.Do(ctx, "zadd", p.keys[0], -p.limit, "spent").Err())
	p.must(p.rdb.PExpire(ctx, p.keys[0], time.Hour).Err())
}

func (p *permits) try() bool {
	args := []any{p.token(), 6000, p.limits, 3600000}
	reply := must.Get(p.rdb.EvalSha(ctx, p.set.Acquire.SHA, p.keys, args...).Int64Slice())(p)
	return reply[0] == lua.Granted
}

func (p *permits) bytes() float64 {
	return float64(must.Get(p.rdb.MemoryUsage(ctx, p.keys[0], 0).Result())(p))
}
