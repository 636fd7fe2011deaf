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

// DefaultPrefix precedes the names of certmagic's locks, after the keeper's own prefix.
const DefaultPrefix = "certmagic:"

// releaseTimeout bounds for how long Unlock waits for Redis. The release goes on in the background after that.
const releaseTimeout = 3 * time.Second

// Options are the settings of a Locker.
type Options struct {
	Prefix string        // precedes names. Default DefaultPrefix
	TTL    time.Duration // of leases, which are renewed; see [fair.Options]. Default lockkeeper.DefaultTTL
	Logger *slog.Logger  // reports leases that are lost. Default slog.Default()
}

// Locker implements [certmagic.Locker], [certmagic.TryLocker] and [certmagic.LockLeaseRenewer]. It is safe for concurrent use.
//
// Waiters are served in order, across all processes and within one. A lease is renewed until Unlock; a crashed process blocks
// the others for at most a TTL. If a lease is lost, the loss is logged, and Unlock returns [lockkeeper.ErrLost]; certmagic has
// no means to stop the work that goes on under the lock.
type Locker struct {
	k *lockkeeper.Keeper
	o Options

	mu sync.Mutex // guards leases

	// By name, the oldest first. There are several of a name if leases were lost whose holders have not called Unlock.
	leases map[string][]*lockkeeper.Lease
}

var (
	_ certmagic.Locker           = (*Locker)(nil)
	_ certmagic.TryLocker        = (*Locker)(nil)
	_ certmagic.LockLeaseRenewer = (*Locker)(nil)
)

// New returns a Locker. It sends nothing. The error matches [lockkeeper.ErrInvalid]: an option is out of range.
func New(k *lockkeeper.Keeper, opts *Options) (*Locker, error) {
	l := &Locker{k: k, leases: map[string][]*lockkeeper.Lease{}}
	if opts != nil {
		l.o = *opts
	}
	if l.o.Prefix == "" {
		l.o.Prefix = DefaultPrefix
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
// while this process holds the lock.
func (l *Locker) Lock(ctx context.Context, name string) error {
	lock, err := l.lock(name)
	if err != nil {
		return err
	}
	lease, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	l.keep(name, lease)
	return nil
}

// TryLock reports whether it has acquired the lock of a name. It does not wait for another holder.
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	lock, err := l.lock(name)
	if err != nil {
		return false, err
	}
	lease, err := lock.TryLock(ctx)
	if errors.Is(err, lockkeeper.ErrNotAcquired) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.keep(name, lease)
	return true, nil
}

// keep stores a lease until Unlock.
func (l *Locker) keep(name string, lease *lockkeeper.Lease) {
	l.mu.Lock()
	l.leases[name] = append(l.leases[name], lease)
	l.mu.Unlock()
	context.AfterFunc(lease.Context(context.Background()), func() {
		if err := lease.Err(); errors.Is(err, lockkeeper.ErrLost) {
			l.o.Logger.Error("certmagic: a lock was lost; another process may work on the same", "name", name, "error", err)
		}
	})
}

// Unlock releases the lock of a name, also if ctx has ended. It returns [lockkeeper.ErrLost] if the lease was lost before,
// and an error if Redis has not answered within three seconds; the release goes on in the background then. If a lease was lost
// and another caller of this process has locked the name since, the first call of either ends the lost lease, and the second
// releases the lock.
func (l *Locker) Unlock(ctx context.Context, name string) error {
	lease, err := l.oldest(name, true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	return lease.Release(ctx)
}

// RenewLockLease returns [lockkeeper.ErrLost] if the lease of a name was lost. It ignores the duration and sends nothing: a lease
// is renewed without it, until Unlock.
func (l *Locker) RenewLockLease(_ context.Context, name string, _ time.Duration) error {
	lease, err := l.oldest(name, false)
	if err != nil {
		return err
	}
	return lease.Err()
}

// oldest returns the lease of a name that was acquired first, and removes it on demand.
func (l *Locker) oldest(name string, remove bool) (*lockkeeper.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.leases[name]
	if len(list) == 0 {
		return nil, fmt.Errorf("certmagic: %q is not locked", name)
	}
	switch {
	case !remove:
	case len(list) == 1:
		delete(l.leases, name)
	default:
		l.leases[name] = list[1:]
	}
	return list[0], nil
}

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
