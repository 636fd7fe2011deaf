// Package benchmarks is the benchmarks that every primitive has under the same names and with the same metrics. Each
// prints ratios that were taken in one run, with the two sides in turns, because the machines are shared and noisy.
//
//	x-ping      the median hand-off, from the call of Release to the next holder running, over the median PING
//	p99-x-ping  the 99th percentile of the hand-offs over the median PING
//	cmds/op     client commands per acquisition, as the server counts them
//
// and for one that serves in order
//
//	idle-cmds/s     client commands while a queue does not move; x-heartbeats: relative to one heartbeat per keeper
//
// Package bench measures fairness, long queues, many leases, and readers beside a writer, of other libraries as well.
package benchmarks

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// Locker is the lock under test.
type Locker interface {
	Lock(ctx context.Context) (*lockkeeper.Lease, error)
}

// Func is a Locker that is one function.
type Func func(ctx context.Context) (*lockkeeper.Lease, error)

// Lock is part of Locker.
func (f Func) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return f(ctx) }

// New creates a Locker.
type New func(k *lockkeeper.Keeper, name string) (Locker, error)

var ctx = context.Background()

// Once reports whether -benchtime 1x is given, as by make bench-once: benchmarks run only to show that they work, and may
// leave out what makes figures exact.
func Once() bool { return flag.Lookup("test.benchtime").Value.String() == "1x" }

// bench is a benchmark with a server of its own.
type bench struct {
	*testing.B
	s   *redistest.Server
	rdb redistest.Client // for inspection, not for locking
	new New
}

func start(b *testing.B, n New) *bench {
	b.Helper()
	s := redistest.Start(b)
	return &bench{b, s, s.Client(), n}
}

// keeper returns a keeper with connections of its own.
func (b *bench) keeper(o lockkeeper.Options) *lockkeeper.Keeper {
	b.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	return keepers.New(b, b.s.Client(), &o)
}

func (b *bench) lock(k *lockkeeper.Keeper, name string) Locker {
	b.Helper()
	return must.Get(b.new(k, name))(b)
}

func (b *bench) must(err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

func (b *bench) once(l Locker) {
	lease, err := l.Lock(ctx)
	if err == nil {
		err = lease.Release(ctx)
	}
	must.Report(b, err)
}

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// Bare is the minimum cost of a lock: a bare SET NX PX to acquire it, and a bare compare-and-delete script to
// release it. It loads the script.
func Bare(ctx context.Context, c redis.Cmdable) (take, give func(name string) error, err error) {
	const token = "00000000-0000-4000-8000-000000000000:1"
	sha, err := c.ScriptLoad(ctx, compareAndDelete).Result()
	if err != nil {
		return nil, nil, err
	}
	take = func(name string) error {
		return c.SetArgs(ctx, name, token, redis.SetArgs{Mode: "NX", TTL: 30 * time.Second}).Err()
	}
	give = func(name string) error { return c.EvalSha(ctx, sha, []string{name}, token).Err() }
	return take, give, nil
}

// locks returns the lock x in so many keepers, and a channel that is told of each waiter when it is in the queue.
func (b *bench) locks(keepers, waiters int) (locks []Locker, inLine chan struct{}) {
	b.Helper()
	inLine = make(chan struct{}, waiters)
	var seen sync.Map
	for range keepers {
		k := b.keeper(lockkeeper.Options{Hooks: lockkeeper.Hooks{Queued: func(e lockkeeper.Event) {
			if _, again := seen.LoadOrStore(e.Token, nil); !again {
				inLine <- struct{}{}
			}
		}}})
		locks = append(locks, b.lock(k, "x"))
	}
	return locks, inLine
}

// blocks runs operations in blocks, and returns the median of the server's time for scripts per operation of each: server time is noisy on
// a shared machine.
func (b *bench) blocks(op func()) float64 {
	b.Helper()
	var list []float64
	for left := b.N; left > 0; {
		ops := min(left, 500)
		left -= ops
		b.resetStats()
		for range ops {
			op()
		}
		list = append(list, b.stats()["evalsha"].Micros/float64(ops))
	}
	return Median(list)
}

// Acknowledged is one goroutine that locks and releases in a keeper that waits until a replica has each grant, and in turns in one that
// does not; x-plain is the time of the one over that of the other.
func Acknowledged(b *testing.B, n New) {
	m := start(b, n)
	redistest.StartReplica(b, m.s)
	k := m.keeper(lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1}})
	sides := []Locker{m.lock(k, "x"), m.lock(m.keeper(lockkeeper.Options{}), "y")}
	for range 200 {
		m.once(sides[0])
		m.once(sides[1])
	}
	var times [2][]float64 // of each side, for an operation of a block
	b.ResetTimer()
	for i, left := 0, b.N; left > 0; i++ {
		ops := min(100, left)
		left -= ops
		for _, side := range []int{i % 2, 1 - i%2} {
			began := time.Now()
			for range ops {
				m.once(sides[side])
			}
			times[side] = append(times[side], float64(time.Since(began))/float64(ops))
		}
	}
	b.StopTimer()
	b.ReportMetric(Median(times[0])/Median(times[1]), "x-plain")
	b.ReportMetric(Median(times[0]), "ns/op")
}

