package benchmarks

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Func is a Locker that is one function.
type Func func(ctx context.Context) (*lockkeeper.Lease, error)

// Lock is part of Locker.
func (f Func) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return f(ctx) }

// WriterUnderReaders is a writer among 64 readers in as many keepers that overlap without a pause: each reads for 1 to 9
// ms and begins anew. The metric writer-wait-x is the writer's longest wait over the longest read plus one hand-off.
func WriterUnderReaders(b *testing.B, read, write New) {
	m := start(b, read)
	m.must(m.rdb.Ping(ctx).Err())
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var longest, reads atomic.Int64
	for i := range 64 {
		k, _ := m.keeper()
		l, err := read(k, "x")
		m.must(err)
		wg.Go(func() {
			for n := i; ; n++ {
				lease, err := l.Lock(inner)
				if err != nil {
					return
				}
				got := time.Now()
				time.Sleep(time.Duration(1+n%9) * time.Millisecond)
				if err := lease.Release(ctx); err != nil {
					b.Error(err)
				}
				atMost(&longest, time.Since(got)) // until the server has let it go
				reads.Add(1)
			}
		})
	}
	k, _ := m.keeper()
	l, err := write(k, "x")
	m.must(err)
	lone, err := write(k, "lone")
	m.must(err)
	for range 10 {
		m.once(l)
	}
	var worst, handoffs []float64
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		lease, err := l.Lock(ctx)
		m.must(err)
		worst = append(worst, float64(time.Since(began)))
		m.must(lease.Release(ctx))
		began = time.Now()
		m.once(lone)
		handoffs = append(handoffs, float64(time.Since(began))) // as many commands as a hand-off, under the same load
		time.Sleep(5 * time.Millisecond)
	}
	b.StopTimer()
	cancel()
	wg.Wait()
	b.ReportMetric(Percentile(worst, 100)/(float64(longest.Load())+Median(handoffs)), "writer-wait-x")
	b.ReportMetric(Median(worst)/1e6, "ms/wait")
	b.ReportMetric(float64(longest.Load())/1e6, "ms/longest-read")
	b.ReportMetric(float64(reads.Load())/float64(b.N), "reads/op")
}

func atMost(v *atomic.Int64, d time.Duration) {
	for old := v.Load(); int64(d) > old && !v.CompareAndSwap(old, int64(d)); old = v.Load() {
	}
}

// Readers is 64 goroutines that read under one lock, with no writer, beside 64 that lock mutexes of distinct names.
func Readers(b *testing.B, read, mutex New) {
	const goroutines = 64
	m := start(b, read)
	k, _ := m.keeper()
	l := m.lock(k, "x")
	var mutexes []Locker
	for i := range goroutines {
		x, err := mutex(k, "m"+strconv.Itoa(i))
		m.must(err)
		mutexes = append(mutexes, x)
	}
	parallel := func(op func(i int)) func(int) {
		return func(ops int) {
			var wg sync.WaitGroup
			for i := range goroutines {
				wg.Go(func() {
					for range max(ops/goroutines, 1) {
						op(i)
					}
				})
			}
			wg.Wait()
		}
	}
	us := parallel(func(int) { m.once(l) })
	them := parallel(func(i int) { m.once(mutexes[i]) })
	us(2000)
	them(2000)
	b.ResetTimer()
	ours, theirs := turns(b.N, 50*goroutines, us, them)
	b.StopTimer()
	b.ReportMetric(Median(theirs)/Median(ours), "x-mutex")
	b.ReportMetric(Median(ours), "ns/op")
}

// ScaleReaders is what it costs the server that one of so many readers comes and goes.
func ScaleReaders(b *testing.B, n New, set *lua.Set, readers ...int) {
	for _, count := range readers {
		b.Run(fmt.Sprintf("readers=%d", count), func(b *testing.B) {
			m := start(b, n)
			keys, token := scriptBench(m, set)
			acquire := func(p redis.Pipeliner, i int) {
				p.EvalSha(ctx, set.Acquire.SHA, keys, protocol.AcquireArgs(nil, token(i)+"r", 3600000, "", benchSettings, nil, nil)...)
			}
			release := func(p redis.Pipeliner, i int) {
				p.EvalSha(ctx, set.Release.SHA, keys, protocol.ReleaseArgs(nil, token(i)+"r", benchSettings, 0, 0, 0)...)
			}
			for i := 0; i < count; i += 1000 {
				_, err := m.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
					for j := i; j < min(i+1000, count); j++ {
						acquire(p, j)
					}
					return nil
				})
				m.must(err)
			}
			var blocks []float64
			next := count
			b.ResetTimer()
			for left := b.N; left > 0; {
				ops := min(left, 500)
				left -= ops
				_, err := m.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
					for j := range ops {
						acquire(p, next+j)
					}
					return nil
				})
				m.must(err)
				m.resetStats()
				for j := range ops {
					_, err := m.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { release(p, next+j-count); return nil })
					m.must(err)
				}
				next += ops
				blocks = append(blocks, m.stats()["evalsha"].Micros/float64(ops))
			}
			b.StopTimer()
			b.ReportMetric(Median(blocks), "server-us/op")
		})
	}
}

// scriptBench prepares for scripts to be run by hand: it loads them, and returns the keys of the name x and a maker of
// tokens.
func scriptBench(m *bench, set *lua.Set) (keys []string, token func(i int) string) {
	m.Helper()
	for _, s := range set.Scripts() {
		m.must(m.rdb.ScriptLoad(ctx, s.Text).Err())
	}
	own := "{lock:x}:" + set.Kind + ":"
	return []string{own + "holders", own + "meta", own + "queue", own + "tombstones"}, func(i int) string {
		return benchKeeper + ":" + strconv.FormatInt(int64(i), 36) + ":30000.6000"
	}
}

const benchKeeper = "3qZaNx7zYpGXgfi8dCj6uj"

var benchSettings = protocol.Settings(3600000, "lock:wake:", false)

// Admit is one release that lets in so many waiters in 10 keepers at once. Messages are counted by the server.
func Admit(b *testing.B, waiters int, blocker, waiter New) {
	const keepers = 10
	m := start(b, waiter)
	k, _ := m.keeper()
	first, err := blocker(k, "x")
	m.must(err)
	inLine := make(chan struct{}, waiters)
	var locks []Locker
	var seen sync.Map
	for range keepers {
		k, _ := m.keeperWith(lockkeeper.Hooks{Queued: func(e lockkeeper.Event) {
			if _, again := seen.LoadOrStore(e.Token, nil); !again {
				inLine <- struct{}{}
			}
		}})
		locks = append(locks, m.lock(k, "x"))
	}
	var samples, pings, server []float64
	messages := 0
	b.ResetTimer()
	for range b.N {
		lease, err := first.Lock(ctx)
		m.must(err)
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
				if err != nil {
					b.Error(err)
				}
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
