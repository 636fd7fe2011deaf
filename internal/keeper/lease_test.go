package keeper

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lua"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	goleak.VerifyTestMain(m)
}

const (
	ttl         = 3 * time.Second
	readTimeout = time.Second
)

// fixture is a keeper in a synctest bubble, with a server and a network.
type fixture struct {
	*testing.T
	*Keeper
	mini *miniredis.Miniredis
	net  *faultnet.Net

	mu     sync.Mutex
	events []Event
}

func inBubble(t *testing.T, test func(s *fixture)) {
	t.Helper()
	embedded.Run(t, func(m *embedded.Server) {
		s := &fixture{T: m.T, mini: m.Mini, net: m.Network()}
		c, end := embedded.Connect(s, s.net, readTimeout)
		s.Keeper = New(Config{
			Config: server.Config{
				Client: c, Prefix: "lock:", HeartbeatInterval: 200 * time.Millisecond, HeartbeatTimeout: 600 * time.Millisecond, MetadataTTL: time.Hour,
				Retry: server.Retry{MinBackoff: 10 * time.Millisecond, MaxBackoff: time.Second, MaxElapsed: 10 * time.Second},
				Log:   quiet.Logger(nil),
			},
			Observe: func(e Event) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.events = append(s.events, e)
			},
		})
		test(s)
		s.net.Restore()
		_ = s.Close()
		end()
	})
}

// subtest runs a test with this name in a bubble of its own.
func subtest(t *testing.T, name string, test func(s *fixture)) {
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

func (s *fixture) lock(name string, change ...func(*Spec)) *Lock {
	s.Helper()
	spec := Spec{Scripts: lua.Mutex, Name: name, TTL: ttl, LocalQueue: true}
	for _, f := range change {
		f(&spec)
	}
	return must.Get(s.Lock(spec))(s)
}

func (s *fixture) hold(name string, change ...func(*Spec)) *Lease {
	s.Helper()
	return must.Get(s.lock(name, change...).Try(context.Background(), Terms{}))(s)
}

// acquire acquires in the background.
func (s *fixture) acquire(l *Lock) <-chan *Lease {
	granted := make(chan *Lease, 1)
	go func() {
		h, err := l.Acquire(context.Background(), Terms{})
		must.Report(s, err)
		granted <- h
	}()
	return granted
}

func (s *fixture) must(err error) {
	s.Helper()
	must.OK(s, err)
}

// countEvents returns the number of events of this type.
func (s *fixture) countEvents(what EventType) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, e := range s.events {
		if e.Type == what {
			n++
		}
	}
	return n
}

func withoutRenewal(spec *Spec) { spec.NoRenewal = true }

// queued makes it a lock with a queue at the server.
func queued(spec *Spec) { spec.Scripts, spec.LocalQueue = lua.Fair, false }

// freeze lets the deadline of a lease pass without firing any timer, as in a process that was stopped and has just
// been continued.
func (s *fixture) freeze(h *Lease) {
	s.Helper()
	s.Timers.Stop()
	done := h.Done()
	time.Sleep(time.Until(h.Deadline()))
	select {
	case <-done:
		s.Fatal("a timer has fired")
	default:
	}
}

