package admin

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// LockState is the state of one lock.
type LockState struct {
	Kind    lockkeeper.Kind
	Name    string
	Holders []lockkeeper.Holder // in the order of their grants
	Waiters []lockkeeper.Waiter // in the order of the queue
	Fence   uint64              // the last one that was drawn; 0 if it is not known
	Limits  *Limits             // of a semaphore or rate limit that was used; else nil

	// RunAgainIn is how long a job of package once is not run again, because it has succeeded in this period; negative if the
	// record of that has no expiry; else 0.
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
// LockState.Holders are the requests whose permits have not returned, Holder.ExpiresIn is when they do, at most a Window after
// they were granted, and Break does not end them. It may be called on nil.
func (l *Limits) ByClock() bool { return l != nil && l.Window > 0 && l.MaxConcurrent == 0 }

// Inspect returns who holds the lock of a kind, such as mutex.Kind, and a name, and who waits for it. Of a redlock it is the part at
// this keeper's server. Of a rate limit without MaxConcurrent, Holders are those whose permits have not returned yet; see
// [Limits.ByClock].
//
// It blocks for a few round trips, more if there are more than 500 holders or waiters, and the lock may change between these. It
// writes nothing. The error matches [lockkeeper.ErrUnavailable], [lockkeeper.ErrClosed] or ctx.Err(), [lockkeeper.ErrInvalid] if the
// keeper is nil, the kind is unknown or the name is not valid, or is an error reply of Redis.
func Inspect(ctx context.Context, k *lockkeeper.Keeper, kind lockkeeper.Kind, name string) (*LockState, error) {
	lock, err := views.LockOf(access.ServerOf(k), string(kind), name)
	if err != nil {
		return nil, err
	}
	in, err := views.Inspect(ctx, lock)
	if err != nil {
		return nil, err
	}
	return &LockState{
		Kind: kind, Name: name, Holders: holders(in.Holders), Waiters: waiters(in.Waiters), Fence: in.Fence, Limits: (*Limits)(in.Limits),
		RunAgainIn: in.RunAgainIn,
	}, nil
}

// holders returns holders as users get them.
func holders(list []views.Holder) []lockkeeper.Holder {
	all, _ := access.Holders[lockkeeper.Holder](list, nil)
	return all
}

// waiters returns waiters as users get them.
func waiters(list []views.Waiter) []lockkeeper.Waiter {
	all, _ := access.Waiters[lockkeeper.Waiter](list, nil)
	return all
}
