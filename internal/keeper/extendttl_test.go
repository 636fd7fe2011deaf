package keeper

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestExtendDuringConversion: the server has replaced the lease by another, whose reply is still under way, and does not know the token.
// Extend waits for the outcome.
func TestExtendDuringConversion(t *testing.T) {
	for name, x := range map[string]struct {
		resolve func(from, to *lease.Lease)
		want    error
	}{
		"continued": {func(from, to *lease.Lease) { from.Become(to) }, nil},
		"replaced":  {func(from, to *lease.Lease) { from.ReplacedBy(to) }, server.ErrReleased},
		"lost":      {func(from, to *lease.Lease) { from.Lose(lease.ErrNotHeld); from.EndConversion() }, server.ErrLost},
		"no effect": {func(from, to *lease.Lease) { from.EndConversion() }, server.ErrLost}, // and the server has lost the lease
		"canceled":  {nil, server.ErrUnavailable},
		"closed":    {nil, server.ErrReleased},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				l := must.Get(s.Keeper.Lock(Spec{Scripts: lua.RWLock, Name: "x", TTL: ttl}))(s)
				from := must.Get(l.Try(context.Background(), Terms{Flags: "r"}))(s)
				s.must(from.BeginConversion(context.Background()))
				s.mini.Del(l.KeyOf(server.LockKey))
				to := must.Get(l.Try(context.Background(), Terms{Flags: "w"}))(s)
				ctx, cancel := context.WithCancel(context.Background())
				extended := make(chan error, 1)
				go func() { extended <- from.Extend(ctx, 2*ttl) }()
				synctest.Wait()
				select {
				case err := <-extended:
					s.Fatalf("Extend has returned before the outcome was known: %v", err)
				default:
				}
				switch {
				case x.resolve != nil:
					x.resolve(from, to)
				case name == "closed":
					_ = s.Close()
				default:
					cancel()
				}
				if err := <-extended; !errors.Is(err, x.want) {
					s.Errorf("Extend: %v, want %v", err, x.want)
				}
				if name == "continued" && time.Until(to.Deadline()) < ttl {
					s.Errorf("the lease that continues it ends in %v", time.Until(to.Deadline()))
				}
				cancel()
				from.EndConversion()
				_ = from.Release(context.Background())
				_ = to.Release(context.Background())
			})
		})
	}
}

// TestExtendAtTheDeadline: a process that is frozen until the lease has ended here, but not at the server, does not extend it there.
func TestExtendAtTheDeadline(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		s.Timers.Stop()
		err := h.ExtendIf(context.Background(), 2*ttl, func() error {
			time.Sleep(time.Until(h.Deadline()))
			s.net.ResetCount()
			return nil
		})
		if !errors.Is(err, server.ErrLost) {
			s.Errorf("Extend: %v", err)
		}
		if n := s.net.Scripts(); n != 0 || s.mini.TTL("lock:x") > ttl {
			s.Errorf("%d scripts were sent, and the server has the lease for %v", n, s.mini.TTL("lock:x"))
		}
	})
}

// TestExtendBeyondMetadataTTLKeepsLease checks a lease that is extended for longer than MetadataTTL. The metadata
// records that the lease was extended beyond the ttl in its token. If it expired before the lease, the next request
// would shorten the lease to the ttl in the token, as it does after the server's clock was set back.
func TestExtendBeyondMetadataTTLKeepsLease(t *testing.T) {
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock} {
		t.Run(set.Kind, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				terms := Terms{}
				if set == lua.RWLock {
					terms.Flags = "w"
				}
				l := must.Get(s.Keeper.Lock(Spec{Scripts: set, Name: "x", TTL: ttl}))(s)
				h := must.Get(l.Try(context.Background(), terms))(s)
				const long = 5 * time.Hour // longer than the metadata of an unused name is kept
				must.OK(s, h.Extend(context.Background(), long))
				for range 20 {
					time.Sleep(long / 20)
					if _, err := l.Try(context.Background(), terms); !errors.Is(err, server.ErrNotAcquired) {
						s.Errorf("another request acquired the lock: %v", err)
						return
					}
					if at := s.mini.TTL(l.KeyOf(server.LockKey)); at < time.Until(h.Deadline()) {
						s.Errorf("the holder's deadline is in %v, the lease lasts %v", time.Until(h.Deadline()), at)
						return
					}
				}
				must.Report(s, h.Release(context.Background()))
			})
		})
	}
}

// TestExtendRefusedAsContextEnds: an Extend that is refused returns as its context ends, also while the server is asked for the reason.
func TestExtendRefusedAsContextEnds(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		s.mini.Del(s.lock("x").Key())
		s.net.Break(lua.Mutex.Inspect.SHA, 1, faultnet.SwallowReply)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		err := h.Extend(ctx, ttl)
		deadline, _ := ctx.Deadline()
		if d := time.Since(deadline); d > 50*time.Millisecond {
			t.Errorf("it returned %v after the end of its context: %v", d, err)
		}
	})
}
