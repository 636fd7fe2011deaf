package benchmarks

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Func is a Locker that is one function.
type Func func(ctx context.Context) (*lockkeeper.Lease, error)

// Lock is part of Locker.
func (f Func) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return f(ctx) }

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
			first, next := 0, count
			b.ResetTimer()
			micros := m.blocks(func(ops int) {
				_, err := m.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
					for j := range ops {
						acquire(p, next+j)
					}
					return nil
				})
				m.must(err)
				first, next = next-count, next+ops
			}, func(j int) {
				must.Get(m.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { release(p, first+j); return nil }))(m)
			})
			b.StopTimer()
			b.ReportMetric(micros, "server-us/op")
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
	first := must.Get(blocker(k, "x"))(m)
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
