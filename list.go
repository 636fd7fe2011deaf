package lockkeeper

import (
	"context"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// Entry is a lock that List found: a name of one kind with a holder or a waiter. Times are by the server's clock.
type Entry struct {
	Kind        string        // the kind of the lock, such as "mutex"; the same as in Event
	Name        string        // without the prefix
	Holders     int           // the number of leases
	Waiters     int           // the number of queued requests, alive or not
	ExpiresIn   time.Duration // until the last lease expires if it is not renewed; negative for a key without an expiry; 0 without a holder
	LongestWait time.Duration // of the waiters
	Keeper      string        // the Keeper.ID of one holder, whose lease ends last; "" if there is none, or another library holds the lock
	Owner       string        // the Options.Owner of this keeper, with ListOptions.Owners; "" if it is not known
}

// ListOptions are the options of List. Nil, and the zero value of each field, mean the defaults.
type ListOptions struct {
	// Kinds are the kinds of locks to list. Default: all.
	Kinds []string

	// Match is a pattern that names must match, as that of the command KEYS. Default: every name.
	Match string

	// WaitingLonger lists only locks with a waiter that has waited for longer than this. Default 0: all.
	WaitingLonger time.Duration

	// Batch is the number of keys that the server looks at in one step. Default 500.
	Batch int

	// Owners says that Entry.Owner is wanted. It takes a GET for each keeper that is found.
	Owners bool

	// Progress, if set, is called after each step with the number of keys that were looked at so far, and the approximate number
	// of all keys. At the end the two are equal. It needs the command DBSIZE.
	Progress func(scanned, total int64)
}

// List returns an iterator over the locks under the keeper's prefix that are held or waited for, in no particular order.
// Nothing is sent before the loop begins. An error is yielded with a zero Entry, and ends the loop.
//
// It finds them by SCAN, on a Cluster at every primary, and looks them up by a few reads for each name. After each answer it
// pauses for as long as that took. So it uses at most half of one CPU of the server; docs/operations.md has figures. The memory
// it needs does not depend on the number of locks. During the loop it occupies one connection of the client's main pool for
// each primary.
//
// Each entry is read at a time of its own. A lock that is held or waited for during the whole loop is listed, unless it changes
// from one to the other just as its keys are read, or a Cluster moves its slot meanwhile. Others may be listed or not. A lock
// may be listed twice.
//
// At each of its servers, a redlock is listed as a mutex, because it has the same keys. So is any string under the prefix, as Holder
// of a mutex reports it: another library's lock, but also a value of the application, which with NoPrefix can be many. A key of any
// other type that is not a lock's is skipped.
//
// The errors match those of Holders: ErrUnavailable, ErrClosed, ctx.Err(), ErrInvalid for an option. A connection that breaks
// ends the loop with ErrUnavailable, since another server could not continue it; call List again. The Redis user needs
// permission for the commands that docs/operations.md lists.
func List(ctx context.Context, k *Keeper, opts *ListOptions) iter.Seq2[Entry, error] {
	var o views.ListOptions
	if opts != nil {
		o = views.ListOptions(*opts)
	}
	return func(yield func(Entry, error) bool) {
		views.List(ctx, access.ServerOf(k), o, func(e views.Entry, err error) bool { return yield(Entry(e), err) })
	}
}

// Inspection is the state of one lock.
type Inspection struct {
	Kind    string
	Name    string
	Holders []Holder // in the order of their grants
	Waiters []Waiter // in the order of the queue
	Fence   uint64   // the last one that was drawn; 0 if it is not known
	Limits  *Limits  // of a semaphore or rate limit that was used; else nil

	// RunAgainIn is how long a job of package once is not run again, because it has succeeded in this period; else 0.
	RunAgainIn time.Duration
}

// Limits are the limits in force of a semaphore or rate limit, and what is used of them.
type Limits struct {
	Limit         int           // of permits: held at once or, of a rate limit, in any Window
	Used          int           // of Limit
	Window        time.Duration // of a rate limit
	MaxConcurrent int           // of a rate limit with permits that are held; else 0
	Held          int           // of MaxConcurrent
	PausedFor     time.Duration // how long a pause of the rate limit still lasts; 0 if there is none
}

// ByClock reports whether permits return by the clock alone, as of a rate limit without MaxConcurrent. Then nothing is held:
// Inspection.Holders are the requests whose permits have not returned, Holder.ExpiresIn is when they do, at most a Window after
// they were granted, and Break does not end them. It may be called on nil.
func (l *Limits) ByClock() bool { return l != nil && l.Window > 0 && l.MaxConcurrent == 0 }

// Inspect returns who holds a lock and who waits for it, of any kind: mutex, fair, rwlock, semaphore, ratelimit, once or redlock. With
// redlock it is the part at this keeper's server. Of a rate limit without MaxConcurrent, Holders are those whose permits have not
// returned yet; see Limits.ByClock.
//
// It blocks for a few round trips, more if there are more than 500 holders or waiters, and the lock may change between these. It
// writes nothing. The errors are those of Holders; ErrInvalid if the kind is unknown or the name is not valid.
func Inspect(ctx context.Context, k *Keeper, kind, name string) (*Inspection, error) {
	lock, err := views.LockOf(access.ServerOf(k), kind, name)
	if err != nil {
		return nil, err
	}
	in, err := views.Inspect(ctx, lock)
	if err != nil {
		return nil, err
	}
	return &Inspection{
		Kind: kind, Name: name, Holders: newHolders(in.Holders), Waiters: newWaiters(in.Waiters), Fence: in.Fence, Limits: (*Limits)(in.Limits),
		RunAgainIn: in.RunAgainIn,
	}, nil
}
