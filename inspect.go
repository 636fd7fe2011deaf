package lockkeeper

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// Holder is a lease at the server, of any process. Times are by the server's clock.
type Holder struct {
	Token     string
	Keeper    string        // the Keeper.ID of the holder; "" if another library holds the lock
	Fence     uint64        // 0 if another library holds the lock
	ExpiresIn time.Duration // until the lease expires if it is not renewed
}

// Waiter is a queued request at the server, of any process. Times are by the server's clock.
type Waiter struct {
	Token    string
	Keeper   string        // the Keeper.ID of the waiter
	WaitTime time.Duration // since it was queued
	Alive    bool          // its heartbeat has not timed out; otherwise it is removed at its turn at the latest
}

func newHolders(list []engine.Holder) []Holder {
	all := make([]Holder, len(list))
	for i, h := range list {
		all[i] = Holder{h.Token, keeperOf(h.Token), h.Fence, h.ExpiresIn}
	}
	return all
}

func newWaiters(list []engine.Waiter) []Waiter {
	all := make([]Waiter, len(list))
	for i, w := range list {
		all[i] = Waiter{w.Token, keeperOf(w.Token), w.WaitTime, w.HeartbeatLeft > 0}
	}
	return all
}

// keeperOf returns the id of the keeper that created a token, or "" if another library did.
func keeperOf(token string) string {
	t, _ := protocol.ParseToken(token)
	return t.Keeper
}
