package keeper

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestFastBackoffIsOfName checks that a lock that was made just now knows with which script its calls should begin: that of the
// other locks of the name.
func TestFastBackoffIsOfName(t *testing.T) {
	inBubble(t, func(s *fixture) {
		fair := func(spec *Spec) { spec.Scripts, spec.LocalQueue = lua.Fair, false }
		wait := func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			if _, err := s.lock("x", fair).Acquire(ctx, Terms{}); !errors.Is(err, server.ErrNotAcquired) {
				t.Error(err)
			}
			synctest.Wait()
		}
		h := s.hold("x", fair)
		s.must(s.lock("x", fair).subscribe(context.Background(), &server.Health{}))
		wait()
		s.net.ResetCount()
		for range 10 {
			wait()
		}
		if n := s.net.Scripts(); n != 20 {
			t.Errorf("10 requests of new objects that were queued and left took %d scripts, want 20", n)
		}
		s.must(h.Release(context.Background()))
	})
}
