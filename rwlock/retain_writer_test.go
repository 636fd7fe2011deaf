package rwlock_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// TestRetainCostsContinuousWriterATenth lets two processes read all the time and retain leases when they may, while another one writes
// again and again.
func TestRetainCostsContinuousWriterATenth(t *testing.T) {
	const length, rtt, pause = time.Second, time.Millisecond, 2 * time.Millisecond
	writes := map[bool]int{}
	for _, retain := range []bool{false, true} {
		retains(t, func(s *embedded.Server, _, other *retainer) {
			var recalls atomic.Int64
			start := time.Now()
			var readers sync.WaitGroup
			for range 2 {
				n := s.Network()
				n.DelayReplies(rtt)
				rdb := redis.NewClient(n.Options(time.Second))
				k, err := lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.Hooks{Recalled: func(lockkeeper.Event) { recalls.Add(1) }}})
				other.Must(err)
				s.Cleanup(func() {
					_ = k.Close()
					_ = rdb.Close()
				})
				l, err := rwlock.New(k, "x", &rwlock.Options{Retain: retain})
				other.Must(err)
				readers.Go(func() {
					for time.Since(start) < length {
						lease, err := l.RLock(ctx)
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(100 * time.Microsecond)
						must.Report(t, lease.Release(ctx))
					}
				})
			}
			other.Net.DelayReplies(rtt)
			for time.Since(start) < length {
				l, err := other.Lock.Lock(ctx)
				other.Must(err)
				other.Leave(l)
				writes[retain]++
				time.Sleep(pause)
			}
			readers.Wait()
			if retain && recalls.Load() == 0 {
				t.Error("no lease was retained")
			}
		})
	}
	if writes[true] < writes[false]*9/10 {
		t.Errorf("%d writes with Retain, %d without", writes[true], writes[false])
	}
}
