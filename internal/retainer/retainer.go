package retainer

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Names is what a process remembers of the names that it grants inside. It is safe for concurrent use.
type Names struct {
	mu      sync.Mutex // guards the fields below; nothing is locked under it
	names   *retain.Names[*name]
	permits *retain.Names[*Permits] // by the lock's key and the limits
}

// NewNames returns what remembers no name yet, and at most retain.MaxNames.
func NewNames() *Names {
	return &Names{names: retain.NewNames[*name](retain.MaxNames), permits: retain.NewNames[*Permits](retain.MaxNames)}
}

// get returns what is remembered of a lock, by its key, which counts as a use. If nothing is, it makes it by add, unless that is nil. It
// returns what had to leave for that, or nil.
func (ns *Names) get(key string, add func() *name) (n, removed *name) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n, known := ns.names.Get(key)
	if !known && add != nil {
		n = add()
		removed, _ = ns.names.Add(key, n)
	}
	return n, removed
}

// Lock grants inside the process the reads of a lock, or the turns of a lock that has one holder at a time, while it holds one
// lease for all of them; or the permits of a semaphore, while it holds as many leases as callers have needed at once. It is safe for
// concurrent use.
type Lock struct {
	names    *Names
	ordinary *keeper.Lock // of what is not granted inside
	lock     *keeper.Lock // of the leases that are retained
	flags    string
	kind     retain.Kind
	name     atomic.Pointer[name]
	refused  error // of a try for permits
}

// New returns what grants the reads of the lock inside, or its turns if it has one holder at a time, or the permits of a semaphore. The error
// is ErrInvalid.
func New(l *keeper.Lock, names *Names) (*Lock, error) {
	spec := l.Spec()
	switch {
	case spec.NoRenewal:
		return nil, server.Invalid("Retain is set together with NoRenewal; set only one of them")
	case spec.MaxLifetime > 0:
		return nil, server.Invalid("Retain is set together with MaxLifetime %v; set only one of them", spec.MaxLifetime)
	}
	retaining := &Lock{names: names, ordinary: l}
	switch {
	case spec.Limits != nil:
		retaining.kind = retain.Permits
	case spec.LocalQueue:
		retaining.kind = retain.Turns
	default:
		retaining.flags = protocol.FlagRead
	}
	spec.TTL = min(spec.TTL, retain.MaxTTL)
	var err error
	if retaining.lock, err = l.Keeper().Lock(spec); err != nil {
		return nil, err
	}
	retaining.refused = retaining.lock.Fail(server.ErrNotAcquired)
	return retaining, nil
}

// name is one name that this process grants inside, with what it remembers of the name. There is one for each name that was
// used lately.
type name struct {
	of      *Names
	lock    *keeper.Lock
	flags   string // of a request
	kind    retain.Kind
	current atomic.Pointer[retention] // that was opened last, and may admit callers
	pool    atomic.Pointer[pool]      // of a semaphore, in place of current; nil: nothing is retained
	waiting atomic.Int32              // callers in the local queue of the name, that a newcomer may not pass

	mu     sync.Mutex     // guards the fields below, and those of its retentions; no other mutex of this package is locked under it
	held   *retention     // the retained lease, or the request for it; nil: none, or a semaphore
	policy retain.Name    // when to retain a lease
	queue  list.List      // of *poolWaiter: the local queue of a semaphore
	health *server.Health // of its requests; nil: there was none
}

// Acquire returns a lease: a Lease if it is granted inside the process, at once, or as the first of a lease that is
// retained from now on; else a Lease. It waits, and fails, as Lock.Acquire does; if wait is false, as Lock.Try.
func (l *Lock) Acquire(ctx context.Context, wait bool) (lifecycle.Handle, error) {
	r := l.name.Load()
	if r == nil && ctx.Err() == nil {
		r = l.find() // others of the process may have used the name already
	}
	if r != nil && ctx.Err() == nil && (r.waiting.Load() == 0 || !wait) {
		if h := r.enter(ctx); h != nil {
			return h, nil
		}
	}
	if l.kind == retain.Turns {
		return l.acquireTurn(ctx, wait)
	}
	return l.request(ctx, wait, r)
}

