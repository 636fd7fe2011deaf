package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestWakeupLostOnlyOnCurrentSubscription checks that a message that was sent to an earlier subscription, or that comes late, does not
// replace the current one. Its waiter learns of the grant when the new subscription is confirmed, or otherwise by its heartbeat.
func TestWakeupLostOnlyOnCurrentSubscription(t *testing.T) {
	for what, want := range map[string]int{"closed": 0, "silent": 1, "late": 0} {
		subtest(t, what, func(s *fixture) {
			h := s.hold("x", queued)
			granted := s.acquire(s.lock("x", queued))
			time.Sleep(1100 * time.Millisecond) // avoid the time of a heartbeat
			released := time.Now()
			if what == "late" { // the heartbeat is faster
				s.net.DelaySubscriptions(s.Config.HeartbeatInterval + time.Second)
			} else {
				s.net.BlackholeSubscriptions()
			}
			s.must(h.Release(context.Background()))
			if what == "closed" {
				s.net.CutSubscriptions()
			}
			next := <-granted
			d := time.Since(released)
			check.That(s, (what == "closed") == (d == 0) && d <= s.Config.HeartbeatInterval, "the grant was known after %v", d)
			time.Sleep(time.Minute)
			synctest.Wait()
			n := s.countEvents(WakeupLost)
			check.That(s, n == want, "%d messages were missed, want %d", n, want)
			s.must(next.Release(context.Background()))
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
		take := func() *Lease {
			h := must.Get(l.Try(context.Background(), Terms{Number: 1}))(s)
			state := h.Claim.State()
			check.That(t, state == claim.Permitted, "state %d", state)
			return h
		}
		tombstoned := func(h *Lease) bool {
			_, err := s.mini.ZScore(l.KeyOf(server.TombstonesKey), h.Token())
			return err == nil
		}
		check.That(s, !tombstoned(take()), "no reply was lost, but the request is tombstoned")
		s.net.Delay(10 * time.Millisecond)
		s.net.Break("evalsha", 1, faultnet.CutReply)
		check.That(s, tombstoned(take()), "the lease was returned before the request was tombstoned")
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
	} {
		subtest(t, what, func(s *fixture) {
			l := s.lock("x")
			r := l.newRequest(context.Background(), Terms{}, claim.Wait)
			r.Step(claim.Event{Kind: claim.Closed}, nil)
			s.net.ResetCount()
			err := send(l, r)
			check.That(s, errors.Is(err, server.ErrClosed), "the error is %v", err)
			synctest.Wait()
			n := s.net.Scripts()
			check.That(s, n == 0,
				"%d scripts were sent after the request had ended; the lock is held: %t", n, s.mini.Exists("lock:x"))
		})
	}
}

// TestTryLockHonorsMaxElapsed checks that TryLock honors MaxElapsed although each attempt may wait for the client's
// timeout.
func TestTryLockHonorsMaxElapsed(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.Config.Retry.MaxElapsed = readTimeout / 2
		l := s.lock("x")
		s.must(s.hold("y").Release(context.Background()))
		s.net.Break("evalsha", 1<<30, faultnet.SwallowReply)
		start := time.Now()
		_, err := l.Try(context.Background(), Terms{})
		check.That(t, err != nil, "TryLock succeeded without a reply")
		d := time.Since(start)
		check.That(t, d <= readTimeout+s.Config.HeartbeatInterval, "TryLock took %v", d)
	})
}

// TestFailedCallIsUnavailable checks that a call without a reply returns its error, whatever its reply says.
func TestFailedCallIsUnavailable(t *testing.T) {
	call := &transport.Call{Err: io.EOF, Reply: []int64{lua.Granted, 1, 2, 3}}
	_, acquire := server.Decode(call, protocol.ParseAcquireReply)
	limited := &Lock{settings: &settings{spec: Spec{Limits: &Limits{Window: 1, Per: time.Second}}}}
	asked := &askCall{r: &request{Lease: &Lease{lock: limited}, terms: Terms{quota: &Quota{}}}}
	asked.Err, asked.Reply = call.Err, call.Reply
	_, allow := asked.decode()
	_, heartbeat := server.DecodeHeartbeat(call, 1)
	_, renew := server.Decode(call, protocol.ParseRenewReply)
	_, release := server.Decode(call, protocol.ParseReleaseReply)
	for what, err := range map[string]error{"acquire": acquire, "allow": allow, "heartbeat": heartbeat, "renew": renew, "release": release} {
		check.That(t, errors.Is(err, io.EOF) && errors.Is(err, server.ErrUnavailable), "%s: %v", what, err)
	}
}