// Handoff runs waiters, in keepers of their own up to 100, behind one holder at a time.
func Handoff(b *testing.B, n New, waiters ...int) {
	for _, w := range waiters {
		b.Run(fmt.Sprintf("waiters=%d", w), func(b *testing.B) { handoff(b, n, w) })
	}
}

func handoff(b *testing.B, n New, waiters int) {
	m := start(b, n)
	// The holder waits until all others are in the queue, sends a PING, and releases: nothing else runs then, and no
	// process has slept, so both sides find the machine in the same state.
	locks, inLine := m.locks(min(waiters+1, 100), waiters+1)
	warm := int64(200)
	total := warm + int64(b.N)
	var released, turn int64 // when Release was called, how many turns there were: the holder's alone
	var samples, pings []float64
	began := time.Now()
	done := make(chan struct{})
	inner, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	behind := 0 // how many wait, as far as the holder knows
	for i := range waiters + 1 {
		wg.Go(func() {
			l := locks[i%len(locks)]
			for {
				lease, err := l.Lock(inner)
				now := time.Since(began).Nanoseconds()
				if err != nil {
					return
				}
				behind = max(behind-1, 0)
				turn++
				if turn > warm && turn <= total {
					samples = append(samples, float64(now-released))
				}
				if turn == warm {
					b.ResetTimer()
				}
				for behind < waiters {
					select {
					case <-inLine:
						behind++
					case <-inner.Done():
						behind = waiters
					}
				}
				start := time.Now()
				must.Report(b, m.rdb.Ping(ctx).Err())
				if turn > warm && turn <= total {
					pings = append(pings, float64(time.Since(start).Nanoseconds()))
				}
				if turn == total {
					close(done)
				}
				released = time.Since(began).Nanoseconds()
				must.Report(b, lease.Release(ctx))
			}
		})
	}
	<-done
	b.StopTimer()
	cancel()
	wg.Wait()
	b.ReportMetric(Median(samples)/Median(pings), "x-ping")
	b.ReportMetric(Percentile(samples, 99)/Median(pings), "p99-x-ping")
	b.ReportMetric(Median(samples), "ns/handoff")
	b.ReportMetric(Median(pings), "ns/ping")
}

// Contended is so many keepers that want one name, each again and again, with a hold of 1 ms.
func Contended(b *testing.B, n New, keepers ...int) {
	for _, w := range keepers {
		b.Run(fmt.Sprintf("keepers=%d", w), func(b *testing.B) {
			m := start(b, n)
			var locks []Locker
			for range w {
				locks = append(locks, m.lock(m.keeper(lockkeeper.Options{}), "x"))
			}
			var left atomic.Int64
			round := func(ops int) {
				left.Store(int64(ops))
				var wg sync.WaitGroup
				for _, l := range locks {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							lease, err := l.Lock(ctx)
							if err != nil {
								b.Error(err)
								return
							}
							time.Sleep(time.Millisecond)
							must.Report(b, lease.Release(ctx))
						}
					})
				}
				wg.Wait()
			}
			round(2 * w)
			m.resetStats()
			b.ResetTimer()
			round(b.N)
			b.StopTimer()
			b.ReportMetric(float64(m.commands())/float64(b.N), "cmds/op")
		})
	}
}

// Idle is so many waiters behind a holder that keeps its lock.
func Idle(b *testing.B, n New, waiters ...int) {
	for _, w := range waiters {
		b.Run(fmt.Sprintf("waiters=%d", w), func(b *testing.B) { idle(b, n, w) })
	}
}