// TestLossVisibleImmediately checks that every call on a lease notices the loss in a process that was frozen past the deadline.
func TestLossVisibleImmediately(t *testing.T) {
	background := context.Background()
	lost := func(err error) bool { return errors.Is(err, server.ErrLost) && !errors.Is(err, server.ErrReleased) }
	for what, noticed := range map[string]func(h *Lease, ctx context.Context) bool{
		"Err":           func(h *Lease, _ context.Context) bool { return lost(h.Err()) },
		"Context.Err":   func(_ *Lease, ctx context.Context) bool { return ctx.Err() == context.Canceled },
		"Done":          func(h *Lease, _ context.Context) bool { return isClosed(h.Done()) },
		"Context.Done":  func(_ *Lease, ctx context.Context) bool { return isClosed(ctx.Done()) },
		"context.Cause": func(_ *Lease, ctx context.Context) bool { return lost(context.Cause(ctx)) },
		"a derived context": func(_ *Lease, ctx context.Context) bool {
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			return derived.Err() == context.Canceled
		},
		"a new Context":      func(h *Lease, _ context.Context) bool { return lost(context.Cause(h.Context(background))) },
		"a new Context's":    func(h *Lease, _ context.Context) bool { return h.Context(background).Err() == context.Canceled },
		"a new Context.Done": func(h *Lease, _ context.Context) bool { return isClosed(h.Context(background).Done()) },
		"Extend":             func(h *Lease, _ context.Context) bool { return lost(h.Extend(background, ttl)) },
		"Release":            func(h *Lease, _ context.Context) bool { return lost(h.Release(background)) },
		"Release, its ctx":   func(h *Lease, ctx context.Context) bool { return lost(h.Release(ctx)) },
		"Close":              func(h *Lease, _ context.Context) bool { return lost(h.lock.k.Close()) },
		"Do's after working": func(h *Lease, _ context.Context) bool {
			return lost(lifecycle.Do(background, h, func(context.Context, uint64) error { return nil }))
		},
	} {
		subtest(t, what, func(s *fixture) {
			h := s.hold("x")
			ctx := h.Context(background)
			s.freeze(h)
			s.net.ResetCount()
			check.That(s, noticed(h, ctx), "the loss is not noticed")
			check.That(s, isClosed(h.Done()) && isClosed(ctx.Done()) && lost(context.Cause(ctx)),
				"Done is not closed, or its context has not ended: %v", context.Cause(ctx))
			check.That(s, what != "Extend" || s.net.Scripts() == 0, "it sent an Extend of a lost lease")
			n := s.countEvents(Lost)
			check.That(s, n == 1, "the loss was reported %d times", n)
		})
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// TestLateCallShortensNothing checks that an Extend says when the lease ends, at the server and for the holder, also if a call that was sent before
// it runs after it.
func TestLateCallShortensNothing(t *testing.T) {
	for name, earlier := range map[string]func(s *fixture, h *Lease){
		"an Extend": func(s *fixture, h *Lease) { go func() { must.Report(s, h.Extend(s.Context(), 2*ttl)) }() },
		"a renewal": func(*fixture, *Lease) { time.Sleep(ttl / 3) },
	} {
		subtest(t, name, func(s *fixture) {
			h := s.hold("x")
			time.Sleep(ttl / 2)
			s.must(h.Extend(s.Context(), ttl)) // the server knows the scripts
			s.net.Delay(300 * time.Millisecond)
			earlier(s, h)
			synctest.Wait()
			s.net.Delay(0)
			s.must(h.Extend(s.Context(), 40*ttl))
			time.Sleep(ttl / 3)
			s.must(h.Err())
			server, own, want := s.mini.TTL("lock:x"), time.Until(h.Deadline()), 40*ttl-ttl/3
			check.That(s, server >= want && own >= want-claim.Margin(40*ttl) && own <= server,
				"the lease ends in %v at the server, in %v for the holder; want %v", server, own, want)
			s.must(h.Release(s.Context()))
		})
	}
}

// TestReleaseReturnsWithItsContext checks that Release returns when its context ends, and that the lock is released
// nevertheless.
func TestReleaseReturnsWithItsContext(t *testing.T) {
	for name, c := range map[string]struct{ left, returns time.Duration }{
		"it ends meanwhile":   {100 * time.Millisecond, 100 * time.Millisecond},
		"it has ended before": {-1, time.Second},
	} {
		subtest(t, name, func(s *fixture) {
			h := s.hold("x", func(spec *Spec) { spec.TTL = time.Hour })
			s.net.Down()
			start := time.Now()
			err := h.Release(must.Within(s, c.left))
			check.That(s, errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, server.ErrLost), "%v", err)
			d := time.Since(start)
			check.That(s, d == c.returns, "Release took %v, want %v", d, c.returns)
			check.Is(s, h.Err(), server.ErrReleased, "the lease")
			s.net.Restore()
			time.Sleep(2 * time.Second)
			check.That(s, !s.mini.Exists("lock:x"), "the lock was not released")
		})
	}
}

func TestLeaseContextEndsWithLeaseOrParent(t *testing.T) {
	inBubble(t, func(s *fixture) {
		type key struct{}
		parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
		h := s.hold("x")
		first, second := h.Context(parent), h.Context(context.Background())
		check.That(s, first.Value(key{}) == "value" && first.Err() == nil && second.Err() == nil,
			"the context is not derived from its parent")
		mine := errors.New("mine")
		cancel(mine)
		check.That(s, first.Err() == context.Canceled && context.Cause(first) == mine && second.Err() == nil,
			"%v, %v, %v", first.Err(), context.Cause(first), second.Err())
		child, stop := context.WithTimeout(second, time.Hour)
		defer stop()
		s.must(h.Release(context.Background()))
		<-child.Done()
		check.Is(s, context.Cause(second), server.ErrReleased, "its cause")
		check.That(s, context.Cause(child) == context.Cause(second) && second.Err() == context.Canceled, "%v", second.Err())
		ctx := h.Context(context.Background())
		check.That(s, errors.Is(context.Cause(ctx), server.ErrReleased), "after the release: %v", context.Cause(ctx))
	})
}

// TestLeaseDropsEndedContexts checks that a lease does not keep contexts that have ended, even if their parents
// never end.
func TestLeaseDropsEndedContexts(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		type key struct{}
		values := context.WithValue(context.Background(), key{}, "value")
		heap := func() uint64 {
			synctest.Wait()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		const n = 20_000
		h.Context(values)
		before := heap()
		for i := range n {
			parent, cancel := context.WithCancel(values)
			one, other := h.Context(parent), h.Context(values)
			must.That(s, one.Value(key{}) == "value" && other.Value(key{}) == "value" && one.Err() == nil && other.Err() == nil,
				"the context is not derived from its parent")
			cancel()
			must.That(s, one.Err() != nil && other.Err() == nil, "the context has not ended, or ended without its parent")
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		kept := int64(heap()-before) / n
		check.That(s, kept <= 100, "the lease keeps %d bytes of each ended context", kept)
	})
}

// TestNestedLeaseContexts checks a lease's context derived from another context of the same lease, and of a lease
// whose loss was not noticed yet.
func TestNestedLeaseContexts(t *testing.T) {
	inBubble(t, func(s *fixture) {
		x, y := s.hold("x"), s.hold("y", func(spec *Spec) { spec.TTL = ttl / 2 })
		twice := x.Context(x.Context(context.Background()))
		both := x.Context(y.Context(twice))
		s.freeze(y)
		s.must(x.Release(context.Background()))
		check.Is(s, context.Cause(twice), server.ErrReleased, "of one lease")
		check.Is(s, y.Err(), server.ErrLost, "the other lease")
		check.That(s, both.Err() != nil, "the context of both has not ended")
	})
}

// TestLeasesNeedNoGoroutines checks that one timer serves all leases.
func TestLeasesNeedNoGoroutines(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.lock("0")
		must.Get(l.Try(context.Background(), Terms{}))(s)
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range 500 {
			s.hold(strings.Repeat("x", i+1)).Context(context.Background())
		}
		synctest.Wait()
		n := runtime.NumGoroutine() - before
		check.That(s, n <= 10, "%d goroutines for 500 leases", n)
	})
}

