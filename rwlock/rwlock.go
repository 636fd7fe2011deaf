package rwlock

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/lua"
)

// DefaultWriterStreak is how many writers in a row may pass readers that wait.
const DefaultWriterStreak = 16

// mostStreak is the largest bound that may be set; a larger one is the same as none.
const mostStreak = 1_000_000

// ErrUpgradeConflict is returned by Upgrade at once when another upgrade of the same lock is waiting already: each would
// wait for the other's read lease. The read lease is held as before; release it and take a write lease instead, so that
// the other can go on. To try again without releasing it cannot help.
var ErrUpgradeConflict = engine.ErrConflict

// Options are the settings of a read-write lock. The zero value, and nil, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. Whole
	// milliseconds, at least 10 ms; a fraction of one is dropped. Default 30 s.
	TTL time.Duration

	// NoRenewal makes leases end at their TTL unless they are extended. By default they are renewed in the background
	// at a third of it.
	NoRenewal bool

	// MaxLifetime ends renewal, so that a lease lasts no longer than this: against holders that hang. At least TTL; an
	// Extend beyond it is refused.
	// Default 0: no bound.
	MaxLifetime time.Duration

	// WriterStreak is how many writers in a row may pass readers that wait: new(1) alternates between one writer and the
	// readers that wait, new(0) lets writers always go first. That of the writer who is granted the lock counts. Default
	// 16.
	WriterStreak *int
}

// Lock is a read-write lock on one name. It is immutable and safe to share; each acquisition returns a lease of its own.
type Lock struct {
	lock        *engine.Lock
	read, write engine.Terms
}

// New returns the read-write lock of a name. It sends nothing. The error is ErrInvalid, for a name that is empty, longer
// than 1024 bytes or breaks the cluster's hash tags, or an option out of range.
func New(k *lockkeeper.Keeper, name string, opts *Options) (*Lock, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	streak := DefaultWriterStreak
	if o.WriterStreak != nil {
		streak = *o.WriterStreak
	}
	if streak < 0 || streak > mostStreak {
		return nil, engine.Invalid("WriterStreak %d is not between 0 (no bound) and %d", streak, mostStreak)
	}
	lock, err := access.EngineOf(k).Lock(engine.Spec{
		Scripts:     lua.RWLock,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
	})
	if err != nil {
		return nil, err
	}
	return &Lock{lock, engine.Terms{Flags: "r"}, engine.Terms{Flags: "w", Permits: streak}}, nil
}

// RLock waits until the caller may read, and returns the read lease. Only ctx bounds the wait; without a deadline it
// waits as long as it takes.
//
// When ctx ends, RLock returns at once. Its error is the context's, and besides lockkeeper.ErrNotAcquired if it was not the
// caller's turn, or lockkeeper.ErrUnavailable if Redis has not been answering. It leaves the queue in the background, and a
// grant that arrives meanwhile is given back. ErrUnavailable alone means that the keeper's retry policy has given up,
// ErrClosed that the keeper was closed. Other errors are those of Redis, at once, if somebody has to change something. After
// any error nothing is held.
func (l *Lock) RLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx, l.read))
}

// TryRLock takes a read lease if no writer holds the lock or waits for it. It blocks for a round trip. It returns
// ErrNotAcquired if one does; other errors are as for RLock.
func (l *Lock) TryRLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx, l.read))
}

// Lock waits until the caller may write, and returns the write lease. From the moment at which it stands in line,
// readers that come stand behind it. Errors are as for RLock.
func (l *Lock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx, l.write))
}

// TryLock takes the write lease if nobody holds the lock or waits for it, and leaves no trace if somebody does. It blocks
// for a round trip. It returns ErrNotAcquired if it is not the caller's turn; other errors are as for RLock.
func (l *Lock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx, l.write))
}

// DoRead runs fn while holding a read lease: it calls RLock, then fn with a context that ends when the lease is lost, and
// with the lease's fence, and releases, also if fn panics. It returns RLock's error, or fn's, joined with ErrLost if the
// lease was lost meanwhile. It releases with ctx: while Redis does not answer it waits
// until ctx ends, or the lease does.
func (l *Lock) DoRead(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.do(ctx, l.read, fn)
}

// DoWrite is Read with a write lease.
func (l *Lock) DoWrite(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.do(ctx, l.write, fn)
}

func (l *Lock) do(ctx context.Context, t engine.Terms, fn func(ctx context.Context, fence uint64) error) error {
	h, err := l.lock.Acquire(ctx, t)
	if err != nil {
		return err
	}
	return h.Do(ctx, fn)
}

