package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Retaining grants inside the process the reads of a lock, or the turns of a lock that has one holder at a time, while it holds one
// lease for all of them. It is safe for concurrent use.
type Retaining struct {
	ordinary  *Lock // of what is not granted inside
	lock      *Lock // of the leases that are retained
	flags     string
	exclusive bool // one holder at a time
	retainer  atomic.Pointer[Retainer]
}

// Retaining returns what grants the reads of the lock inside, or its turns if it has one holder at a time. The error is ErrInvalid.
func (l *Lock) Retaining() (*Retaining, error) {
	if l.spec.NoRenewal || l.spec.MaxLifetime > 0 {
		return nil, server.Invalid("Retain is set together with NoRenewal or MaxLifetime; callers that share a lease end when it does")
	}
	spec := l.spec
	spec.TTL = min(spec.TTL, retain.MaxTTL)
	retained, err := l.e.Lock(spec)
	if err != nil {
		return nil, err
	}
	if l.spec.LocalQueue {
		return &Retaining{ordinary: l, lock: retained, exclusive: true}, nil
	}
	return &Retaining{ordinary: l, lock: retained, flags: protocol.FlagRead}, nil
}

// Retainer is one name that this process grants inside, with what it remembers of the name. There is one for each name that was
// used lately.
type Retainer struct {
	lock      *Lock
	flags     string                    // of a request
	exclusive bool                      // one caller is inside at a time
	current   atomic.Pointer[retention] // that was opened last, and may admit callers
	waiting   atomic.Int32              // callers in the local queue of the name, that a newcomer may not pass

	mu   sync.Mutex  // guards the fields below, and those of its retentions; no other mutex of this package is locked under it
	held *retention  // the retained lease, or the request for it; nil: none
	name retain.Name // when to retain a lease
}

// Acquire returns a lease: a LocalLease if it is granted inside the process, at once, or as the first of a lease that is
// retained from now on; else a Lease. It waits, and fails, as Lock.Acquire does; if wait is false, as Lock.Try.
func (l *Retaining) Acquire(ctx context.Context, wait bool) (lifecycle.Handle, error) {
	r := l.retainer.Load()
	if r == nil && ctx.Err() == nil {
		r = l.find() // others of the process may have used the name already
	}
	if r != nil && ctx.Err() == nil && (r.waiting.Load() == 0 || !wait) {
		if h := r.enter(ctx); h != nil {
			return h, nil
		}
	}
	if l.exclusive {
		return l.acquireTurn(ctx, wait)
	}
	return l.request(ctx, wait, r)
}

// enter grants a lease inside the process, or returns nil.
func (r *Retainer) enter(ctx context.Context) *LocalLease {
	x := r.current.Load()
	if x == nil {
		return nil
	}
	h, _ := x.enter()
	if h == nil {
		return nil
	}
	if e := r.lock.e; e.cfg.Observe != nil {
		h.observation = r.lock.NewObservation(ctx, r.flags)
		ev := h.event(AcquireStart)
		ev.Token, ev.Fence = "", 0
		e.observe(ev)
		e.observe(h.event(AcquireDone))
	}
	return h
}

// request asks the server for a read lease, and retains it if that is worth while. tried has granted nothing inside.
func (l *Retaining) request(ctx context.Context, wait bool, tried *Retainer) (lifecycle.Handle, error) {
	r := l.find()
	if r != tried && ctx.Err() == nil { // too many names were used since tried was found
		if h := r.enter(ctx); h != nil {
			return h, nil
		}
	}
	x := r.begin()
	if x == nil {
		h, err := l.ordinary.acquireLease(ctx, Terms{Flags: l.flags}, wait)
		if err != nil {
			return nil, err
		}
		return h, nil
	}
	h, err := l.lock.acquireLease(ctx, Terms{Flags: l.flags + protocol.FlagRetained, retention: x}, wait)
	if err != nil {
		x.abandon()
		return nil, err
	}
	return x.open(h, false), nil
}

// find returns the Retainer of the name.
func (l *Retaining) find() *Retainer {
	e, key := l.lock.e, l.lock.KeyOf(server.LockKey)
	e.mu.Lock()
	r, known := e.retainers.Get(key)
	var removed *Retainer
	if !known {
		r = &Retainer{lock: l.lock, flags: l.flags, exclusive: l.exclusive}
		removed, _ = e.retainers.Add(key, r)
	}
	e.mu.Unlock()
	l.retainer.Store(r)
	if removed != nil {
		removed.mu.Lock()
		removed.name.Evict()
		x := removed.held
		removed.mu.Unlock()
		x.giveBack(false)
	}
	return r
}

// begin returns a retention for which the caller is to request a lease, or nil if the caller is to request an ordinary one.
func (r *Retainer) begin() *retention {
	e := r.lock.e
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.name.Wants(e.Now()) {
		return nil
	}
	epoch := e.Subscriber.RetainSubscribed(r.lock.Channel)
	if epoch == nil {
		return nil // a recall would not be received
	}
	r.name.Held()
	r.held = &retention{Hold: retain.New(e.Started(), epoch), of: r, state: retain.NewLease(r.exclusive)}
	return r.held
}

// Yield gives back the lease that the process retains, since a caller of this process is about to request the lock for writing.
// No reader is admitted from now on. If answered is set and nobody is inside, it waits until the server has released the lease,
// or until ctx ends or Close.
func (l *Retaining) Yield(ctx context.Context, answered bool) {
	e := l.lock.e
	e.mu.Lock()
	r, known := e.retainers.Get(l.lock.KeyOf(server.LockKey)) // not that of this object, which another may have replaced
	e.mu.Unlock()
	if !known {
		return
	}
	r.mu.Lock()
	x := r.held
	r.mu.Unlock()
	x.giveBack(true)
	if answered {
		x.awaitRelease(ctx)
	}
}

// awaitRelease waits until the server has released the lease, if the lease was released here, or until ctx ends or Close.
func (x *retention) awaitRelease(ctx context.Context) {
	if x == nil {
		return
	}
	x.of.mu.Lock()
	h := x.lease
	x.of.mu.Unlock()
	if h == nil {
		return
	}
	if c := h.currentCleanup(); c != nil {
		_ = h.lock.e.WaitFor(ctx, c.finished.Done())
	}
}
