package benchmarks

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Scale is what a hand-off costs the server in queues of so many waiters. The scripts are run as a keeper runs them,
// because no machine holds that many keepers: the waiter that gets the message is the next to release, and one more waits
// at the end.
func Scale(b *testing.B, n New, set *lua.Set, waiters ...int) {
	for _, w := range waiters {
		b.Run(fmt.Sprintf("waiters=%d", w), func(b *testing.B) { scale(b, n, set, w) })
	}
}

func scale(b *testing.B, n New, set *lua.Set, waiters int) {
	m := start(b, n)
	const ttl, wake = 30000, "lock:wake:"
	settings := protocol.Settings(3600000, wake, false)
	keys, token := scriptBench(m, set)
	sub := m.rdb.Subscribe(ctx, wake+benchKeeper)
	defer func() { _ = sub.Close() }()
	_, err := sub.Receive(ctx)
	m.must(err)
	acquire := func(p redis.Pipeliner, i int) {
		p.EvalSha(ctx, set.Acquire.SHA, keys, protocol.AcquireArgs(nil, token(i), ttl, "", settings, protocol.QueueTTL(3600000), 0)...)
	}
	next := 0
	for next <= waiters { // the first gets it
		_, err := m.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range 1000 {
				if next <= waiters {
					acquire(p, next)
					next++
				}
			}
			return nil
		})
		m.must(err)
	}
	memory := int64(0)
	for _, key := range keys[1:] {
		size, err := m.rdb.MemoryUsage(ctx, key, 0).Result()
		if !errors.Is(err, redis.Nil) { // not every policy has written all of them
			m.must(err)
		}
		memory += size
	}
	holder := token(0)
	turn := func() {
		_, err := m.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			acquire(p, next)
			p.EvalSha(ctx, set.Fast.HandOn.SHA, keys[:3], protocol.HandOnArgs(nil, holder, wake, protocol.EpochOf(3600000), nil)...)
			return nil
		})
		m.must(err)
		next++
		msg, err := sub.ReceiveMessage(ctx)
		m.must(err)
		serial, _, _ := strings.Cut(msg.Payload, " ")
		holder = benchKeeper + ":" + serial + ":30000.6000"
	}
	for range 1000 {
		turn()
	}
	// Server time is noisy on a shared machine: the median of blocks.
	var blocks []float64
	b.ResetTimer()
	for left := b.N; left > 0; {
		ops := min(left, 500)
		left -= ops
		m.resetStats()
		for range ops {
			turn()
		}
		blocks = append(blocks, m.stats()["evalsha"].Micros/float64(ops))
	}
	b.StopTimer()
	b.ReportMetric(Median(blocks), "server-us/op")
	b.ReportMetric(float64(memory)/float64(waiters), "B/waiter")
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
	k, _ := m.keeper()
	lease, err := m.lock(k, "x").Lock(ctx)
	m.must(err)
	waiting := make(chan struct{}, waiters)
	var wg sync.WaitGroup
	b.Cleanup(wg.Wait) // after all keepers have been closed
	for i := range keepers {
		k, _ := m.keeperWith(lockkeeper.Hooks{Queued: func(lockkeeper.Event) {
			select {
			case waiting <- struct{}{}:
			default:
			}
		}})
		l := m.lock(k, "x")
		for j := i; j < waiters; j += keepers {
			wg.Go(func() { _, _ = l.Lock(ctx) })
		}
	}
	for range waiters {
		<-waiting
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

// Fairness is 64 contenders in keepers of their own, each of which wants the lock again and again for 10 ms.
func Fairness(b *testing.B, n New) {
	const contenders, hold = 64, 10 * time.Millisecond
	m := start(b, n)
	var locks []Locker
	for range contenders {
		k, _ := m.keeper()
		locks = append(locks, m.lock(k, "x"))
	}
	turns := make([]int, contenders)
	var mu sync.Mutex
	var longest, total time.Duration
	count := 0
	// Each gets so many turns on average; one round to begin with.
	rounds := max(3, min(b.N, 20))
	stop := make(chan struct{})
	var began time.Time
	var wg sync.WaitGroup
	b.ResetTimer()
	for i, l := range locks {
		wg.Go(func() {
			for {
				asked := time.Now()
				lease, err := l.Lock(ctx)
				if err != nil {
					b.Error(err)
					return
				}
				got := time.Now()
				mu.Lock()
				over := false
				switch count++; {
				case count == contenders: // all wait now
					began = got
				case count > contenders && count <= (rounds+1)*contenders:
					turns[i]++
					longest = max(longest, got.Sub(asked))
					total = got.Sub(began)
				case count > (rounds+1)*contenders:
					over = true
					if count == (rounds+1)*contenders+1 {
						close(stop)
					}
				}
				mu.Unlock()
				if !over {
					time.Sleep(hold)
				}
				if err := lease.Release(ctx); err != nil {
					b.Error(err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	perTurn := total / time.Duration(rounds*contenders)
	b.ReportMetric(float64(slices.Min(turns)), "turns-min")
	b.ReportMetric(float64(slices.Max(turns)), "turns-max")
	b.ReportMetric(float64(longest)/float64(contenders*perTurn), "longest-wait-x")
}