// TestFastBackoffIsOfName checks that a lock that was made just now knows with which script its calls should begin: that of the
// other locks of the name.
func TestFastBackoffIsOfName(t *testing.T) {
	inBubble(t, func(s *fixture) {
		wait := func() {
			ctx := must.Within(s, time.Millisecond)
			check.Is(s, check.ErrorOf(s.lock("x", queued).Acquire(ctx, Terms{})), server.ErrNotAcquired, "the error")
			synctest.Wait()
		}
		h := s.hold("x", queued)
		s.must(s.Subscriber.Subscribe(context.Background(), s.lock("x", queued).Channel))
		wait()
		s.net.ResetCount()
		for range 10 {
			wait()
		}
		n := s.net.Scripts()
		check.That(t, n == 20, "10 requests of new objects that were queued and left took %d scripts, want 20", n)
		s.must(h.Release(context.Background()))
	})
}

// TestAbandonedTurnsKeepTheOrder checks that callers of this process that give up, wherever in the queue, leave the others in their order.
func TestAbandonedTurnsKeepTheOrder(t *testing.T) {
	inBubble(t, func(s *fixture) {
		const n = 9
		must.Get(s.local.Wait(s.Context(), "x", answers{}))(s)
		var turns []int
		var group sync.WaitGroup
		var cancels []context.CancelFunc
		for i := range n {
			ctx, cancel := context.WithCancel(s.Context())
			cancels = append(cancels, cancel)
			group.Go(func() {
				_, err := s.local.Wait(ctx, "x", answers{})
				gaveUp := i%2 == 0
				check.That(t, gaveUp == (err != nil) && (!gaveUp || errors.Is(err, context.Canceled)), "%d: %v", i, err)
				if err == nil {
					turns = append(turns, i)
					s.local.Leave("x")
				}
			})
			time.Sleep(time.Millisecond) // virtual: it is in the queue
		}
		for i := 0; i < n; i += 2 {
			cancels[i]()
		}
		time.Sleep(time.Millisecond)
		s.local.Leave("x")
		group.Wait()
		check.That(t, fmt.Sprint(turns) == "[1 3 5 7]", "turns %v", turns)
		must.Get(s.local.Wait(s.Context(), "x", answers{}))(s) // the queue is empty
		s.local.Leave("x")
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// TestImpossibleEventIsLoggedOnce: an event that a claim cannot get changes nothing, and is logged as a bug, but not each time.
func TestImpossibleEventIsLoggedOnce(t *testing.T) {
	inBubble(t, func(s *fixture) {
		log := &quiet.Buffer{}
		s.Config.Log = slog.New(slog.NewTextHandler(log, nil))
		h := s.hold("x")
		for range 3 {
			h.Step(claim.Event{Kind: claim.ReleaseReplied, Code: claim.Granted}, nil)
		}
		got := log.Take()
		check.That(s, strings.Count(got, "\n") == 1 && strings.Contains(got, "level=ERROR") &&
			strings.Contains(got, "state=Held event=ReleaseReplied"), "it logged %s", got)
		s.must(h.Release(context.Background()))
	})
}

// TestLeaksAreLoggedOnce checks that of many leases that leak one is logged, and then the number of the others, while the hook gets all.
func TestLeaksAreLoggedOnce(t *testing.T) {
	inBubble(t, func(s *fixture) {
		log := &quiet.Buffer{}
		s.Config.Log = slog.New(slog.NewTextHandler(log, nil))
		l := s.lock("x")
		for _, c := range []struct {
			pause time.Duration
			leaks int
			want  string // one line with this
		}{
			{0, 10_000, "token0"},
			{time.Minute + time.Second, 0, "leases=9999"},
			{2 * time.Minute, 2, "token0"},
			{time.Minute + time.Second, 0, "leases=1"},
		} {
			time.Sleep(c.pause)
			for i := range c.leaks {
				l.ReportLeak(nil, fmt.Sprint("token", i), 1, time.Second)
			}
			got := log.Take()
			check.That(s, strings.Count(got, "\n") == 1 && strings.Contains(got, c.want), "want %s:\n%s", c.want, got)
		}
		n := s.countEvents(Leaked)
		check.That(s, n == 10_002, "%d events", n)
	})
}

// TestLongWaitsAskOneAfterTheOther checks that waits for many names that become long at once are all logged, but ask for one lock at
// a time, and not for those that have ended meanwhile.
func TestLongWaitsAskOneAfterTheOther(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.longWaits.Bound = time.Second
		const n = 50
		var asking, asked atomic.Int32
		watch := func(names string) (stopAll func()) {
			asked.Store(0)
			var stops []func()
			for i := range n {
				stops = append(stops, s.lock(fmt.Sprint(names, i)).WatchWait(func(context.Context, int) ([]views.Holder, int, error) {
					check.That(s, asking.Add(1) == 1, "two at once")
					time.Sleep(time.Millisecond)
					asking.Add(-1)
					asked.Add(1)
					return nil, 0, nil
				}))
			}
			return func() {
				for _, stop := range stops {
					stop()
				}
			}
		}
		stop := watch("a")
		time.Sleep(2 * time.Second)
		stop()
		check.That(s, asked.Load() == n, "%d of %d were logged", asked.Load(), n)
		stop = watch("b")
		time.Sleep(time.Second + n/2*time.Millisecond)
		stop()
		time.Sleep(time.Second)
		check.Between(s, asked.Load(), n/4, n/2+2, "were logged, whose waits ended half-way")
	})
}

// TestLongWaitInAnOutage: the log says why it does not have the holders, and no number of them.
func TestLongWaitInAnOutage(t *testing.T) {
	inBubble(t, func(s *fixture) {
		log := &quiet.Buffer{}
		s.Config.Log = slog.New(slog.NewTextHandler(log, nil))
		s.longWaits.Bound = time.Second
		stop := s.lock("x").WatchWait(func(context.Context, int) ([]views.Holder, int, error) { return nil, 0, server.ErrUnavailable })
		time.Sleep(2 * time.Second)
		stop()
		got := log.Take()
		check.That(s, strings.Contains(got, "long time") && strings.Contains(got, "unavailable") && !strings.Contains(got, "holders"), "%s", got)
	})
}

// TestFirstHoldersReadsNoOthers checks that whoever needs one holder does not list a thousand.
func TestFirstHoldersReadsNoOthers(t *testing.T) {
	inBubble(t, func(s *fixture) {
		const n = 1200
		l := s.lock("x", func(spec *Spec) {
			spec.Scripts, spec.LocalQueue, spec.Limits, spec.NoRenewal = lua.Semaphore, false, &Limits{AtOnce: n}, true
		})
		for range n {
			_, err := l.Try(context.Background(), Terms{Flags: "h", Number: 1})
			must.OK(s, err)
		}
		commands := func(f func()) int {
			before := s.mini.CommandCount()
			f()
			return s.mini.CommandCount() - before
		}
		var list []views.Holder
		var total int
		var err error
		few := commands(func() { list, total, err = views.FirstHolders(context.Background(), l.AtServer(), 3) })
		check.That(s, err == nil && len(list) == 3 && total == n, "%d of %d, %v", len(list), total, err)
		var all []views.Holder
		many := commands(func() { all, err = views.Holders(context.Background(), l.AtServer()) })
		check.That(s, err == nil && len(all) == n, "%d, %v", len(all), err)
		check.That(s, few < many && few <= 12, "the first holders took %d commands, all took %d", few, many)
	})
}

// TestHeartbeatsAreInOrder checks that the first of many waiters is told its position, because the server takes their order from the heartbeat.
func TestHeartbeatsAreInOrder(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h, l := s.hold("x", queued), s.lock("x", queued)
		var group sync.WaitGroup
		var cancels []context.CancelFunc
		for i := range 50 {
			ctx, cancel := context.WithCancel(context.Background())
			cancels = append(cancels, cancel)
			group.Go(func() {
				_, err := l.Acquire(ctx, Terms{})
				check.That(s, err != nil, "%d got a lease", i)
			})
			time.Sleep(time.Millisecond) // virtual: it is in the queue
		}
		cancels[0]()
		synctest.Wait()
		s.mu.Lock()
		s.events = nil
		s.mu.Unlock()
		time.Sleep(2 * s.Config.HeartbeatInterval)
		synctest.Wait()
		second := s.waitingToken(l)
		s.mu.Lock()
		var moved []string
		for _, e := range s.events {
			if e.Type == Queued {
				moved = append(moved, fmt.Sprint(e.Position, " ", e.Token == second))
			}
		}
		s.mu.Unlock()
		check.That(s, fmt.Sprint(moved) == "[0 true]", "positions, and whether they are of the first waiter: %v", moved)
		for _, cancel := range cancels {
			cancel()
		}
		group.Wait()
		s.must(h.Release(context.Background()))
	})
}
