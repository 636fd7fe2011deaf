package lockkeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// LockAll acquires several locks, of any kinds and keepers, all or none of them. It acquires one after the other in the order
// of their Redis keys, whatever the order of the arguments, so that concurrent calls of LockAll cannot deadlock. They can if a
// caller holds another lock already when it calls LockAll, or acquires another one while it holds these.
//
// While LockAll waits for a lock, it holds and renews those before it, and others have to wait for these. So acquire few locks
// together, and do not combine a frequently used lock with one that is held for long. LockAll queues for one lock at a time, so
// a fair lock serves the callers of LockAll in the order in which they reached that lock, not in the order in which they called
// LockAll.
//
// LockAll blocks until it has all locks, until ctx ends, or until the Lock method of one fails, whose error it then returns.
// The error matches ErrLost if a lock that it held already was lost while it waited for another. Before it returns an error, it
// releases what it has acquired, and waits for the answers for at most a second; the releases that were not answered go on in
// the background. Permits that it has taken from a rate limit remain used. If a Locker panics, LockAll releases what it has acquired,
// too, and the panic continues.
//
// The error is ErrInvalid, and nothing is sent, if there is no locker, or one is nil, or two have the same key: the same lock twice,
// for reading and writing, or by two keepers. (Two keepers of different servers may have locks of the same key, but it is not
// known that they are different, and they would have no order; use names that differ.) If a Locker returns neither a lease nor
// an error, the error is ErrInvalid as well.
func LockAll(ctx context.Context, lockers ...Locker) (*Leases, error) {
	return acquireAll(ctx, lockers, Locker.Lock)
}

// TryLockAll acquires several locks if all of them are free, and otherwise none. It tries one after the other, so it blocks for
// a round trip for each; meanwhile others can find a lock held that TryLockAll then releases. The error matches ErrNotAcquired
// if one of the locks is held elsewhere. Everything else is as with LockAll.
func TryLockAll(ctx context.Context, lockers ...Locker) (*Leases, error) {
	return acquireAll(ctx, lockers, Locker.TryLock)
}

// acquireAll acquires the locks in order by one of the two methods.
func acquireAll(ctx context.Context, lockers []Locker, acquire func(Locker, context.Context) (*Lease, error)) (*Leases, error) {
	keys, err := keysOf(lockers)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithCancel(ctx)
	group := lifecycle.NewGroup()
	unwatch := group.OnEnd(func(error) { cancel() }) // so waiting ends also when a lease that is held ends
	all := &Leases{keys: keys, leases: make([]*Lease, len(lockers)), group: group}
	acquired := false
	defer func() { // also if a Locker panics
		unwatch()
		cancel()
		if !acquired {
			_ = all.Release(waiting) // which has ended, so for at most a second
		}
	}()
	for n, i := range byKey(keys) {
		lease, err := acquire(lockers[i], waiting)
		all.leases[i] = lease // nil after an error
		if lease != nil {
			group.Add(lease.handle)
		}
		if last := n == len(keys)-1; last || err != nil || waiting.Err() != nil {
			if lost := all.ended(); lost != nil && (err == nil || ctx.Err() == nil) {
				if err = lost; !errors.Is(lost, ErrLost) { // only Close has released it
					err = fmt.Errorf("lockkeeper: %w: %w", ErrClosed, lost)
				}
			}
		}
		if err == nil && lease == nil {
			err = server.Invalid("locker %d of %d, a %T, has returned neither a lease nor an error", i+1, len(lockers), lockers[i])
		}
		if err != nil {
			return nil, err
		}
	}
	acquired = true
	return all, nil
}

// keysOf returns the keys of the lockers, all of them different. The error is ErrInvalid.
func keysOf(lockers []Locker) ([]string, error) {
	if len(lockers) == 0 {
		return nil, server.Invalid("there are no lockers")
	}
	keys, first := make([]string, len(lockers)), make(map[string]int, len(lockers))
	for i, l := range lockers {
		if server.IsNil(l) {
			return nil, server.Invalid("locker %d of %d is nil", i+1, len(lockers))
		}
		key := l.Key()
		if before, ok := first[key]; ok {
			return nil, server.Invalid("lockers %d and %d of %d, %T %q and %T %q, have the same key %q, and a lock can be acquired once only",
				before+1, i+1, len(lockers), lockers[before], lockers[before].Name(), l, l.Name(), key)
		}
		keys[i], first[key] = key, i
	}
	return keys, nil
}

// byKey returns the indexes of the keys in their order.
func byKey(keys []string) []int {
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
	return order
}
