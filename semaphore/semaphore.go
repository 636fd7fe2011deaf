package semaphore

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// mostPermits is the largest limit; sums of permits stay far from where numbers lose precision.
const mostPermits = 1_000_000_000

// Bounds of a window.
const (
	ShortestPer = 10 * time.Millisecond
	LongestPer  = 365 * 24 * time.Hour
)

// ErrAboveLimit is returned when more permits are asked for than the limit that is in force, which somebody else has set
// lower than New did here. Waiting would not help until it is raised. Nothing is held.
var ErrAboveLimit = engine.ErrAboveLimit

// RateError is returned, to be found with errors.As, when a request cannot be met because permits have to return by the
// clock first: by TryAcquire when they have not, and by Acquire, at once, when they will not before its context ends.
// It is ErrNotAcquired, too. Nothing was taken and nobody has lost a place.
//
// The time is the earliest at which the request could have been met, with all that had been taken and everyone who stood
// in line by then; it is no promise. It is exact while fewer than fifty requests are in line and fifty have to return
// first, or if each asks for one permit; otherwise the real time may be later.
type RateError struct {
	RetryAfter time.Duration // from when the answer came
	RetryAt    time.Time     // the same, by this process's clock

	err error
}

// Error is as in error.
func (e *RateError) Error() string { return e.err.Error() }

// Unwrap lets errors.Is find ErrNotAcquired.
func (e *RateError) Unwrap() error { return e.err }

// Options are the settings of a semaphore. The zero value, and nil, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps its permits. Whole
	// milliseconds, at least 10 ms; a fraction of one is dropped. Default 30 s. With Per and without AtOnce there are no
	// leases, and this, NoRenewal and MaxLifetime must not be set.
	TTL time.Duration

	// NoRenewal makes leases end at their TTL unless they are extended. By default they are renewed in the background
	// at a third of it.
	NoRenewal bool

	// MaxLifetime ends renewal, so that a lease lasts no longer than this: against holders that hang. At least TTL; an
	// Extend beyond it is refused.
	// Default 0: no bound.
	MaxLifetime time.Duration

	// Per is after how long a permit returns, by the server's clock, if the limit is one of permits in a window of time.
	// Whole milliseconds, from 10 ms to 365 days; a fraction of one counts as a whole one, so that no window of this length
	// ever holds more than the limit. Default 0: the limit is one of permits that are held at once, and return when their
	// lease is over.
	Per time.Duration

	// AtOnce is a second limit, beside that of Per: so many permits may be held at once. One request takes its permits
	// under both limits in one step, so nobody holds one while waiting for the other. Default 0: there is none.
	AtOnce int
}

// Semaphore is permits under one name. It is immutable and safe to share; each acquisition returns a lease of its own.
type Semaphore struct {
	lock  *engine.Lock
	most  int    // that one request may ask for,
	bound string // because of this
}

// New returns the semaphore of a name. It sends nothing. The limit is of permits that are held at once, or, with
// Options.Per, of those that are taken in any window of that length. The error is ErrInvalid, for a limit that is not
// between 1 and 1,000,000,000, a name that is empty, longer than 1024 bytes or breaks the cluster's hash tags, or an
// option out of range.
func New(k *lockkeeper.Keeper, name string, limit int, opts *Options) (*Semaphore, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := checkLimit("limit", limit); err != nil {
		return nil, err
	}
	limits := &engine.Limits{AtOnce: limit}
	most, bound := limit, "the limit"
	switch {
	case o.Per == 0 && o.AtOnce != 0:
		return nil, engine.Invalid("AtOnce %d is for a limit with Per; without it, limit %d is of permits at once already", o.AtOnce, limit)
	case o.Per != 0:
		if o.Per < ShortestPer || o.Per > LongestPer {
			return nil, engine.Invalid("Per %v is not between %v and %v", o.Per, ShortestPer, LongestPer)
		}
		whole := (o.Per + time.Millisecond - 1) / time.Millisecond * time.Millisecond
		limits = &engine.Limits{AtOnce: o.AtOnce, Window: limit, Per: whole}
		if o.AtOnce == 0 {
			if o.TTL != 0 || o.NoRenewal || o.MaxLifetime != 0 {
				return nil, engine.Invalid("TTL %v, NoRenewal %t, MaxLifetime %v: with Per and without AtOnce there is no lease", o.TTL, o.NoRenewal, o.MaxLifetime)
			}
			break
		}
		if err := checkLimit("AtOnce", o.AtOnce); err != nil {
			return nil, err
		}
		if o.AtOnce < limit {
			most, bound = o.AtOnce, "AtOnce"
		}
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	lock, err := access.EngineOf(k).Lock(engine.Spec{
		Scripts:     lua.Semaphore,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
		Limits:      limits,
	})
	if err != nil {
		return nil, err
	}
	return &Semaphore{lock, most, bound}, nil
}

func checkLimit(what string, n int) error {
	if n < 1 || n > mostPermits {
		return engine.Invalid("%s %d is not between 1 and %d", what, n, mostPermits)
	}
	return nil
}

func (s *Semaphore) checkPermits(n int) error {
	if n < 1 || n > s.most {
		return engine.Invalid("n %d is not between 1 and %s %d", n, s.bound, s.most)
	}
	return nil
}

// Acquire waits in line until n permits may be had, and returns a lease over them. Only ctx bounds the wait; without a
// deadline it waits as long as it takes. With Options.Per, a request that cannot be met before ctx's deadline is refused
// at once with a *RateError.
//
// When ctx ends, Acquire returns at once. Its error is the context's, and besides lockkeeper.ErrNotAcquired if the permits
// were taken or others before it in line, or lockkeeper.ErrUnavailable if Redis has not been answering. It leaves the queue
// in the background, and permits that arrive meanwhile are given back, also those that would return by the clock.
// ErrUnavailable alone means that the keeper's retry policy has given up, ErrInvalid that n is not between 1 and the limit,
// or AtOnce if that is less; ErrAboveLimit that a limit in force is lower than n; ErrClosed that the keeper was closed. Other
// errors are those of Redis, at once, if somebody has to change something. After any error nothing is held.
func (s *Semaphore) Acquire(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](s.hold(ctx, n))
}

