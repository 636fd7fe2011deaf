package admin

import (
	"context"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// BreakOptions say what Break ends, and why. Exactly one of Token and All must be set, so they must not be nil.
type BreakOptions struct {
	// Token is that of the holder or waiter to end. Default "": All must be set.
	Token string

	// All ends all holders and waiters. Token must then be empty. Default false.
	All bool

	// Reason says why, to the holders, the waiters and the log. Printable text of at most 256 bytes. Default "".
	Reason string

	// By says who breaks the lock, likewise. Default the [lockkeeper.Options] Owner of the keeper, or its ID if it has no Owner.
	By string
}

// BreakResult is what Break ended.
type BreakResult struct {
	Holders  []lockkeeper.Holder // as they were before
	Waiters  []lockkeeper.Waiter
	Notified int // how many of them were sent a message that their process receives
}

// Break ends the lease or the queued request of a token, or with All every lease and request that it finds, of a lock of any
// kind and of any process. The lock is then granted to those who wait for it, as after a release.
//
// Use it when a holder cannot be stopped in another way. It is not safe by itself: a holder goes on until its process learns of
// the break. Until then others may hold the lock at the same time, and only a store that checks fences rejects what the former
// holder writes.
//
// A holder learns of it at once, by a message, if its keeper is subscribed. A keeper subscribes when it is granted its first lease or
// waits for the first time; on a Cluster, only while it waits for this lock. Otherwise, or if the message is lost,
// the holder learns of it by its next renewal, which is refused: after a third of the TTL at most, and with NoRenewal only when
// the TTL is over.
//
// The holder's lease ends with an error that matches [lockkeeper.ErrLost] and is a *[lockkeeper.BrokenError], unless the holder
// learns of it only when its time is over, or more than a minute later; context.Cause of its contexts returns the same, and so
// does a Release that finds the lease gone. For a minute Adopt of its token returns that error, too. A waiting call returns an
// error that matches [lockkeeper.ErrNotAcquired] and is a *BrokenError likewise; it does not return to the queue. Calls that wait
// inside the process, behind the one that is queued, are not ended. For a minute, copies of a broken request that arrive late are
// refused. Both keepers log a warning.
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
// errors are those of [Inspect], and [lockkeeper.ErrInvalid] for the options.
func Break(ctx context.Context, k *lockkeeper.Keeper, kind lockkeeper.Kind, name string, opts *BreakOptions) (*BreakResult, error) {
	lock, err := views.LockOf(access.ServerOf(k), string(kind), name)
	if err != nil {
		return nil, err
	}
	var o views.BreakOptions
	if opts != nil {
		o = views.BreakOptions(*opts)
	}
	b, err := views.Break(ctx, lock, o)
	if b == nil {
		return nil, err
	}
	return &BreakResult{Holders: holders(b.Holders), Waiters: waiters(b.Waiters), Notified: b.Notified}, err
}
