package rwlock

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/share"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// defaultMaxWriterStreak is the default of Options.MaxWriterStreak.
const defaultMaxWriterStreak = 16

// largestStreak is the largest bound that may be set.
const largestStreak = 1_000_000

// ErrUpgradeConflict is returned by Upgrade at once when another upgrade of the same lock is waiting already: each would
// wait for the other's read lease. The read lease is held as before. Release it and acquire a write lease instead, so that
// the other upgrade can proceed; retrying without releasing it cannot succeed.
var ErrUpgradeConflict = server.ErrConflict

// Options are the settings of a read-write lock. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365 days.
	// Default 30 s ([lockkeeper.DefaultTTL]).
	TTL time.Duration

	// NoRenewal makes a lease end after TTL unless it is extended. Default false: it is renewed after each third of TTL.
	NoRenewal bool

	// MaxLifetime bounds how long a lease lasts, however often it is renewed or extended. At least TTL. Default 0: no bound.
	MaxLifetime time.Duration

	// MaxWriterStreak is how many writers in a row may overtake waiting readers; a negative value lets writers always go first. See
	// "Admission" in the package comment. At most 1,000,000. Default 16.
	MaxWriterStreak int

	// Linger lets the readers of the process share a read lease, without the server, until Linger has passed since it was granted; see
	// "Linger" in the package comment. Writers wait for at most as much longer. At most a third of TTL, and 10 s. Not together with
	// NoRenewal. Default 0.
	Linger time.Duration
}

// Kind is the kind of a read-write lock in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "rwlock"

// Lock is a read-write lock on one name. It is immutable and safe for concurrent use.
type Lock struct {
	_ [0]sync.Mutex // so that go vet reports copies

	lock        *keeper.Lock
	read, write keeper.Terms
	share       *share.Sharing // of reads; nil without Options.Linger
}

// New returns the read-write lock of a name. It sends nothing. The error is ErrInvalid; see package [lockkeeper].
func New(k *lockkeeper.Keeper, name string, opts *Options) (*Lock, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	streak := o.MaxWriterStreak
	switch {
	case streak > largestStreak:
		return nil, server.InvalidFor(Kind, name, "MaxWriterStreak %d is more than %d (negative means no bound)", streak, largestStreak)
	case streak == 0:
		streak = defaultMaxWriterStreak
	case streak < 0:
		streak = 0 // no bound, in a token
	}
	lock, err := access.KeeperOf(k).Lock(keeper.Spec{
		Scripts:     lua.RWLock,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
	})
	if err != nil {
		return nil, err
	}
	l := &Lock{lock: lock, read: keeper.Terms{Flags: protocol.FlagRead}, write: keeper.Terms{Flags: protocol.FlagWrite, Number: streak}}
	if o.Linger != 0 {
		if l.share, err = share.New(lock, access.SharedBy(k), o.Linger, protocol.FlagRead); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.lock.Name() }

// Key returns the Redis key of the lock, which identifies it among all locks; lockkeeper.LockAll needs it.
func (l *Lock) Key() string { return l.lock.Key() }

// RLocker returns a [lockkeeper.Locker] for reading, whose Lock method is RLock, and whose TryLock method is TryRLock. A *Lock
// itself is a Locker for writing.
func (l *Lock) RLocker() lockkeeper.Locker { return reader{l} }

// reader is a read-write lock as a Locker for reading.
type reader struct{ rw *Lock }

func (r reader) Key() string                                            { return r.rw.Key() }
func (r reader) Name() string                                           { return r.rw.Name() }
func (r reader) Lock(ctx context.Context) (*lockkeeper.Lease, error)    { return r.rw.RLock(ctx) }
func (r reader) TryLock(ctx context.Context) (*lockkeeper.Lease, error) { return r.rw.TryRLock(ctx) }

// RLock waits until the caller may read, until ctx ends, or until the keeper's retry policy gives up, and returns the read
// lease. Package [lockkeeper] documents the errors.
func (l *Lock) RLock(ctx context.Context) (*lockkeeper.Lease, error) {
	if l.share != nil {
		return access.Lease[lockkeeper.Lease](l.share.Acquire(ctx, 0, true))
	}
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx, l.read))
}

// TryRLock acquires a read lease if no writer holds the lock or waits for it. It blocks for a round trip. The error is
// ErrNotAcquired if one does; others are as for RLock.
func (l *Lock) TryRLock(ctx context.Context) (*lockkeeper.Lease, error) {
	if l.share != nil {
		return access.Lease[lockkeeper.Lease](l.share.Acquire(ctx, 0, false))
	}
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx, l.read))
}

// Lock waits until the caller may write, until ctx ends, or until the keeper's retry policy gives up, and returns the write
// lease. While it waits, new readers queue behind it. Package [lockkeeper] documents the errors.
func (l *Lock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	defer l.exclude(ctx, false)()
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx, l.write))
}

