package lockkeeper

import (
	"context"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
)

// Locker is a lock on one name, whatever its kind. *mutex.Mutex, *fair.Lock and *redlock.Lock are Lockers, and so is
// *rwlock.Lock, for writing. Its RLocker method returns a Locker for reading. The Locker and LockerN methods of
// *semaphore.Semaphore and *ratelimit.ConcurrentLimiter return one for a number of permits.
//
// It is not a sync.Locker, whose methods have no error: a lock that is held by a server may be unavailable, and lost while
// it is held.
type Locker interface {
	// Name returns the name of the lock.
	Name() string

	// Key returns what identifies the lock among all locks, in all processes: of those of this module, the Redis key of the lease.
	// LockAll acquires locks in the order of their keys.
	Key() string

	// Lock waits until the lock is granted, until ctx ends, or until the keeper's retry policy gives up, and returns the lease.
	// The package comment documents the errors.
	Lock(ctx context.Context) (*Lease, error)

	// TryLock acquires the lock if that is possible at once. It never waits for another holder. The error is ErrNotAcquired
	// if the lock is held elsewhere or others are queued before the caller; others are as for Lock.
	TryLock(ctx context.Context) (*Lease, error)
}

// Kind is a kind of lock. It is the name of the package that implements it, which has a constant for it: mutex.Kind, fair.Kind,
// rwlock.Kind, semaphore.Kind, ratelimit.Kind, once.Kind and redlock.Kind. Locks of different kinds do not exclude one another,
// whatever their names, but a redlock and a mutex of one name do, at each server of the redlock.
type Kind string

// WithNote returns a context whose acquisitions have a note for people, such as the id of the job that needs the lock. It is
// shown beside the lock's holders and waiters: [Holder.Note] and [Waiter.Note], lockkeeper show, the pages of package
// inspector. Everybody who can read the server's keys can read it.
//
// A note has at most 64 bytes and no characters that cannot be printed; with any other, an acquisition fails with [ErrInvalid].
// It is a part of the token, at 4 bytes for 3, and costs no command. A lease keeps its note when it is converted. One that callers of a
// process share (option Linger) has the note of the first of them.
func WithNote(ctx context.Context, note string) context.Context { return keeper.WithNote(ctx, note) }