// Downgrade turns a write lease into a read lease, in one step at the server: no other writer can come between. Readers
// that wait are let in by it, and may be there before Downgrade returns: write nothing from the call on. It blocks for a
// round trip. The write lease has then ended with ErrReleased, and so have its contexts; the read lease has a larger fence.
//
// If ctx ends, or Redis gives no answer, while it is not known whether the server has done it, Downgrade finds out, for a second
// at the most. What is held is kept in any case:
//
//   - No error: the read lease is held. If it was not to be found out, it has the fence of the write lease, which is as good,
//     and the server may still hold the lock for writing until it is released; whichever the server has is renewed as soon as
//     it answers, and lost at its deadline if it does not.
//   - ErrLost or ErrReleased: nothing is held; the write lease was over, or has ended meanwhile. This includes a
//     *NotAcknowledgedError: the write lease has ended at the server, and is lost.
//   - ErrInvalid: the lease is none of this lock's write leases, or is being converted already.
//   - Any other error is as for RLock, and the write lease is held as before: the server has not done it, and will not.
func (l *Lock) Downgrade(ctx context.Context, write *lockkeeper.Lease) (read *lockkeeper.Lease, err error) {
	h := leaseOf(write)
	if write != nil && (h == nil || !h.Is("w") && !h.Is("u")) {
		return nil, engine.Invalid("the lease of %q is not a write lease", write.Name())
	}
	return access.Lease[lockkeeper.Lease](l.lock.Convert(ctx, h, engine.Terms{Flags: "d", Direct: true}))
}

// Upgrade turns a read lease into a write lease. It waits until no other reader is left, before all writers that wait,
// and readers that come meanwhile stand behind it. The read lease goes on being held and renewed while it waits, and has
// ended with ErrReleased when the write lease is there, and so have its contexts; the write lease has a larger fence. No
// writer has been between the two.
//
// If ctx ends, or Redis gives no answer, while it is not known whether the server has done it, Upgrade finds out, for a second
// at the most. What is held is kept in any case:
//
//   - No error: the write lease is held, also if ctx has ended meanwhile.
//   - ErrLost or ErrReleased: nothing is held; the read lease was over, or has ended during the wait. It is lost, too, if
//     replicas do not acknowledge the write lease, which is a *NotAcknowledgedError and ErrLost.
//   - ErrInvalid: the lease is none of this lock's read leases, or is being converted already.
//   - ErrUpgradeConflict, at once: another upgrade is waiting already. The read lease is held as before.
//   - Any other error is as for RLock: when ctx has ended it is the context's, and besides ErrNotAcquired or ErrUnavailable.
//     The read lease is held as before. If it was not to be found out what the server did, the server may keep other readers
//     out until the lease is released; calling Upgrade with it once more finds out, and returns the write lease if it is there.
func (l *Lock) Upgrade(ctx context.Context, read *lockkeeper.Lease) (write *lockkeeper.Lease, err error) {
	h := leaseOf(read)
	if read != nil && (h == nil || !h.Is("r") && !h.Is("d") && !h.Became("u")) {
		return nil, engine.Invalid("the lease of %q is not a read lease", read.Name())
	}
	return access.Lease[lockkeeper.Lease](l.lock.Convert(ctx, h, engine.Terms{Flags: "u"}))
}

// leaseOf returns the lease at one server that a user has, or nil if it is nil or one of a majority.
func leaseOf(l *lockkeeper.Lease) *engine.Lease {
	h, _ := access.HandleOf(l).(*engine.Lease)
	return h
}

// Adopt makes a lease out of a token, read or write, in another process than the one that acquired it or after a
// restart, and extends it to the whole TTL. From then on two leases stand for one: the former holder must stop using
// its own, and it should have been acquired with NoRenewal. It blocks as Extend does, and then until replicas have the
// lease, if the keeper has ReplicaAck. The error is ErrLost if the token does not hold the lock any more. After any
// other error the lease is held by its former holder as before, or for longer.
func (l *Lock) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holder is a lease as the server sees it.
type Holder struct {
	lockkeeper.Holder
	Writes bool // it is a write lease; else a read lease
}

// Waiter is a request that stands in line, as the server sees it.
type Waiter struct {
	lockkeeper.Waiter
	Writes bool // it wants a write lease; else a read lease
}

// Holders is who holds the lock at present, in whichever process: some readers, one writer, or nobody. It disturbs
// nothing; it blocks for a round trip for each 500 holders, and of those who come or go meanwhile it may tell or not.
// Errors are the context's, ErrClosed, and those of Redis.
func (l *Lock) Holders(ctx context.Context) ([]Holder, error) {
	list, err := access.Holders[lockkeeper.Holder](l.lock.Holders(ctx))
	all := make([]Holder, len(list))
	for i, h := range list {
		all[i] = Holder{h, writes(h.Token)}
	}
	return all, err
}

// Waiters is who waits: writers first, then readers, each in order. (After WriterStreak writers readers go first all the
// same.) It disturbs nothing; it blocks as Holders does, and errors are the same.
func (l *Lock) Waiters(ctx context.Context) ([]Waiter, error) {
	list, err := access.Waiters[lockkeeper.Waiter](l.lock.Waiters(ctx))
	all := make([]Waiter, len(list))
	for i, w := range list {
		all[i] = Waiter{w, writes(w.Token)}
	}
	return all, err
}

func writes(token string) bool {
	switch engine.FlagsOf(token) {
	case "w", "u":
		return true
	}
	return false
}
