package lockkeeper

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
)

// BreakOptions say what Break ends. Exactly one of Token and All is set.
type BreakOptions struct {
	Token  string // of one holder or waiter
	All    bool   // all holders and waiters; Token must be empty
	Reason string // what the holders and waiters are told: printable text of at most 256 bytes
	By     string // who does it, for them and for the log, likewise. Default: the Options.Owner of the keeper, else its ID
}

// Broken is what Break ended.
type Broken struct {
	Holders []Holder // as they were before
	Waiters []Waiter
	Told    int // how many of them have been sent a message that their process receives
}

// BrokenError is the reason for which a lease was lost, or a request refused, that somebody ended with Break. Find it with errors.As.
// The error of the lease matches ErrLost as well, that of a request ErrNotAcquired.
type BrokenError struct {
	Reason string
	By     string
}

// Error implements error.
func (e *BrokenError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("broken by %q", e.By)
	}
	return fmt.Sprintf("broken by %q: %s", e.By, e.Reason)
}

// Break ends the lease or the queued request of a token, or with All every lease and request that it finds, of a lock of any kind and of
// any process. Those who wait for the lock are then granted it, as after a release. The kinds are those of Inspect.
//
// Use it when a holder cannot be stopped in another way: it is not safe by itself. A holder goes on until its process has heard. It is
// told by a message, at once, if its keeper is subscribed: a keeper is if it has waited for a lock, or has renewed a lease, and on a
// Cluster only while it waits for this lock or retains it. Otherwise, or if the message is lost, it hears by its next renewal,
// which is refused: after a third of the ttl at most, and with NoRenewal only when the ttl is over. Until then others may hold
// the lock beside it, and only a store that checks fences rejects what it writes: the fence of the next lease is larger.
//
// The holder's lease ends with an error that matches ErrLost and, if the message came, a *BrokenError; so do its contexts' causes. A
// waiting call returns an error that matches ErrNotAcquired, and *BrokenError likewise; it does not return to the queue. Calls that
// wait inside the process, behind the one that is queued, are not ended. For a minute, copies of a broken request that arrive late
// are refused. Both keepers log a warning.
//
// It returns what was ended. A token that has nothing is no error, and is not in the result; it may have ended meanwhile. Of a
// rate limit, only leases and waiters can be ended: permits that return by the clock do so. With redlock, Break ends the part at
// this keeper's server, and says nothing to the holder before its renewal; the lease is lost when a majority of its parts is,
// so break them all within a minute. A job of once that is running is ended like a lease, and its record stays. With All, waiters
// and holders that come meanwhile stay.
//
// It blocks for a few round trips and one for each token, until ctx ends or the retry policy gives up. After an error it also returns
// what was ended before; the token at which it failed may have been ended as well. Calling it again is safe. The errors are those of
// Holders, and ErrInvalid for the kind, the name or the options.
func Break(ctx context.Context, k *Keeper, kind, name string, opts BreakOptions) (*Broken, error) {
	lock, err := access.EngineOf(k).LockOf(kind, name)
	if err != nil {
		return nil, err
	}
	b, err := lock.Break(ctx, engine.BreakOptions(opts))
	if b == nil {
		return nil, err
	}
	return &Broken{Holders: newHolders(b.Holders), Waiters: newWaiters(b.Waiters), Told: b.Told}, err
}
