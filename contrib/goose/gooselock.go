// Package gooselock lets github.com/pressly/goose/v3 use a lock of Lockkeeper: of all processes that migrate a database, one
// does so at a time, with any database that goose supports.
//
//	locker, err := gooselock.New(m) // a mutex, a fair lock, a redlock
//	…
//	provider, err := goose.NewProvider(dialect, db, migrations, goose.WithLocker(locker))
//	…
//	err = locker.Do(ctx, func(ctx context.Context) error {
//		_, err := provider.Up(ctx)
//		return err
//	})
//
// # When the lease is lost
//
// If the process was paused, or Redis did not answer for the TTL, another process may migrate the database. Within [Locker.Do] the
// context of the migration ends then. Without it the migration goes on, because goose.WithLocker has no means to stop it, and the
// provider's method returns [lockkeeper.ErrLost] when it has finished.
//
// # What is not promised
//
// That two processes never migrate at the same time: a database does not check fencing tokens, so a statement that it already
// executes may still take effect after the loss. goose's HasPending and GetVersions create the table of versions without the
// lock; outside of Do, so does Up before it locks.
package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/pressly/goose/v3/lock"
)

// releaseTimeout bounds for how long a release waits for Redis. It goes on in the background after that.
const releaseTimeout = 3 * time.Second

// Locker is a [lock.Locker] for goose.WithLocker. It holds one lease at a time. Several providers of a process can share it. It is
// safe for concurrent use.
type Locker struct {
	locker lockkeeper.Locker
	turn   chan struct{} // has an element while a lease is requested or held, also if it was lost

	mu    sync.Mutex        // guards lease
	lease *lockkeeper.Lease // from Lock until Unlock
}

var _ lock.Locker = (*Locker)(nil)

// New returns a Locker that uses a lock of any kind that one holder has at a time. All processes that migrate the same database
// must use the same lock. It sends nothing. The error is [lockkeeper.ErrInvalid] if the locker is nil.
func New(locker lockkeeper.Locker) (*Locker, error) {
	if v := reflect.ValueOf(locker); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("gooselock: %w: the locker is nil", lockkeeper.ErrInvalid)
	}
	return &Locker{locker: locker, turn: make(chan struct{}, 1)}, nil
}

// Lock waits until it holds the lock, until ctx ends, or until the keeper's retry policy gives up. It also waits while this
// Locker holds the lock. The lease is renewed until Unlock. Errors are those of [lockkeeper.Locker], and
// [lockkeeper.ErrNotAcquired] if ctx ended while this Locker held the lock. Nothing is held after an error.
//
// With a context of [Locker.Do] it returns nil at once, or the error of the lease if that has ended. The database is not used.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	if lease := l.leaseOf(ctx); lease != nil {
		return lease.Err()
	}
	lease, err := l.acquire(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.lease = lease
	l.mu.Unlock()
	return nil
}

// Unlock releases the lock, also if ctx has ended. It returns [lockkeeper.ErrLost] if the lease was lost before,
// [lockkeeper.ErrReleased] if the keeper was closed, and an error if Lock has not succeeded before. If Redis has not answered within
// three seconds, it returns [lockkeeper.ErrUnavailable], and the release goes on in the background until the lease has expired.
//
// With a context of [Locker.Do] it releases nothing, and returns the error of the lease if that has ended.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	if lease := l.leaseOf(ctx); lease != nil {
		return lease.Err()
	}
	l.mu.Lock()
	lease := l.lease
	l.lease = nil
	l.mu.Unlock()
	if lease == nil {
		return fmt.Errorf("gooselock: %q is not locked", l.locker.Name())
	}
	return l.release(ctx, lease)
}

// Do acquires the lock as Lock does, calls fn with a context that ends when the lease is lost, and releases the lock as Unlock does,
// even if fn panics. Calls of providers with that context run under this lease, any number of them, and do not exclude one another. A
// Go migration finds the lease, and so the fence, by [lockkeeper.LeaseFromContext].
//
// It returns the error of fn. If the lease was lost, the error matches [lockkeeper.ErrLost] as well, even if fn returned nil.
func (l *Locker) Do(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	if l.leaseOf(ctx) != nil {
		return fn(ctx) // the outer Do reports the end of the lease
	}
	lease, err := l.acquire(ctx)
	if err != nil {
		return err
	}
	defer func() {
		switch e := l.release(ctx, lease); {
		case err == nil:
			err = e
		case e != nil && !errors.Is(err, lockkeeper.ErrLost):
			err = fmt.Errorf("%w; %w", err, e)
		}
	}()
	return fn(context.WithValue(lease.Context(ctx), leaseKey{l}, lease))
}

// leaseKey is the key of the lease of Do in its context.
type leaseKey struct{ locker *Locker }

// leaseOf returns the lease of Do, or nil if ctx is not a context of Do.
func (l *Locker) leaseOf(ctx context.Context) *lockkeeper.Lease {
	lease, _ := ctx.Value(leaseKey{l}).(*lockkeeper.Lease)
	return lease
}

// acquire waits for the other users of this Locker, then for those of the lock. So work under a lease that was lost has ended before
// this Locker requests another one.
func (l *Locker) acquire(ctx context.Context) (*lockkeeper.Lease, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("gooselock: %q: %w", l.locker.Name(), ended(ctx))
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("gooselock: %q: %w: it is held in this process: %w", l.locker.Name(), lockkeeper.ErrNotAcquired, ended(ctx))
	}
	lease, err := l.locker.Lock(ctx)
	if err != nil {
		<-l.turn
		return nil, err
	}
	return lease, nil
}

// release ends a lease of acquire. The error is also not nil if it had ended before.
func (l *Locker) release(ctx context.Context, lease *lockkeeper.Lease) error {
	defer func() { <-l.turn }()
	ended := lease.Err() // by Keeper.Close, of which Release returns nothing
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		return err
	}
	return ended
}

// ended returns an error that matches ctx.Err() and the cause of ctx, which has ended.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}
