package lockkeeper

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// Holder is a lease as the server sees it: in whichever process, and by the server's clock.
type Holder struct {
	Token     string
	Keeper    string        // the Keeper.ID of the process; "" if the lease is that of another library
	Fence     uint64        // 0 likewise
	ExpiresIn time.Duration // until the lease ends if it is not renewed
}

// Waiter is a request that stands in line, as the server sees it.
type Waiter struct {
	Token    string
	Keeper   string        // the Keeper.ID of the process
	WaitTime time.Duration // since it came
	Alive    bool          // whether its heartbeat counts; one that is not live is taken out at its turn, if not before
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

// keeperOf returns the id of the keeper that a token is of, or "" for the token of another library.
func keeperOf(token string) string {
	t, _ := protocol.ParseToken(token)
	return t.Keeper
}
