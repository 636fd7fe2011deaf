package semaphore

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/share"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// maxPermits is the largest limit; sums of permits stay far from where numbers lose precision.
const maxPermits = 1_000_000_000

// ErrAboveLimit is the error of a request for more permits than the limit in force, which another process or SetLimit has made
// lower than the limit of New. Waiting does not help until the limit is raised. Nothing is held. The error does not say the limit,
// which may be another one by the time that it is read; package admin shows the one in force.
var ErrAboveLimit = server.ErrAboveLimit

// Options are the settings of a semaphore. Nil, and the zero value of each field, mean the defaults.
// New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365 days.
	// Default 30 s ([lockkeeper.DefaultTTL]).
	TTL time.Duration

	// NoRenewal makes a lease end after TTL unless it is extended. Default false: it is renewed after each third of TTL.
	NoRenewal bool

	// MaxLifetime bounds how long a lease lasts, however often it is renewed or extended. At least TTL. Default 0: no bound.
	MaxLifetime time.Duration

	// Linger lets the process pass a lease to its next caller that wants as many permits, without the server, until Linger has passed since
	// it was granted; see "Linger" in the package comment. Others wait for at most as much longer. At most a third of TTL, and 10 s. Not
	// together with NoRenewal. Default 0.
	Linger time.Duration
}

// Kind is the kind of a semaphore in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "semaphore"

// Semaphore is a counting semaphore on one name. It is immutable and safe for concurrent use.
type Semaphore struct {
	_ [0]sync.Mutex // so that go vet reports copies

	lock  *keeper.Lock
	limit int
	share *share.Sharing // nil without Options.Linger
}

// New returns the semaphore of a name: at most limit permits are held at the same time, over all processes. It sends
// nothing. The limit is from 1 to 1,000,000,000. The error is ErrInvalid; see package [lockkeeper].
func New(k *lockkeeper.Keeper, name string, limit int, opts *Options) (*Semaphore, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := checkLimit(limit); err != nil {
		return nil, server.OfLock(string(Kind), name, err)
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	lock, err := access.KeeperOf(k).Lock(keeper.Spec{
		Scripts:     lua.Semaphore,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
		Limits:      &keeper.Limits{AtOnce: limit},
	})
	if err != nil {
		return nil, err
	}
	s := &Semaphore{lock: lock, limit: limit}
	if o.Linger != 0 {
		if s.share, err = share.New(lock, access.SharedBy(k), o.Linger, ""); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func checkLimit(n int) error {
	if n < 1 || n > maxPermits {
		return server.Invalid("limit %d is not between 1 and %d", n, maxPermits)
	}
	return nil
}

func (s *Semaphore) checkCount(n int) error {
	if n < 1 || n > s.limit {
		return s.lock.Invalid("n %d is not between 1 and the limit %d", n, s.limit)
	}
	return nil
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() string { return s.lock.Name() }

// Key returns the Redis key of the semaphore, which identifies it among all locks; lockkeeper.LockAll needs it.
func (s *Semaphore) Key() string { return s.lock.Key() }

// Locker returns a [lockkeeper.Locker] for one permit, whose Lock method is Acquire, and whose TryLock method is TryAcquire.
func (s *Semaphore) Locker() lockkeeper.Locker { return permits{s, 1} }

// LockerN returns a Locker for n permits, whose methods are AcquireN and TryAcquireN. The error is ErrInvalid if n is not between 1
// and the limit of New.
func (s *Semaphore) LockerN(n int) (lockkeeper.Locker, error) {
	if err := s.checkCount(n); err != nil {
		return nil, err
	}
	return permits{s, n}, nil
}

// permits is a number of permits.
type permits struct {
	*Semaphore
	n int
}

func (p permits) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return p.AcquireN(ctx, p.n) }
func (p permits) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return p.TryAcquireN(ctx, p.n)
}

// Acquire is AcquireN of one permit.
func (s *Semaphore) Acquire(ctx context.Context) (*lockkeeper.Lease, error) {
	return s.AcquireN(ctx, 1)
}

// AcquireN waits in the queue until it is granted n permits, until ctx ends, or until the keeper's retry policy gives up, and
// returns one lease over them. The error is ErrInvalid if n is not between 1 and the limit of New, and ErrAboveLimit if the
// limit in force is lower than n, or is lowered below n during the wait. Others are as in package [lockkeeper].
func (s *Semaphore) AcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	return s.acquire(ctx, n, true)
}

func (s *Semaphore) acquire(ctx context.Context, n int, wait bool) (*lockkeeper.Lease, error) {
	if err := s.checkCount(n); err != nil {
		return nil, err
	}
	if s.share != nil {
		return access.Lease[lockkeeper.Lease](s.share.Acquire(ctx, n, wait))
	}
	if !wait {
		return access.Lease[lockkeeper.Lease](s.lock.Try(ctx, keeper.Terms{Number: n}))
	}
	return access.Lease[lockkeeper.Lease](s.lock.Acquire(ctx, keeper.Terms{Number: n}))
}

// TryAcquire is TryAcquireN of one permit.
func (s *Semaphore) TryAcquire(ctx context.Context) (*lockkeeper.Lease, error) {
	return s.TryAcquireN(ctx, 1)
}

// TryAcquireN acquires n permits if they are available and nobody is queued. It blocks for a round trip. Otherwise the error is
// ErrNotAcquired; others are as for AcquireN.
func (s *Semaphore) TryAcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	return s.acquire(ctx, n, false)
}

