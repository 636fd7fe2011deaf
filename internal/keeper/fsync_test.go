package keeper

import (
	"context"
	"testing"
	"time"

	miniserver "github.com/alicebob/miniredis/v2/server"
)

// TestFsyncWaitsForTimeout: with Fsync, an acquisition waits for as long as Timeout says, also if the client's ReadTimeout is shorter.
func TestFsyncWaitsForTimeout(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.must(s.hold("y").Release(context.Background())) // the server has started
		s.mini.Server().SetPreHook(func(c *miniserver.Peer, command string, _ ...string) bool {
			if command != "WAITAOF" {
				return false
			}
			time.Sleep(readTimeout + 500*time.Millisecond)
			c.WriteLen(2)
			c.WriteInt(1)
			c.WriteInt(1)
			return true
		})
		s.cfg.ReplicaAck = ReplicaAck{Replicas: 1, Fsync: true, Timeout: 2 * readTimeout}
		s.cfg.NotAcknowledged = func(_, _ int, _ bool, err error) error { return err }
		s.must(s.hold("x").Release(context.Background()))
	})
}
