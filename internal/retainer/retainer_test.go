package retainer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	goleak.VerifyTestMain(m)
}

const ttl = 3 * time.Second

// fixture is a keeper in a synctest bubble, with a server and a network.
type fixture struct {
	*testing.T
	*keeper.Keeper
	names *Names
	mini  *miniredis.Miniredis
	net   *faultnet.Net
}

func inBubble(t *testing.T, test func(s *fixture)) {
	t.Helper()
	embedded.Run(t, func(m *embedded.Server) {
		s := &fixture{T: m.T, names: NewNames(), mini: m.Mini, net: m.Network()}
		rdb := redis.NewClient(s.net.Options(time.Second))
		c := must.Get(client.New(rdb))(s)
		s.Keeper = keeper.New(keeper.Config{Config: server.Config{
			Client: c, Prefix: "lock:", HeartbeatInterval: 200 * time.Millisecond, HeartbeatTimeout: 600 * time.Millisecond, MetadataTTL: time.Hour,
			Retry: server.Retry{MinBackoff: 10 * time.Millisecond, MaxBackoff: time.Second, MaxElapsed: 10 * time.Second},
			Log:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		}})
		test(s)
		s.net.Restore()
		_ = s.Close()
		s.must(rdb.Close())
	})
}

func (s *fixture) must(err error) {
	s.Helper()
	must.OK(s, err)
}

func (s *fixture) retaining(name string, change ...func(*keeper.Spec)) *Lock {
	s.Helper()
	spec := keeper.Spec{Scripts: lua.RWLock, Name: name, TTL: ttl}
	for _, f := range change {
		f(&spec)
	}
	return must.Get(New(must.Get(s.Lock(spec))(s), s.names))(s)
}

// subscribed returns a lock to whose channel the keeper is subscribed, so that the next lease is retained.
func (s *fixture) subscribed(change ...func(*keeper.Spec)) *Lock {
	s.Helper()
	l := s.retaining("x", change...)
	s.must(s.read(l).Release(context.Background()))
	synctest.Wait()
	return l
}

// read acquires a read lease.
func (s *fixture) read(l *Lock) lifecycle.Handle {
	s.Helper()
	return must.Get(l.Acquire(context.Background(), true))(s)
}

// TestLeaseEndsWhileItIsOpened checks that nobody is admitted by a retained lease that ends in the moment in which its first reader
// learns of it, and that it is released when that reader leaves.
func TestLeaseEndsWhileItIsOpened(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.subscribed()
		r := l.find()
		x := r.begin()
		h, err := l.lock.Acquire(context.Background(), keeper.Terms{Flags: protocol.FlagRead + protocol.FlagRetained, Sharing: x})
		s.must(err)

		x.End()
		endContexts := h.Lifecycle.End(server.ErrLost)
		first := x.open(h, false)
		endContexts()
		x.Ended(server.ErrLost)
		if r.enter(context.Background()) != nil || r.current.Load() != nil {
			t.Error("a reader was admitted by a lease that has ended")
		}
		if ok, _ := x.Enter(); ok {
			t.Error("a reader that knew the retention already was admitted")
		}
		if err := first.Release(context.Background()); err == nil {
			t.Error("the loss is not reported")
		}
		time.Sleep(time.Second)
		if s.mini.Exists(l.lock.KeyOf(server.LockKey)) {
			t.Error("the lease is not released with the last reader")
		}
	})
}

// TestLeaseEndsWithTheRetainedLease checks that whoever asks a lease sees it end in the moment in which the retained lease ends, before the
// goroutine that has ended that reaches this one.
func TestLeaseEndsWithTheRetainedLease(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.subscribed()
		h := s.read(l).(*Lease)
		done, ctx := h.Done(), h.Context(context.Background())
		h.retention.End()
		endContexts := h.retention.lease.Lifecycle.End(server.ErrLost)
		if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), server.ErrLost) {
			t.Errorf("its context: %v, %v", err, context.Cause(ctx))
		}
		select {
		case <-done:
		default:
			t.Error("Done is not closed")
		}
		endContexts()
		h.retention.Ended(server.ErrLost)
		if err := h.Release(context.Background()); !errors.Is(err, server.ErrLost) {
			t.Errorf("Release: %v", err)
		}
	})
}

// TestUpgradeGetsNoLeaseThatHasEnded checks that an upgrade which is alone inside because the others leave as the lease ends does not take
// that for its own: nobody would report its release.
func TestUpgradeGetsNoLeaseThatHasEnded(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.subscribed()
		h, _ := s.read(l).(*Lease), s.read(l)
		upgraded := make(chan error)
		go func() {
			_, err := h.detach(context.Background(), l.lock)
			upgraded <- err
		}()
		synctest.Wait()
		x := h.retention
		x.Hold.Leave()
		x.End()
		endContexts := x.lease.Lifecycle.End(server.ErrReleased)
		x.Ended(server.ErrReleased)
		if err := <-upgraded; !errors.Is(err, server.ErrReleased) || h.Own() != nil {
			t.Errorf("the upgrade: %v", err)
		}
		endContexts()
		s.must(h.Release(context.Background()))
	})
}

// TestRetainedNamesAreBounded checks that the least recently used name is given back when there are too many.
func TestRetainedNamesAreBounded(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.names.names = retain.NewNames[*name](3)
		read := func(name string) *Lock {
			l := s.retaining(name)
			s.must(s.read(l).Release(context.Background()))
			return l
		}
		retained := func(name string) bool {
			synctest.Wait()
			return s.mini.Exists("{lock:" + name + "}:rwlock:holders")
		}
		read("subscribes")
		synctest.Wait()                                     // until then nothing is retained
		for _, name := range []string{"a", "b", "c", "a"} { // "subscribes" leaves first
			read(name)
		}
		for _, name := range []string{"a", "b", "c"} {
			if !retained(name) {
				t.Errorf("%s is not retained", name)
			}
		}
		b := s.read(s.retaining("b"))
		read("d")
		if retained("c") || !retained("a") || !retained("b") || !retained("d") {
			t.Error("the least recently used name, c, is retained, or another is not")
		}
		read("e")
		read("f")
		read("g")
		if !retained("b") {
			t.Error("a lease was given back with a reader inside")
		}
		s.must(b.Release(context.Background()))
		if retained("b") {
			t.Error("a name that left while a reader was inside is retained")
		}
	})
}

// TestReleaseAfterExtendToLess checks that a caller whose lease was granted inside, and extended to less, learns at its release that
// the lease ended while the process was frozen.
func TestReleaseAfterExtendToLess(t *testing.T) {
	for what, change := range map[string]func(*keeper.Spec){
		"read": func(*keeper.Spec) {},
		"turn": func(spec *keeper.Spec) { spec.Scripts, spec.LocalQueue = lua.Mutex, true },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				l := s.subscribed(change, func(spec *keeper.Spec) { spec.TTL = retain.MaxTTL })
				s.must(s.read(l).Release(context.Background()))
				h := s.read(l).(*Lease)
				s.must(h.Extend(context.Background(), retain.MaxTTL/5))
				s.Timers.Stop() // the process is frozen
				time.Sleep(retain.MaxTTL / 4)
				if h.retention.Certain() {
					t.Error("the process takes the lease to be certain after its deadline")
				}
				if err := h.Release(context.Background()); !errors.Is(err, server.ErrLost) {
					t.Errorf("Release: %v", err)
				}
			})
		})
	}
}
