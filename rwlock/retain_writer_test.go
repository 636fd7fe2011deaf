package rwlock_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// TestRetainCostsContinuousWriterATenth lets two processes read all the time and retain leases when they may, while another one writes
// again and again.
func TestRetainCostsContinuousWriterATenth(t *testing.T) {
	const length, rtt, pause = time.Second, time.Millisecond, 2 * time.Millisecond
	writes := map[bool]int{}
	for _, retain := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := lockkeepertest.New(t)
			var recorder lockkeepertest.Recorder
			open := func(retain bool) *rwlock.Lock {
				k := s.Keeper(t, &lockkeeper.Options{Hooks: recorder.Hooks()})
				return must.Get(rwlock.New(k, "x", &rwlock.Options{Retain: retain}))(t)
			}
			writer := open(false)
			s.SlowAnswers(rtt)
			start := time.Now()
			var readers sync.WaitGroup
			for range 2 {
				l := open(retain)
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
			for time.Since(start) < length {
				must.OK(t, must.Get(writer.Lock(ctx))(t).Release(ctx))
				writes[retain]++
				time.Sleep(pause)
			}
			readers.Wait()
			s.Restore()
			if retain {
				recorder.Require(t, "Recalled", "x")
			}
		})
	}
	if writes[true] < writes[false]*9/10 {
		t.Errorf("%d writes with Retain, %d without", writes[true], writes[false])
	}
}
