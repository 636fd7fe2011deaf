package lockkeeper

import "context"

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
