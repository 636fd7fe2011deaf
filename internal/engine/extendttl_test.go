package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/lua"
)

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
				l, err := s.Engine.Lock(Spec{Scripts: set, Name: "x", TTL: ttl})
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
					if _, err := l.Try(context.Background(), terms); !errors.Is(err, ErrNotAcquired) {
						s.Errorf("another request acquired the lock: %v", err)
						return
					}
					if at := s.mini.TTL(l.key(keyLock)); at < time.Until(h.Deadline()) {
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
