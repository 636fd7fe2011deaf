package admin

import (
	"context"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// LockSummary is a lock that List found: a name of one kind with a holder or a waiter. Times are by the server's clock.
type LockSummary struct {
	Kind        lockkeeper.Kind
	Name        string        // without the prefix
	Holders     int           // the number of leases
	Waiters     int           // the number of queued requests, alive or not
	ExpiresIn   time.Duration // until the last lease expires if it is not renewed; negative for a key without an expiry; 0 without a holder
	LongestWait time.Duration // of the waiters
	Keeper      string        // the lockkeeper.Keeper.ID of one holder, whose lease ends last; "" if there is none, or another library holds the lock
	Owner       string        // the lockkeeper.Options.Owner of this keeper, with ListOptions.Owners; "" if it is not known
}

// ListOptions are the options of List. Nil, and the zero value of each field, mean the defaults.
type ListOptions struct {
	// Kinds are the kinds of locks to list. Default: all.
	Kinds []lockkeeper.Kind

	// Match is a pattern that names must match, as that of the command KEYS. Default: every name.
	Match string

	// WaitingLonger lists only locks with a waiter that has waited for longer than this. Not negative. Default 0: all locks.
	WaitingLonger time.Duration

	// Batch is the number of keys that the server looks at in one step. From 1 to 10,000. Default 500.
	Batch int

	// Owners fills in LockSummary.Owner, with a GET for each keeper that is found. Default false.
	Owners bool

	// Progress is called after each step with the number of keys that were looked at so far, and the approximate number of all
	// keys. Default: none.
	//
	// At the end the two are equal. It needs the command DBSIZE.
	Progress func(scanned, total int64)

	// OneNode is called before the first lock if the server is a node of a Cluster and the keeper's client is not a Cluster client:
	// only the locks of this node are listed then. Default: a warning is logged, once a minute.
	OneNode func()
}

// List returns an iterator over the locks under the keeper's prefix that are held or waited for, in no particular order.
// Nothing is sent before the loop begins. An error is yielded with a zero LockSummary, and ends the loop.
//
// It finds them by SCAN, on a Cluster at every primary if the client is a Cluster client (see ListOptions.OneNode), and looks them up by a few reads for each name. After each answer it
// pauses for as long as that took. So it uses at most half of one CPU of the server. The memory it needs does not depend on the
// number of locks. During the loop it occupies one connection of the client's main pool for each primary.
//
// Each lock is read at a time of its own. A lock that is held or waited for during the whole loop is listed, unless it changes
// from one to the other just as its keys are read, or a Cluster moves its slot meanwhile. Others may be listed or not. A lock
// may be listed twice.
//
// At each of its servers, a redlock is listed as a mutex, because it has the same keys. So is any string under the prefix, as Holder
// of a mutex reports it: another library's lock, but also a value of the application, which with NoPrefix can be many. A key of any
// other type that is not a lock's is skipped.
//
// The error matches [lockkeeper.ErrUnavailable], [lockkeeper.ErrClosed] or ctx.Err(), [lockkeeper.ErrInvalid] if the keeper is nil
// or an option is not valid, or is an error reply of Redis. A connection that breaks ends the loop with ErrUnavailable, since
// another server could not continue it; call List again. The Redis user needs permission for the commands that
// [operations] lists.
//
// [operations]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/operations.md#permissions
func List(ctx context.Context, k *lockkeeper.Keeper, opts *ListOptions) iter.Seq2[LockSummary, error] {
	var o views.ListOptions
	if opts != nil {
		o = views.ListOptions{
			Match: opts.Match, WaitingLonger: opts.WaitingLonger, Batch: opts.Batch, Owners: opts.Owners, Progress: opts.Progress,
			OneNode: opts.OneNode,
		}
		for _, kind := range opts.Kinds {
			o.Kinds = append(o.Kinds, string(kind))
		}
	}
	return func(yield func(LockSummary, error) bool) {
		views.List(ctx, access.ServerOf(k), o, func(e views.Entry, err error) bool { return yield(newSummary(e), err) })
	}
}

func newSummary(e views.Entry) LockSummary {
	return LockSummary{lockkeeper.Kind(e.Kind), e.Name, e.Holders, e.Waiters, e.ExpiresIn, e.LongestWait, e.Keeper, e.Owner}
}
