package lockkeeper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// oneAtATime are locks named x, of which one request at a time is granted.
func oneAtATime(t *testing.T, k *lockkeeper.Keeper) map[string]lockkeeper.Locker {
	t.Helper()
	x := kindsOf(t, k, "x") // two permits of three
	limiter := must.Get(ratelimit.NewConcurrent(k, "x", 1_000_000, time.Minute, 1, nil))(t)
	return map[string]lockkeeper.Locker{"mutex": x.mutex, "fair": x.fair, "rwlock": x.write, "semaphore": x.permits, "ratelimit": limiter.Locker()}
}

// TestWaiterThatCannotReceiveKeepsItsPlace checks that a waiter whose subscription is lost, and cannot be restored, is granted the lock in
// its turn, while others take it from each other all the time.
func TestWaiterThatCannotReceiveKeepsItsPlace(t *testing.T) {
	lost := map[string]func(b *bubble, w *process){
		"denied":      func(b *bubble, _ *process) { b.denySubscriptions() },
		"unreachable": func(_ *bubble, w *process) { w.net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.LoseRequest) },
	}
	for _, kind := range []string{"mutex", "fair", "rwlock", "semaphore", "ratelimit"} {
		for how, lose := range lost {
			t.Run(kind+"/"+how, func(t *testing.T) {
				inBubble(t, func(b *bubble) {
					w, others := b.process(), []*process{b.process(), b.process()}
					open := func(p *process) lockkeeper.Locker { return oneAtATime(t, p.Keeper)[kind] }
					for _, o := range others { // they subscribe
						must.Get(open(o).TryLock(background))(t).Release(background)
					}
					synctest.Wait()
					held := must.Get(open(others[0]).TryLock(background))(t)
					granted := make(chan time.Time, 1)
					ctx, cancel := context.WithCancel(background)
					defer cancel()
					go func() {
						if lease, err := open(w).Lock(ctx); err == nil {
							granted <- time.Now()
							b.must(lease.Release(background))
						}
					}()
					synctest.Wait()
					lose(b, w)
					w.net.CutSubscriptions()
					time.Sleep(time.Millisecond)
					began, turns := time.Now(), 0
					for _, o := range others {
						lock := open(o)
						go func() {
							for {
								lease, err := lock.Lock(ctx)
								if err != nil {
									return
								}
								turns++
								time.Sleep(10 * time.Millisecond)
								b.must(lease.Release(background))
							}
						}()
					}
					synctest.Wait()
					b.must(held.Release(background))
					select {
					case at := <-granted:
						// The connection counts as lost after an interval, and the waiter says so in the heartbeat after that; it learns of its grant by another.
						if d := at.Sub(began); d > 3*heartbeatInterval+20*time.Millisecond {
							t.Errorf("granted after %v and %d turns of others", d, turns)
						}
					case <-time.After(30 * time.Second):
						t.Errorf("not granted while others had %d turns", turns)
					}
					cancel()
					synctest.Wait()
				})
			})
		}
	}
}
