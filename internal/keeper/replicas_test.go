package keeper

import (
	"context"
	"errors"
	"testing"
	"time"

	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestUpgradeAgainAwaitsReplicas: an upgrade that follows one whose outcome is unknown waits for replicas as well. If they do not have it, the
// lease reads as before.
func TestUpgradeAgainAwaitsReplicas(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := must.Get(s.Keeper.Lock(Spec{Scripts: lua.RWLock, Name: "x", TTL: 10 * ttl}))(s)
		from := must.Get(l.Try(context.Background(), Terms{Flags: "r"}))(s)
		s.net.DelayReplies(800 * time.Millisecond)
		check.Is(s, l.Upgrade(must.Within(s, 100*time.Millisecond), from, nil), server.ErrUnavailable, "the first upgrade")
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
		if err := l.Upgrade(context.Background(), from, nil); !errors.Is(err, late) || errors.Is(err, server.ErrLost) || from.Err() != nil {
			t.Errorf("the second upgrade: %v; the lease: %v", err, from.Err())
		}
		s.mini.Server().SetPreHook(nil)
		s.cfg.ReplicaAck = ReplicaAck{}
		s.must(must.Get(l.Try(context.Background(), Terms{Flags: "r"}))(s).Release(context.Background()))
	})
}
