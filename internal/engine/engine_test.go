package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/lua"
)

// TestOnlyAMessageToThisSubscriptionIsMissed: one that was sent to the subscription before is no reason to replace the one
// there is. Its waiter learns of the grant when the new one is acknowledged; without that, by its heartbeat.
func TestOnlyAMessageToThisSubscriptionIsMissed(t *testing.T) {
	for what, cut := range map[string]bool{"it has been cut": true, "it is deaf": false} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(s *site) {
				queued := func(spec *Spec) { spec.Scripts, spec.LocalLine = lua.Fair, false }
				h := s.hold("x", queued)
				granted := make(chan *Hold, 1)
				go func() {
					next, err := s.lock("x", queued).Acquire(context.Background(), Terms{})
					if err != nil {
						t.Error(err)
					}
					granted <- next
				}()
				time.Sleep(1100 * time.Millisecond) // not to a time when a heartbeat leaves
				released := time.Now()
				s.net.DeafenSubscriptions()
				s.must(h.Release(context.Background()))
				want := 1
				if cut {
					want = 0
					s.net.CutSubscriptions()
				}
				next := <-granted
				if d := time.Since(released); cut != (d == 0) || d > s.cfg.Period {
					t.Errorf("the grant was known after %v", d)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := s.count(WakeupMissed); n != want {
					t.Errorf("%d messages were missed, want %d", n, want)
				}
				s.must(next.Release(context.Background()))
			})
		})
	}
}
