package keeper

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestWakeupLostOnlyOnCurrentSubscription checks that a message that was sent to an earlier subscription does not
// replace the current one. Its waiter learns of the grant when the new subscription is confirmed, or otherwise by
// its heartbeat.
func TestWakeupLostOnlyOnCurrentSubscription(t *testing.T) {
	for what, cut := range map[string]bool{"closed": true, "silent": false} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				queued := func(spec *Spec) { spec.Scripts, spec.LocalQueue = lua.Fair, false }
				h := s.hold("x", queued)
				granted := s.acquire(s.lock("x", queued))
				time.Sleep(1100 * time.Millisecond) // avoid the time of a heartbeat
				released := time.Now()
				s.net.BlackholeSubscriptions()
				s.must(h.Release(context.Background()))
				want := 1
				if cut {
					want = 0
					s.net.CutSubscriptions()
				}
				next := <-granted
				if d := time.Since(released); cut != (d == 0) || d > s.Config.HeartbeatInterval {
					t.Errorf("the grant was known after %v", d)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := s.countEvents(lease.WakeupLost); n != want {
					t.Errorf("%d messages were missed, want %d", n, want)
				}
				s.must(next.Release(context.Background()))
			})
		})
	}
}

// TestLostReplyTombstonesWindowRequest checks that a request whose reply was lost is tombstoned, because no release
// prevents a late copy of it from taking permits again.
func TestLostReplyTombstonesWindowRequest(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.lock("x", func(spec *Spec) {
			spec.Scripts, spec.LocalQueue = lua.RateLimit, false
			spec.Limits = &Limits{Window: 9, Per: time.Minute}
		})
		take := func() *lease.Lease {
			h := must.Get(l.Try(context.Background(), Terms{Number: 1}))(s)
			if state := h.Claim.State(); state != claim.Permitted {
				t.Errorf("state %d", state)
			}
			return h
		}
		tombstoned := func(h *lease.Lease) bool {
			_, err := s.mini.ZScore(l.KeyOf(server.TombstonesKey), h.Token())
			return err == nil
		}
		if h := take(); tombstoned(h) {
			t.Error("no reply was lost, but the request is tombstoned")
		}
		s.net.Delay(10 * time.Millisecond)
		s.net.Break("evalsha", 1, faultnet.CutReply)
		if h := take(); !tombstoned(h) {
			t.Error("the lease was returned before the request was tombstoned")
		}
	})
}

// TestEndedRequestKeepsNextOfSameToken checks that the end of a request does not remove a later request with the same token.
func TestEndedRequestKeepsNextOfSameToken(t *testing.T) {
	inBubble(t, func(s *fixture) {
		const token = "some token"
		l := s.lock("x")
		first := l.NewTokenRequest(token, time.Time{}, nil, false)
		next := l.NewTokenRequest(token, time.Time{}, nil, false)
		registered := func() bool {
			taken, _ := s.Messages.Register(token, &next.request, nil, "", false)
			return taken
		}
		first.Cancel(server.ErrReleased)
		if !registered() {
			t.Error("the request that is under way is not registered any more")
		}
		next.Cancel(server.ErrReleased)
		if registered() {
			t.Error("a request that has ended is still registered")
		}
	})
}

// TestRequestThatHasEndedIsNotSent checks that a request which Close ends before it was sent takes nothing, although its caller has
// not been scheduled since: its cleanup does not know of a call that is sent later.
func TestRequestThatHasEndedIsNotSent(t *testing.T) {
	for what, send := range map[string]func(l *Lock, r *request) error{
		"lock": func(_ *Lock, r *request) error { return r.run(context.Background()) },
		"return to the queue": func(l *Lock, r *request) error {
			if done := r.StepAt(l.k.Now(), claim.Event{Kind: claim.Rejoining}, nil); done.Joins {
				return errors.New("it would be queued again")
			}
			return r.err
		},
		"part of a majority": func(l *Lock, r *request) error {
			answers := make(replies, 1)
			part := l.NewTokenRequest(r.Token(), time.Time{}, nil, false)
			part.Cancel(r.err)
			part.Send(0, answers)
			return (<-answers).Err
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				l := s.lock("x")
				r := l.newRequest(context.Background(), Terms{}, claim.Wait, nil)
				r.Step(claim.Event{Kind: claim.Closed}, nil)
				s.net.ResetCount()
				if err := send(l, r); !errors.Is(err, server.ErrClosed) {
					t.Errorf("the error is %v", err)
				}
				synctest.Wait()
				if n := s.net.Scripts(); n > 0 {
					t.Errorf("%d scripts were sent after the request had ended; the lock is held: %t", n, s.mini.Exists("lock:x"))
				}
			})
		})
	}
}

// replies receives the outcome of a TokenRequest.
type replies chan TokenReply

func (c replies) TokenAnswered(_ int, _ *TokenRequest, reply TokenReply) { c <- reply }

// TestTryLockHonorsMaxElapsed checks that TryLock honors MaxElapsed although each attempt may wait for the client's
// timeout.
func TestTryLockHonorsMaxElapsed(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.Config.Retry.MaxElapsed = readTimeout / 2
		l := s.lock("x")
		s.must(s.hold("y").Release(context.Background()))
		s.net.Blackhole()
		start := time.Now()
		if _, err := l.Try(context.Background(), Terms{}); err == nil {
			t.Error("TryLock succeeded without a reply")
		}
		if d := time.Since(start); d > readTimeout+s.Config.HeartbeatInterval {
			t.Errorf("TryLock took %v", d)
		}
	})
}
