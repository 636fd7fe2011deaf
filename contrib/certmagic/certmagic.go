// Package certmagic lets a storage of github.com/caddyserver/certmagic, and so Caddy, use the locks of Lockkeeper: at most one
// process of a fleet orders or renews a certificate at a time.
//
//	locker, err := certmagic.New(k, nil)
//	…
//	storage := certmagic.Wrap(&cm.FileStorage{Path: dir}, locker)
//
// A storage of your own can embed a *Locker instead.
package certmagic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
)

// defaultPrefix is the default of Options.Prefix.
const defaultPrefix = "certmagic:"

// releaseTimeout bounds for how long Unlock waits for Redis. The release goes on in the background after that.
const releaseTimeout = 3 * time.Second

// Options are the settings of a Locker. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// Prefix precedes the names of certmagic's locks, after the keeper's own prefix. Default "certmagic:".
	Prefix string

	// TTL is how long a lease lasts without renewal, and so how long a crashed process keeps others out. Leases are renewed until
	// Unlock. From 10 ms to 365 days. Default 30 s.
	TTL time.Duration

	// Logger receives an error for each lease that is lost. Default slog.Default().
	Logger *slog.Logger
}

// Locker implements [certmagic.Locker], [certmagic.TryLocker] and [certmagic.LockLeaseRenewer]. It is safe for concurrent use.
//
// Waiters are served in order, across all processes and within one. A lease is renewed until Unlock; a crashed process blocks
// the others for at most a TTL. If a lease is lost, the loss is logged, and Unlock returns [lockkeeper.ErrLost]; certmagic has
// no means to stop the work that goes on under the lock. Another process may lock the name then, but no other caller of this
// process before Unlock, because it is not known which of two callers of a process an Unlock is from.
type Locker struct {
	k *lockkeeper.Keeper
	o Options

	mu    sync.Mutex      // guards locks
	locks map[string]lock // by name, from Lock to Unlock, even if the lease is lost meanwhile
}

// lock is a name that is locked in this process.
type lock struct {
	lease    *lockkeeper.Lease
	unlocked chan struct{} // closed by Unlock
}

var (
	_ certmagic.Locker           = (*Locker)(nil)
	_ certmagic.TryLocker        = (*Locker)(nil)
	_ certmagic.LockLeaseRenewer = (*Locker)(nil)
)

// New returns a Locker. It sends nothing. The error is [lockkeeper.ErrInvalid] if an option is out of range.
func New(k *lockkeeper.Keeper, opts *Options) (*Locker, error) {
	l := &Locker{k: k, locks: map[string]lock{}}
	if opts != nil {
		l.o = *opts
	}
	if l.o.Prefix == "" {
		l.o.Prefix = defaultPrefix
	}
	if l.o.Logger == nil {
		l.o.Logger = slog.Default()
	}
	if _, err := l.lock("x"); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Locker) lock(name string) (*fair.Lock, error) {
	return fair.New(l.k, l.o.Prefix+name, &fair.Options{TTL: l.o.TTL})
}

// Lock waits until it holds the lock of a name, until ctx ends, or until the keeper's retry policy gives up. It also waits
// while a caller in this process has the lock, until its Unlock.
func (l *Locker) Lock(ctx context.Context, name string) error {
	f, err := l.lock(name)
	if err != nil {
		return err
	}
	unlocked := l.lostBy(name)
	for {
		if unlocked != nil {
			select {
			case <-unlocked:
			case <-ctx.Done():
				return fmt.Errorf("certmagic: %q: %w: a caller in this process has lost the lease, and has not unlocked: %w", name, lockkeeper.ErrNotAcquired, ended(ctx))
			}
		}
		lease, err := f.Lock(ctx)
		if err != nil {
			return err
		}
		if unlocked = l.keep(name, lease); unlocked == nil {
			return nil
		}
		_ = lease.Release(ctx)
	}
}

// TryLock reports whether it has acquired the lock of a name. It does not wait for another holder.
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	f, err := l.lock(name)
	if err != nil {
		return false, err
	}
	if l.lostBy(name) != nil {
		return false, nil
	}
	lease, err := f.TryLock(ctx)
	if errors.Is(err, lockkeeper.ErrNotAcquired) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if l.keep(name, lease) != nil {
		return false, lease.Release(ctx)
	}
	return true, nil
}

// lostBy returns the channel that is closed when a holder in this process, which has lost its lease, calls Unlock; nil if there
// is none.
func (l *Locker) lostBy(name string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k, ok := l.locks[name]; ok && errors.Is(k.lease.Err(), lockkeeper.ErrLost) {
		return k.unlocked
	}
	return nil
}

// keep stores a lease until Unlock and returns nil. If a holder in this process has not called Unlock, whose lease was lost then,
// whether that is known here or not, keep returns the channel that is closed when it does.
func (l *Locker) keep(name string, lease *lockkeeper.Lease) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k, ok := l.locks[name]; ok {
		return k.unlocked
	}
	l.locks[name] = lock{lease, make(chan struct{})}
	context.AfterFunc(lease.Context(context.Background()), func() {
		if err := lease.Err(); errors.Is(err, lockkeeper.ErrLost) {
			l.o.Logger.Error("certmagic: a lock was lost; another process may work on the same", "name", name, "error", err)
		}
	})
	return nil
}

// Unlock releases the lock of a name, also if ctx has ended. It returns [lockkeeper.ErrLost] if the lease was lost before,
// and an error if Redis has not answered within three seconds; the release goes on in the background then.
func (l *Locker) Unlock(ctx context.Context, name string) error {
	l.mu.Lock()
	k, ok := l.locks[name]
	delete(l.locks, name)
	l.mu.Unlock()
	if !ok {
		return notLocked(name)
	}
	close(k.unlocked)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	return k.lease.Release(ctx)
}

// RenewLockLease returns [lockkeeper.ErrLost] if the lease of a name was lost. It ignores the duration and sends nothing: a lease
// is renewed without it, until Unlock.
func (l *Locker) RenewLockLease(_ context.Context, name string, _ time.Duration) error {
	l.mu.Lock()
	k, ok := l.locks[name]
	l.mu.Unlock()
	if !ok {
		return notLocked(name)
	}
	return k.lease.Err()
}

func notLocked(name string) error { return fmt.Errorf("certmagic: %q is not locked", name) }

// Storage is a storage whose locks are those of a Locker.
type Storage struct {
	unlocked
	*Locker
}

// unlocked is what certmagic.Storage has besides locks.
type unlocked interface {
	Store(ctx context.Context, key string, value []byte) error
	Load(ctx context.Context, key string) ([]byte, error)
	Delete(ctx context.Context, key string) error
	Exists(ctx context.Context, key string) bool
	List(ctx context.Context, path string, recursive bool) ([]string, error)
	Stat(ctx context.Context, key string) (certmagic.KeyInfo, error)
}

var _ certmagic.Storage = Storage{}

// Wrap returns the storage with the locks of l. All processes that share the storage must wrap it.
func Wrap(storage certmagic.Storage, l *Locker) Storage { return Storage{storage, l} }

// ended returns an error that matches ctx.Err() and the cause of ctx, which has ended.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}