func idle(b *testing.B, n New, waiters int) {
	const keepers = 10
	m := start(b, n)
	lease := must.Get(m.lock(m.keeper(lockkeeper.Options{}), "x").Lock(ctx))(m)
	var wg sync.WaitGroup
	b.Cleanup(wg.Wait) // after all keepers have been closed
	locks, inLine := m.locks(keepers, waiters)
	for i := range waiters {
		wg.Go(func() { _, _ = locks[i%keepers].Lock(ctx) })
	}
	for range waiters {
		<-inLine
	}
	span := 3 * protocol.DefaultHeartbeatInterval
	if Once() {
		span = protocol.DefaultHeartbeatInterval
	}
	m.resetStats()
	b.ResetTimer()
	rounds := 0
	for start := time.Now(); rounds == 0 || rounds < b.N && time.Since(start) < 4*span; rounds++ {
		time.Sleep(span)
	}
	b.StopTimer()
	perSecond := float64(m.commands()) / (time.Duration(rounds) * span).Seconds()
	b.ReportMetric(perSecond, "idle-cmds/s")
	b.ReportMetric(perSecond/(keepers/protocol.DefaultHeartbeatInterval.Seconds()), "x-heartbeats")
	m.must(lease.Err())
}

func (b *bench) resetStats() {
	b.Helper()
	b.must(b.rdb.ConfigResetStat(ctx).Err())
}

// commands returns how many commands clients have sent since resetStats; those of scripts are not counted.
func (b *bench) commands() int {
	b.Helper()
	sum := 0
	for name, s := range b.stats() {
		switch name {
		case "evalsha", "eval", "subscribe", "ssubscribe", "unsubscribe", "ping", "hello":
			sum += s.Calls
		}
	}
	return sum
}

func (b *bench) stats() map[string]Stat {
	b.Helper()
	return must.Get(Stats(ctx, b.rdb))(b)
}

// Stat is what a server knows of one command, whether clients sent it or scripts called it.
type Stat struct {
	Calls  int
	Micros float64 // how long it ran, in all
}

// Stats asks a server for all commands that it has run since its statistics were reset, by their names in lower case.
func Stats(ctx context.Context, rdb redis.Cmdable) (map[string]Stat, error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	all := map[string]Stat{}
	for line := range strings.Lines(info) {
		rest, ok := strings.CutPrefix(line, "cmdstat_")
		name, fields, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 {
			continue
		}
		var s Stat
		for _, f := range strings.Split(fields, ",") {
			switch key, v, _ := strings.Cut(f, "="); key {
			case "calls":
				s.Calls, _ = strconv.Atoi(v)
			case "usec":
				s.Micros, _ = strconv.ParseFloat(v, 64)
			}
		}
		all[name] = s
	}
	return all, nil
}

// Median is the middle of a list, or 0 if it is empty.
func Median(list []float64) float64 { return Percentile(list, 50) }

// Percentile is the value that p percent of a list are below, or 0 if the list is empty.
func Percentile(list []float64, p int) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// Admit is one release that lets in so many waiters in 10 keepers at once. Messages are counted by the server.
func Admit(b *testing.B, waiters int, blocker, waiter New) {
	const keepers = 10
	m := start(b, waiter)
	first := must.Get(blocker(m.keeper(lockkeeper.Options{}), "x"))(m)
	locks, inLine := m.locks(keepers, waiters)
	var samples, pings, server []float64
	messages := 0
	b.ResetTimer()
	for range b.N {
		lease := must.Get(first.Lock(ctx))(m)
		var running, left sync.WaitGroup
		all := make(chan struct{})
		running.Add(waiters)
		for i := range waiters {
			left.Go(func() {
				lease, err := locks[i%keepers].Lock(ctx)
				running.Done()
				<-all // what they do then is not measured
				if err == nil {
					err = lease.Release(ctx)
				}
				must.Report(b, err)
			})
		}
		for range waiters {
			<-inLine
		}
		for range 5 {
			began := time.Now()
			m.must(m.rdb.Ping(ctx).Err())
			pings = append(pings, float64(time.Since(began)))
		}
		before := m.stats()
		began := time.Now()
		go func() { m.must(lease.Release(ctx)) }()
		running.Wait()
		samples = append(samples, float64(time.Since(began)))
		after := m.stats()
		messages += after["publish"].Calls - before["publish"].Calls
		server = append(server, after["evalsha"].Micros-before["evalsha"].Micros)
		close(all)
		left.Wait()
	}
	b.StopTimer()
	b.ReportMetric(Median(server), "server-us/op")
	b.ReportMetric(float64(messages)/float64(b.N), "msgs/op")
	b.ReportMetric(Median(samples)/Median(pings), "x-ping")
	b.ReportMetric(Median(samples)/1e6, "ms/all")
}
