package keeper

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/server"
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
		"replaced":  {func(from, to *lease.Lease) { from.Replaced() }, server.ErrReleased},
		"lost":      {func(from, to *lease.Lease) { from.Lose(lease.ErrNotHeld); from.EndConversion() }, server.ErrLost},
		"no effect": {func(from, to *lease.Lease) { from.EndConversion() }, server.ErrLost}, // and the server has lost the lease
		"canceled":  {nil, server.ErrUnavailable},
		"closed":    {nil, server.ErrReleased},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				l, err := s.Keeper.Lock(Spec{Scripts: lua.RWLock, Name: "x", TTL: ttl})
				s.must(err)
				from, err := l.Try(context.Background(), Terms{Flags: "r"})
				s.must(err)
				s.must(from.BeginConversion(context.Background()))
				s.mini.Del(l.KeyOf(server.LockKey))
				to, err := l.Try(context.Background(), Terms{Flags: "w"})
				s.must(err)
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
				l, err := s.Keeper.Lock(Spec{Scripts: set, Name: "x", TTL: ttl})
				if err != nil {
					s.Fatal(err)
				}
				h, err := l.Try(context.Background(), terms)
				if err != nil {
					s.Fatal(err)
				}
				const long = 5 * time.Hour // longer than the metadata of an unused name is kept
				if err := h.Extend(context.Background(), long); err != nil {
					s.Fatal(err)
				}
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
				if err := h.Release(context.Background()); err != nil {
					s.Error(err)
				}
			})
		})
	}
}