// TestInterruptedReleaseIsSentAgainAtOnce: the caller's context ends, or the keeper is closed, while a release is under way. It does not wait
// for the pause after a failure, which may be longer than the lease.
func TestInterruptedReleaseIsSentAgainAtOnce(t *testing.T) {
	for what, interrupt := range map[string]func(s *fixture, cancel func()){
		"by Close":       func(s *fixture, _ func()) { s.must(s.Close()) },
		"by its context": func(_ *fixture, cancel func()) { cancel() },
	} {
		subtest(t, what, func(s *fixture) {
			s.Config.Retry.MinBackoff, s.Config.Retry.MaxBackoff = time.Hour, time.Hour
			for range 20 { // so that the process has a connection on which callers send
				s.must(s.hold("y").Release(context.Background()))
				synctest.Wait()
			}
			h := s.hold("x", withoutRenewal)
			synctest.Wait()
			var lost atomic.Bool // the first release
			s.mini.Server().SetPreHook(func(_ *miniserver.Peer, cmd string, args ...string) bool {
				return cmd == "EVALSHA" && args[0] == lua.Mutex.Fast.Release.SHA && lost.CompareAndSwap(false, true)
			})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			released := make(chan error, 1)
			go func() { released <- h.Release(ctx) }()
			synctest.Wait()
			start := time.Now()
			interrupt(s, cancel)
			err := <-released
			time.Sleep(10*time.Millisecond - time.Since(start))
			check.That(s, lost.Load() && !s.mini.Exists("lock:x") && time.Since(start) <= 10*time.Millisecond,
				"after %v the server has the lease for %v: %v", time.Since(start), s.mini.TTL("lock:x"), err)
		})
	}
}
