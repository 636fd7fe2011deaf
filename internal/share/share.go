package share

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// longest is the longest Linger.
const longest = 10 * time.Second

// partOfTTL bounds Linger to TTL/partOfTTL, the time until a lease is renewed for the first time.
const partOfTTL = 3

// Sharing grants the callers of a process leases that they share for Linger. It is safe for concurrent use.
type Sharing struct {
	names  *Names
	lock   *keeper.Lock
	linger time.Duration
	flags  string               // of its requests; of a read-write lock: those of a read
	last   atomic.Pointer[name] // the name that use last returned
}

// New returns the lock with Linger. flags are those of its requests. The error is ErrInvalid.
func New(l *keeper.Lock, names *Names, linger time.Duration, flags string) (*Sharing, error) {
	spec := l.Spec()
	switch most := min(spec.TTL/partOfTTL, longest); {
	case linger < 0 || linger > most:
		return nil, l.Invalid("Linger %v is not between 0 and %v: a third of TTL %v, and %v at most", linger, most, spec.TTL, longest)
	case spec.NoRenewal:
		return nil, l.Invalid("Linger %v is set together with NoRenewal; set only one of them", linger)
	}
	return &Sharing{names: names, lock: l, linger: linger, flags: flags}, nil
}

// use returns the name of the lock. The caller calls unuse.
func (l *Sharing) use() *name {
	n := l.names.use(l.lock.Key())
	l.last.Store(n)
	return n
}

// Acquire returns a lease. If the process shares a lease, the caller enters it: at once, or, if the lock has one holder, when the caller inside
// leaves. Otherwise it asks the server for a lease, which the process then shares. It waits and fails as keeper.Lock.Acquire does, or as
// keeper.Lock.Try if wait is false. permits are those of a semaphore, else 0.
func (l *Sharing) Acquire(ctx context.Context, permits int, wait bool) (*Lease, error) {
	if n := l.last.Load(); n != nil && ctx.Err() == nil && n.waiting.Load() == 0 {
		if s := n.enter(permits); s != nil {
			o := l.lock.NewObservation(ctx, l.flags)
			o.Starts()
			o.Ends(s.lease.Token(), s.lease.Fence(), true, nil)
			return s.newLease(o), nil
		}
	}
	n := l.use()
	defer n.unuse()
	if wait {
		defer l.lock.WatchWait(nil)()
	}
	o := l.lock.NewObservation(ctx, l.flags)
	o.Starts()
	s, local, err := l.acquire(ctx, n, permits, wait, o)
	if err = l.lock.AlsoEnded(ctx, err); err != nil {
		o.Ends("", 0, false, err)
		return nil, err
	}
	o.Ends(s.lease.Token(), s.lease.Fence(), local, nil)
	if !local {
		return s.first, nil
	}
	return s.newLease(o), nil
}

// Do calls fn while holding a lease, for which it waits as Acquire does.
func (l *Sharing) Do(ctx context.Context, permits int, fn func(ctx context.Context, fence uint64) error) error {
	if fn == nil {
		return l.lock.Invalid("fn is nil")
	}
	h, err := l.Acquire(ctx, permits, true)
	if err != nil {
		return err
	}
	return lifecycle.Do(ctx, h, fn)
}

// AdoptError returns the error of Adopt. A token does not say whether callers of its process share the lease.
func (l *Sharing) AdoptError() error {
	return l.lock.Invalid("a lock with Linger adopts no leases, because callers of another process may share the lease; make a lock without Linger for that")
}

// acquire lets the caller into a lease. local says that the process had the lease before.
func (l *Sharing) acquire(ctx context.Context, n *name, permits int, wait bool, o *keeper.Observation) (s *shared, local bool, err error) {
	if err := server.ContextError(ctx); err != nil {
		return nil, false, l.lock.Fail(err)
	}
	if l.lock.Keeper().Closing().Err() != nil {
		return nil, false, l.lock.Fail(server.ErrClosed)
	}
	t := keeper.Terms{Flags: l.flags, Number: permits, Observation: o}
	if l.lock.Spec().LocalQueue {
		if wait {
			n.waiting.Add(1)
			defer n.waiting.Add(-1)
			if t.Turn, err = l.lock.WaitLocally(ctx, l.lock); err != nil {
				return nil, false, l.lock.Fail(n.whileHeld(ctx, err))
			}
			defer l.lock.LeaveLocally()
		}
		s, err = l.enterInTurn(ctx, n, wait)
	} else {
		s = n.enter(permits)
	}
	switch {
	case err != nil:
		return nil, false, l.lock.Fail(err)
	case s != nil:
		return s, true, nil
	}
	s, err = l.ask(ctx, n, t, wait)
	if !wait && errors.Is(err, server.ErrNotAcquired) && n.releaseIdle(ctx, l.lock.Keeper()) { // the idle ones may be why it was refused
		s, err = l.ask(ctx, n, t, wait)
	}
	return s, false, err
}

