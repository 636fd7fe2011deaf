package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestWakeupLostOnlyOnCurrentSubscription: one that was sent to the subscription before is no reason to replace the one
// there is. Its waiter learns of the grant when the new one is acknowledged; without that, by its heartbeat.
func TestWakeupLostOnlyOnCurrentSubscription(t *testing.T) {
	for what, cut := range map[string]bool{"it has been cut": true, "it is deaf": false} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				queued := func(spec *Spec) { spec.Scripts, spec.LocalQueue = lua.Fair, false }
				h := s.hold("x", queued)
				granted := make(chan *Lease, 1)
				go func() {
					next, err := s.lock("x", queued).Acquire(context.Background(), Terms{})
					if err != nil {
						t.Error(err)
					}
					granted <- next
				}()
				time.Sleep(1100 * time.Millisecond) // not to a time when a heartbeat leaves
				released := time.Now()
				s.net.BlackholeSubscriptions()
				s.must(h.Release(context.Background()))
				want := 1
				if cut {
					want = 0
					s.net.CutSubscriptions()
				}
				next := <-granted
				if d := time.Since(released); cut != (d == 0) || d > s.cfg.HeartbeatInterval {
					t.Errorf("the grant was known after %v", d)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := s.countEvents(WakeupLost); n != want {
					t.Errorf("%d messages were missed, want %d", n, want)
				}
				s.must(next.Release(context.Background()))
			})
		})
	}
}

// TestLostReplyTombstonesWindowRequest: an answer was lost, so a copy of the request may come
// late, and nothing is ever given back that would keep it from taking permits once more.
func TestLostReplyTombstonesWindowRequest(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.lock("x", func(spec *Spec) {
			spec.Scripts, spec.LocalQueue, spec.PlainKey = lua.Semaphore, false, false
			spec.Limits = &Limits{Window: 9, Per: time.Minute}
		})
		take := func() *Lease {
			h, err := l.Try(context.Background(), Terms{Permits: 1})
			s.must(err)
			return h
		}
		buried := func(h *Lease) bool {
			_, err := s.mini.ZScore(l.key(keyHeartbeats), "-"+h.token)
			return err == nil
		}
		if h := take(); buried(h) {
			t.Error("no answer was lost, but it is buried")
		}
		s.net.Delay(10 * time.Millisecond)
		s.net.Break("evalsha", 1, faultnet.CutReply)
		if h := take(); !buried(h) {
			t.Error("it was handed out before it was buried")
		}
	})
}

// TestEndedRequestKeepsNextOfSameToken: those for a majority's token follow one another, and one can be under
// way when the one before it is told how it ended.
func TestEndedRequestKeepsNextOfSameToken(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l, u := s.lock("x"), &MajorityLease{token: "some token"}
		first := l.proposal(u)
		next := l.proposal(u)
		known := func() *request {
			s.Engine.mu.Lock()
			defer s.Engine.mu.Unlock()
			return s.requests[u.token]
		}
		first.abandoned()
		if known() != next {
			t.Error("messages do not find the request that is under way any more")
		}
		next.abandoned()
		if known() != nil {
			t.Error("a request that has ended is still known")
		}
	})
}

// TestTryLockHonorsMaxElapsed: each of its attempts may have to wait until the client gives up.
func TestTryLockHonorsMaxElapsed(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.cfg.Retry.MaxElapsed = readTimeout / 2
		l := s.lock("x")
		s.must(s.hold("y").Release(context.Background()))
		s.net.Blackhole()
		start := time.Now()
		if _, err := l.Try(context.Background(), Terms{}); err == nil {
			t.Error("it was granted without an answer")
		}
		if d := time.Since(start); d > readTimeout+s.cfg.HeartbeatInterval {
			t.Errorf("it took %v", d)
		}
	})
}