// Do is DoN with one permit.
func (s *Semaphore) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return s.DoN(ctx, 1, fn)
}

// DoN calls fn while holding n permits, for which it waits as AcquireN does; see package [lockkeeper].
func (s *Semaphore) DoN(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error {
	if err := s.checkCount(n); err != nil {
		return err
	}
	if s.share != nil {
		return s.share.Do(ctx, n, fn)
	}
	return s.lock.Do(ctx, keeper.Terms{Number: n}, fn)
}

// SetLimit changes the limit in force for all processes. Raising it admits waiters before SetLimit returns. Lowering it
// ends no lease; queued requests for more than the new limit fail with ErrAboveLimit, the first in the queue at once and
// the others within a heartbeat. The limit stays in force until a call, also of this Semaphore, has another limit than the
// call before it, or until the name has been unused for the keeper's Options.MetadataTTL.
//
// The limit of New remains the most that this Semaphore can be asked for. SetLimit blocks until the server has answered, until
// ctx ends, or until the keeper's retry policy gives up. The error is ErrInvalid for a limit that New would refuse; after
// any other error the limit may or may not have been changed.
func (s *Semaphore) SetLimit(ctx context.Context, limit int) error {
	if err := checkLimit(limit); err != nil {
		return s.lock.Fail(err)
	}
	_, err := s.lock.Limit(ctx, limit)
	return err
}

// Available returns how many permits are free at present under the limit in force; 0 if the limit was lowered below what is
// held. Waiters are served first, so a request for that many may have to wait. Available takes no permits. It blocks until the
// server has answered, until ctx ends, or until the keeper's retry policy gives up: for a round trip, or several if many
// thousands of leases have ended since the last call. Errors are as for Holders; see [lockkeeper.Holder].
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	t, err := s.lock.Limit(ctx, 0)
	if err != nil {
		return 0, err
	}
	return max(t.AtOnce-t.Held, 0), nil
}

// Adopt makes a lease from a token that holds permits; see [lockkeeper.Lease.Token]. The error is ErrInvalid if Options.Linger is set.
func (s *Semaphore) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	if s.share != nil {
		return nil, s.share.AdoptError()
	}
	return access.Lease[lockkeeper.Lease](s.lock.Adopt(ctx, token))
}

// Holders returns who holds permits, in any process; see [lockkeeper.Holder].
func (s *Semaphore) Holders(ctx context.Context) ([]lockkeeper.Holder, error) {
	return access.Holders[lockkeeper.Holder](views.Holders(ctx, s.lock.AtServer()))
}

// Waiters returns who waits, in the order in which they will be served; see [lockkeeper.Holder].
func (s *Semaphore) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](views.Waiters(ctx, s.lock.AtServer()))
}