// enterInTurn lets the caller into the shared lease of a lock with one holder, when the caller inside has left. It returns nil if no lease is
// shared, or none any more. If wait is false and another is inside or waits, the error is ErrNotAcquired.
func (l *Sharing) enterInTurn(ctx context.Context, n *name, wait bool) (*shared, error) {
	for {
		changed := n.await()
		if ctx.Err() != nil { // just when the turn came
			return nil, server.Chain(server.ErrNotAcquired, server.ContextError(ctx))
		}
		if wait || n.waiting.Load() == 0 {
			if s := n.enter(0); s != nil {
				return s, nil
			}
		}
		s := n.open.Load()
		switch {
		case s == nil || !wait && s.lease.Err() != nil:
			return nil, nil
		case !wait:
			return nil, server.ErrNotAcquired
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, n.whileHeld(ctx, server.WaitError(ctx, l.lock.Outage(time.Now())))
		case <-l.lock.Keeper().Closing().Done():
			return nil, server.ErrClosed
		}
	}
}

func (l *Sharing) ask(ctx context.Context, n *name, t keeper.Terms, wait bool) (*shared, error) {
	s := &shared{of: n, lock: l.lock, permits: t.Number, released: make(chan struct{})}
	s.first = s.newLease(t.Observation)
	t.Observer = s
	x := &exclusion{of: n}
	defer x.end()
	if s.permits > 0 && wait {
		t.Queued = x.begin
	}
	h, err := l.lock.Request(ctx, t, wait)
	x.end() // before s.grant, which shares the lease only if no exclusion is under way
	if err != nil {
		return nil, err
	}
	l.names.use(n.key)
	s.grant(h, l.linger)
	return s, nil
}

// Exclude ends the sharing of reads until resume is called, because a caller of the process is about to ask for the lock for writing. If
// answered is set, it waits until the server has answered the releases under way, or until ctx ends, or Close.
func (l *Sharing) Exclude(ctx context.Context, answered bool) (resume func()) {
	n := l.use()
	x := &exclusion{of: n}
	x.begin()
	if answered {
		n.awaitReleases(ctx, l.lock.Keeper())
	}
	return func() {
		x.end()
		n.unuse()
	}
}

// Upgrade upgrades a lease that may be shared. It ends the sharing, waits until the caller is the only one inside, and then calls Upgrade of
// keeper.Lock. If another caller inside is upgrading, it returns ErrConflict at once.
func Upgrade(ctx context.Context, l *keeper.Lock, h *Lease) error {
	s, n := h.shared, h.shared.of
	if !s.lock.Same(l.AtServer()) {
		return l.Invalid("the lease is of %s %q, of another keeper or another lock; pass a lease of this lock", l.Kind(), h.Name())
	}
	o := l.NewObservation(ctx, protocol.FlagUpgrade)
	o.Starts()
	if err := h.beginUpgrade(); err != nil {
		o.Ends("", 0, false, err)
		return l.Fail(err)
	}
	defer h.endUpgrade()
	x := &exclusion{of: n}
	x.begin()
	defer x.end()
	stop := l.WatchWait(nil)
	err := h.awaitAlone(ctx, l)
	stop()
	if err != nil {
		o.Ends("", 0, false, err)
		return err
	}
	fence := h.Fence()
	if err = l.Upgrade(ctx, s.lease, o); err == nil {
		h.observedBy(o, fence)
	}
	return err
}

// Downgrade downgrades a lease that Upgrade has upgraded. It is not shared any more.
func Downgrade(ctx context.Context, l *keeper.Lock, h *Lease) error {
	if err := h.Err(); err != nil {
		return l.Fail(err)
	}
	o := l.NewObservation(ctx, protocol.FlagRead)
	o.Starts()
	fence := h.Fence()
	err := l.Downgrade(ctx, h.shared.lease, o)
	if err == nil {
		h.observedBy(o, fence)
	}
	return err
}

// beginUpgrade notes that the lease is being upgraded, unless another one inside already is.
func (h *Lease) beginUpgrade() error {
	n := h.shared.of
	n.mu.Lock()
	defer n.mu.Unlock()
	switch h.shared.upgrading {
	case nil:
		h.shared.upgrading = h
		return nil
	case h:
		return server.Invalid("the lease is being converted by another call; wait until that call has returned")
	}
	return server.ErrConflict
}

func (h *Lease) endUpgrade() {
	h.shared.of.mu.Lock()
	defer h.shared.of.mu.Unlock()
	h.shared.upgrading = nil
}

// awaitAlone waits until nobody else is inside.
func (h *Lease) awaitAlone(ctx context.Context, l *keeper.Lock) error {
	n := h.shared.of
	n.waiting.Add(1)
	defer n.waiting.Add(-1)
	for {
		changed := n.await()
		switch err := h.Err(); {
		case err != nil:
			return l.Fail(err)
		case h.shared.OneLeft():
			return nil
		}
		select {
		case <-changed:
		case <-h.Done():
		case <-ctx.Done():
			return l.Fail(server.ErrNotAcquired, server.ContextError(ctx))
		case <-l.Keeper().Closing().Done():
			return l.Fail(server.ErrClosed)
		}
	}
}
