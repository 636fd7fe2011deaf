package lockkeeper

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// BreakOptions say what Break ends, and why. Exactly one of Token and All must be set.
type BreakOptions struct {
	Token  string // of one holder or waiter
	All    bool   // all holders and waiters; Token must be empty
	Reason string // why, for the holders, the waiters and the log: printable text of at most 256 bytes
	By     string // who breaks the lock, likewise. Default: the Options.Owner of the keeper, or its ID if it has no Owner
}

// Broken is what Break ended.
type Broken struct {
	Holders []Holder // as they were before
	Waiters []Waiter
	Told    int // how many of them were sent a message that their process receives
}

// BrokenError says that a lease or a waiting request was ended with Break, by whom and why. Find it with errors.As. The error
// of a lease matches ErrLost as well, that of a request ErrNotAcquired.
type BrokenError struct {
	Reason string // of BreakOptions
	By     string // of BreakOptions
}

// Error implements error.
func (e *BrokenError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("broken by %q", e.By)
	}
	return fmt.Sprintf("broken by %q: %s", e.By, e.Reason)
}

// Break ends the lease or the queued request of a token, or with All every lease and request that it finds, of a lock of any
// kind and of any process. The lock is then granted to those who wait for it, as after a release. The kinds are those of
// Inspect.
//
// Use it when a holder cannot be stopped in another way. It is not safe by itself: a holder goes on until its process learns of
// the break. Until then others may hold the lock at the same time, and only a store that checks fences rejects what the former
// holder writes.
//
// A holder learns of it at once, by a message, if its keeper is subscribed. A keeper subscribes when it is granted its first lease or
// waits for the first time; on a Cluster, only while it waits for this lock or retains it. Otherwise, or if the message is lost,
// the holder learns of it by its next renewal, which is refused: after a third of the TTL at most, and with NoRenewal only when
// the TTL is over.
//
// The holder's lease ends with an error that matches ErrLost and is a *BrokenError, unless the holder learns of it only when its
// time is over, or more than a minute later; context.Cause of its contexts returns the same, and so does a Release that finds the
// lease gone. For a minute Adopt of its token returns that error, too. A waiting call returns an error that matches ErrNotAcquired,
// and *BrokenError likewise; it does not return to the queue. Calls that wait inside the process, behind the one that is queued, are
// not ended. For a minute, copies of a broken request that arrive late are refused. Both keepers log a warning.
//
// Break returns what it ended. A token that holds nothing and waits for nothing, perhaps because it has ended meanwhile, is no
// error and is not in the result. With All, holders and waiters that arrive during the call are not ended.
//
// Of a rate limit, leases and waiters can be ended; permits that return by the clock cannot. A running job of once is ended
// like a lease; a record of success stays. Of a redlock, Break ends the part at this keeper's server, of which the holder
// learns by its next renewal. The lease is lost when a majority of its parts is lost, so break them all within a minute; its error
// is a *BrokenError if one of the lost parts was broken.
//
// Break blocks for a few round trips and one for each token, until ctx ends or the retry policy gives up. After an error it
// also returns what was ended before; the token at which it failed may have been ended as well. Calling it again is safe. The
// errors are those of Holders, and ErrInvalid for the kind, the name or the options.
func Break(ctx context.Context, k *Keeper, kind, name string, opts BreakOptions) (*Broken, error) {
	lock, err := views.LockOf(access.ServerOf(k), kind, name)
	if err != nil {
		return nil, err
	}
	b, err := views.Break(ctx, lock, views.BreakOptions(opts))
	if b == nil {
		return nil, err
	}
	return &Broken{Holders: newHolders(b.Holders), Waiters: newWaiters(b.Waiters), Told: b.Told}, err
}