// enter grants a lease inside the process, or returns nil.
func (r *name) enter(ctx context.Context) *Lease {
	x := r.current.Load()
	if x == nil {
		return nil
	}
	h, _ := x.enter()
	if h != nil {
		r.granted(ctx, h)
	}
	return h
}

// granted reports to the observer that a caller was granted a lease inside at once.
func (r *name) granted(ctx context.Context, h *Lease) {
	o := r.lock.NewObservation(ctx, r.flags)
	if o == nil {
		return
	}
	h.observation = o
	o.Starts()
	o.Ends(h.Token(), h.Fence(), true, nil)
}

// request asks the server for a read lease, and retains it if that is worth while. tried has granted nothing inside.
func (l *Lock) request(ctx context.Context, wait bool, tried *name) (lifecycle.Handle, error) {
	r := l.find()
	if r != tried && ctx.Err() == nil { // too many names were used since tried was found
		if h := r.enter(ctx); h != nil {
			return h, nil
		}
	}
	x := r.begin()
	if x == nil {
		h, err := acquire(ctx, l.ordinary, keeper.Terms{Flags: l.flags}, wait)
		if err != nil {
			return nil, err
		}
		return h, nil
	}
	h, err := acquire(ctx, l.lock, keeper.Terms{Flags: l.flags + protocol.FlagRetained, Sharing: x}, wait)
	if err != nil {
		x.abandon()
		return nil, err
	}
	return x.open(h, false), nil
}

// acquire is Acquire, or Try if the caller does not wait.
func acquire(ctx context.Context, l *keeper.Lock, t keeper.Terms, wait bool) (*lease.Lease, error) {
	if wait {
		return l.Acquire(ctx, t)
	}
	return l.Try(ctx, t)
}

// find returns what is remembered of the name.
func (l *Lock) find() *name {
	r, removed := l.names.get(l.lock.Key(), func() *name {
		return &name{of: l.names, lock: l.lock, flags: l.flags, kind: l.kind}
	})
	l.name.Store(r)
	if removed != nil {
		removed.mu.Lock()
		removed.policy.Evict()
		retained := []*retention{removed.held}
		if p := removed.pool.Load(); p != nil {
			retained = append(retained, p.open...)
		}
		removed.mu.Unlock()
		for _, x := range retained {
			x.giveBack(false)
		}
	}
	return r
}

// begin returns a retention for which the caller is to request a lease, or nil if the caller is to request an ordinary one.
func (r *name) begin() *retention {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.beginLocked(0)
	if x != nil {
		r.policy.Held()
		r.held = x
	}
	return x
}

// beginLocked is begin, of a lease of so many permits of a semaphore.
func (r *name) beginLocked(permits int64) *retention {
	e := r.lock.Keeper()
	if !r.policy.Wants(e.Now()) {
		return nil
	}
	epoch := e.Subscriber.RetainSubscribed(r.lock.Channel)
	if epoch == nil {
		return nil // a recall would not be received
	}
	return &retention{Hold: retain.New(e.Started(), epoch), of: r, permits: permits, state: retain.NewLease(r.kind)}
}

// Yield gives back the lease that the process retains, since a caller of this process is about to request the lock for writing.
// No reader is admitted from now on. If answered is set and nobody is inside, it waits until the server has released the lease,
// or until ctx ends or Close.
func (l *Lock) Yield(ctx context.Context, answered bool) {
	r, _ := l.names.get(l.lock.Key(), nil) // not that of this object, which another may have replaced
	if r == nil {
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
	if c := h.Cleanup(); c != nil {
		_ = x.of.lock.Keeper().WaitFor(ctx, c.Done())
	}
}
