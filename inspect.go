package lockkeeper

import (
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// Holder is a lease at the server, of any process. Times are by the server's clock.
//
// The methods Holder, Holders and Waiters of a lock read who holds it and who waits for it, in all processes. They change
// nothing. They block for a round trip per 500 entries, and make up to three attempts. An entry that is added or removed
// meanwhile may be missing. The error matches ctx.Err(), [ErrUnavailable] or [ErrClosed], or is an error reply of Redis.
//
// The owner of an entry is the label of its keeper ([Options] Owner). It is stored in Redis once per keeper, with the first
// request and every ten minutes of use, for 24 hours at a time.
type Holder struct {
	Token     string        // as of Lease.Token
	Keeper    string        // the Keeper.ID of the holder; "" if another library holds the lock
	Owner     string        // the Options.Owner of the holder's keeper; "" if it is not known
	Since     time.Time     // when it was granted, or converted; zero if another library holds the lock
	Fence     uint64        // 0 if another library holds the lock
	ExpiresIn time.Duration // until the lease expires if it is not renewed, or permits return by the clock; negative for another library's key without an expiry
	Permits   int           // of a semaphore or rate limit: how many it has; else 0
	Writes    bool          // of a read-write lock: it is a write lease, not a read lease; else false

	// Unconfirmed is set by admin.Inspect if the lease was handed to a waiter and its keeper has not renewed it yet. Until then it lasts for
	// the HeartbeatTimeout only, and for the TTL afterwards.
	Unconfirmed bool

	// Note is that of the call that was granted the lease (WithNote); "" if it had none.
	Note string

	// Ahead says that the process has taken these permits of a rate limit ahead, for its callers (option Ahead of package ratelimit).
	Ahead bool
}

// Waiter is a queued request at the server, of any process. Times are by the server's clock.
type Waiter struct {
	Token    string        // of the request; its lease will have the same, unless the request is an upgrade
	Keeper   string        // the Keeper.ID of the waiter
	Owner    string        // the Options.Owner of the waiter's keeper; "" if it is not known
	WaitTime time.Duration // since it was queued
	Alive    bool          // its heartbeat has not timed out; otherwise it is removed at its turn at the latest

	// HeartbeatAge is the time since its last heartbeat, which is less than a HeartbeatInterval and some ms if all is well.
	HeartbeatAge time.Duration

	Permits int    // of a semaphore or rate limit: how many it asks for; else 0
	Writes  bool   // of a read-write lock: it asks for a write lease, not a read lease; else false
	Note    string // of the call (WithNote); "" if it has none
}

func newHolders(list []views.Holder) []Holder {
	all := make([]Holder, len(list))
	for i, h := range list {
		t, _ := protocol.ParseToken(h.Token) // zero for the token of another library
		all[i] = Holder{h.Token, t.Keeper, h.Owner, granted(h.Fence), h.Fence, h.ExpiresIn, permits(t), writes(t) != h.Converted, h.Unconfirmed, t.Note, strings.Contains(t.Flags, protocol.FlagBlock)}
	}
	return all
}

func newWaiters(list []views.Waiter) []Waiter {
	all := make([]Waiter, len(list))
	for i, w := range list {
		t, _ := protocol.ParseToken(w.Token)
		all[i] = Waiter{w.Token, t.Keeper, w.Owner, w.WaitTime, w.HeartbeatLeft > 0, w.HeartbeatAge, permits(t), writes(t), t.Note}
	}
	return all
}

// granted returns when a fence was drawn: a fence is the server's time in µs, unless the one before it was larger.
func granted(fence uint64) time.Time {
	if fence == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(fence))
}

// permits returns how many permits a token is for: its number, if it is of a semaphore or rate limit.
func permits(t protocol.Token) int {
	if strings.ContainsAny(t.Flags, protocol.FlagHeld+protocol.FlagByClock) {
		return int(t.Number)
	}
	return 0
}

// writes reports whether a token is of a writer, or of a reader that is being upgraded.
func writes(t protocol.Token) bool {
	return strings.ContainsAny(t.Flags, protocol.FlagWrite+protocol.FlagUpgrade)
}