func (s *Semaphore) hold(ctx context.Context, n int) (*engine.Lease, error) {
	if err := s.checkPermits(n); err != nil {
		return nil, err
	}
	h, err := s.lock.Acquire(ctx, engine.Terms{Permits: n})
	return h, rated(err)
}

// TryAcquire takes n permits if they may be had and nobody waits who is alive. It blocks for a round trip. It returns
// ErrNotAcquired if they may not; with Options.Per that is a *RateError, if it is for the clock, which says when to try
// again: what an HTTP handler puts into Retry-After. Other errors are as for Acquire.
func (s *Semaphore) TryAcquire(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	if err := s.checkPermits(n); err != nil {
		return nil, err
	}
	h, err := s.lock.Try(ctx, engine.Terms{Permits: n})
	return access.Lease[lockkeeper.Lease](h, rated(err))
}

// rated makes a RateError of a refusal that is for the clock.
func rated(err error) error {
	var soon *engine.TooSoon
	if errors.As(err, &soon) {
		return &RateError{soon.After, soon.At, err}
	}
	return err
}

// Do runs fn with n permits: it calls Acquire, then fn with a context that ends when the lease is lost, and with the
// lease's fence, and releases, also if fn panics. It returns Acquire's error, or fn's, joined with ErrLost if the lease
// was lost meanwhile. It releases with ctx: while Redis does not answer it waits
// until ctx ends, or the lease does.
func (s *Semaphore) Do(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error {
	h, err := s.hold(ctx, n)
	if err != nil {
		return err
	}
	return h.Do(ctx, fn)
}

// SetLimit changes the limit that is in force, for all processes: that of permits in a window with Options.Per, else that
// of permits at once. Raising it lets waiters in, before SetLimit returns. Lowering it takes no permits away; requests in
// line for more than the new limit are refused with ErrAboveLimit, the first in line at once and the others within a
// heartbeat. It stays in force until a caller comes whose limits are others than those of the caller before it, this
// Semaphore included, or until the name has been idle for the keeper's Idle.
//
// New's limit remains the most that this Semaphore can be asked for. It blocks until the server has answered, until ctx
// ends, or until the retry policy gives up. The error is ErrInvalid for a limit that New would refuse; after any other,
// the limit may have been changed or not.
func (s *Semaphore) SetLimit(ctx context.Context, limit int) error {
	if err := checkLimit("limit", limit); err != nil {
		return err
	}
	_, err := s.lock.Limit(ctx, limit)
	return err
}

// Available is how many permits may be had at present under the limits that are in force, 0 if the limit was lowered
// below what is taken. Those in line come first: a newcomer can have to wait all the same. It blocks for a round trip, and
// on the way takes out what is over. Errors are the context's, ErrClosed, and those of Redis.
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	t, err := s.lock.Limit(ctx, 0)
	if err != nil {
		return 0, err
	}
	free := mostPermits
	if t.AtOnce > 0 {
		free = min(free, t.AtOnce-t.Held)
	}
	if t.Window > 0 {
		free = min(free, t.Window-t.Spent)
	}
	return max(free, 0), nil
}

// Adopt makes a lease out of a token, in another process than the one that acquired it or after a restart, and extends
// it to the whole TTL. From then on two leases stand for the same permits: the former holder must stop using its own,
// and it should have been acquired with NoRenewal. It blocks as Extend does, and then until replicas have the lease, if
// the keeper has ReplicaAck. The error is ErrLost if the token does not hold permits any more, ErrInvalid where there
// are no leases, with Options.Per and without AtOnce. After any other error the lease is held by its former holder as
// before, or for longer.
func (s *Semaphore) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](s.lock.Adopt(ctx, token))
}

// Holder is a lease as the server sees it.
type Holder struct {
	lockkeeper.Holder
	Permits int
}

// Waiter is a request that stands in line, as the server sees it.
type Waiter struct {
	lockkeeper.Waiter
	Permits int
}

// Holders is who holds permits at present, in whichever process; with Options.Per and without AtOnce it is whose permits
// have not returned yet, and Left is until they do. It disturbs nothing; it blocks for a round trip for each 500 holders,
// and of those who come or go meanwhile it may tell or not. Errors are the context's, ErrClosed, and those of Redis.
func (s *Semaphore) Holders(ctx context.Context) ([]Holder, error) {
	list, err := access.Holders[lockkeeper.Holder](s.lock.Holders(ctx))
	if err != nil {
		return nil, err
	}
	all := make([]Holder, len(list))
	for i, h := range list {
		all[i] = Holder{h, permitsOf(h.Token)}
	}
	return all, nil
}

// Waiters is who waits, in the order in which they will be served. It disturbs nothing; it blocks as Holders does, and
// errors are the same.
func (s *Semaphore) Waiters(ctx context.Context) ([]Waiter, error) {
	list, err := access.Waiters[lockkeeper.Waiter](s.lock.Waiters(ctx))
	if err != nil {
		return nil, err
	}
	all := make([]Waiter, len(list))
	for i, w := range list {
		all[i] = Waiter{w, permitsOf(w.Token)}
	}
	return all, nil
}

// permitsOf returns how many permits a token is for.
func permitsOf(token string) int {
	t, _ := protocol.ParseToken(token)
	return int(t.Number)
}