// TryLock acquires the write lease if nobody holds the lock or waits for it. It blocks for a round trip. The error is
// ErrNotAcquired if it is not the caller's turn; others are as for RLock.
func (l *Lock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	defer l.exclude(ctx, true)()
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx, l.write))
}

// exclude lets the readers of this process share no lease until the result is called, because the lock is about to be requested for writing.
// A request that does not wait for others waits until the server has the lease back, if nobody reads by it.
func (l *Lock) exclude(ctx context.Context, try bool) (resume func()) {
	if l.share == nil || ctx.Err() != nil {
		return func() {}
	}
	return l.share.Exclude(ctx, try)
}

// DoRead calls fn while holding a read lease; see Do in package [lockkeeper].
func (l *Lock) DoRead(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	if l.share != nil {
		return l.share.Do(ctx, 0, fn)
	}
	return l.lock.Do(ctx, l.read, fn)
}

// DoWrite calls fn while holding a write lease; see Do in package [lockkeeper].
func (l *Lock) DoWrite(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	if fn == nil {
		return l.lock.Invalid("fn is nil")
	}
	resume := l.exclude(ctx, false)
	h, err := l.lock.Acquire(ctx, l.write)
	resume()
	if err != nil {
		return err
	}
	return lifecycle.Do(ctx, h, fn)
}

// Upgrade makes a read lease write. It waits until no other reader is left, ahead of all waiting writers; new readers queue behind it. The
// lease is held and renewed meanwhile, so no other writer can come between. It keeps its token and its contexts, and its fence is larger from
// then on.
//
// With Options.Linger, Upgrade first waits for the readers of this process that share the lease, and lets no others share it.
//
// After an error the lease reads as before, or has ended. If the server was asked, it is told in the background that the upgrade was given
// up; until then it may keep other readers out. The error says which:
//
//   - ErrLost or ErrReleased: the lease had ended, or has ended during the wait; or it ends within 200 ms, if ctx has ended as well.
//   - ErrInvalid: the lease is not a read lease of this lock, or another call converts it.
//   - ErrUpgradeConflict, at once: another upgrade is waiting already.
//   - Any other error is as for RLock: when ctx has ended it is the context's, and also ErrNotAcquired or ErrUnavailable.
func (l *Lock) Upgrade(ctx context.Context, read *lockkeeper.Lease) error {
	defer runtime.KeepAlive(read) // or it would be reported as leaked while it waits
	switch h := access.HandleOf(read).(type) {
	case *share.Lease:
		return share.Upgrade(ctx, l.lock, h)
	case *keeper.Lease:
		return l.lock.Upgrade(ctx, h, nil)
	}
	return l.notOurs(read)
}

// Downgrade makes a write lease read, in one step at the server: no other writer can come between. It blocks for a round trip. The lease
// keeps its token and its contexts, and its fence is larger from then on. Waiting readers are admitted too, possibly before Downgrade
// returns, so write nothing once it was called.
//
// Without an error the lease reads. If ctx has ended, or Redis has given no answer, before the outcome at the server was known, that is told
// it again in the background, until which it may keep the lock for writing; the fence of the lease stays the same then.
//
//   - ErrLost or ErrReleased: the lease had ended, or has ended meanwhile; or it ends within 200 ms, if ctx has ended as well.
//   - ErrInvalid: the lease is not a write lease of this lock, or another call converts it.
//   - After any other error, which is as for RLock, the lease writes as before: the server was not asked, or has refused the command.
func (l *Lock) Downgrade(ctx context.Context, write *lockkeeper.Lease) error {
	defer runtime.KeepAlive(write) // as in Upgrade
	switch h := access.HandleOf(write).(type) {
	case *share.Lease:
		return share.Downgrade(ctx, l.lock, h)
	case *keeper.Lease:
		return l.lock.Downgrade(ctx, h, nil)
	}
	return l.notOurs(write)
}

// notOurs returns the error about a lease that is nil, or of another primitive.
func (l *Lock) notOurs(x *lockkeeper.Lease) error {
	if x == nil {
		return l.lock.Fail(server.ErrReleased)
	}
	return l.lock.Invalid("the lease of %q is not of this lock", x.Name())
}

// Adopt makes a lease from a token that holds the lock, for reading or writing; see [lockkeeper.Lease.Token]. The error is ErrInvalid if
// Options.Linger is set.
func (l *Lock) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	if l.share != nil {
		return nil, l.share.AdoptError()
	}
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holders returns who holds the lock, in any process: readers, one writer, or nobody; see [lockkeeper.Holder].
func (l *Lock) Holders(ctx context.Context) ([]lockkeeper.Holder, error) {
	return access.Holders[lockkeeper.Holder](views.Holders(ctx, l.lock.AtServer()))
}

// Waiters returns who waits: writers first, then readers, each in order (although readers go first after MaxWriterStreak
// writers). An upgrade waits as a writer. See [lockkeeper.Holder].
func (l *Lock) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](views.Waiters(ctx, l.lock.AtServer()))
}
