package keeper

import (
	"context"
	"errors"
	"testing"
	"time"

	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestUpgradeInDoubtAwaitsReplicas: an upgrade whose outcome became known after it had returned is not returned by the next call either before
// replicas have it.
func TestUpgradeInDoubtAwaitsReplicas(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := must.Get(s.Keeper.Lock(Spec{Scripts: lua.RWLock, Name: "x", TTL: 10 * ttl}))(s)
		from := must.Get(l.Try(context.Background(), Terms{Flags: "r"}))(s)
		s.net.DelayReplies(800 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Convert(ctx, from, Terms{Flags: "u"}); !errors.Is(err, server.ErrUnavailable) {
			t.Errorf("the first upgrade: %v", err)
		}
		time.Sleep(ttl)
		s.net.Restore()
		s.mini.Server().SetPreHook(func(c *miniserver.Peer, command string, _ ...string) bool {
			if command == "WAIT" {
				c.WriteInt(0)
			}
			return command == "WAIT"
		})
		late := errors.New("not acknowledged")
		s.cfg.ReplicaAck, s.cfg.NotAcknowledged = ReplicaAck{Replicas: 1, Timeout: time.Second}, func(int, int, bool, error) error { return late }
		_, err := l.Convert(context.Background(), from, Terms{Flags: "u"})
		if lost := from.Err(); !errors.Is(err, late) || !errors.Is(err, server.ErrLost) || !errors.Is(lost, late) {
			t.Errorf("the second upgrade: %v; the read lease: %v", err, lost)
		}
		s.mini.Server().SetPreHook(nil)
	})
}
