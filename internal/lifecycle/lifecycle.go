package lifecycle

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Handle is a lease as its holder uses it, of package keeper, share or quorum.
type Handle interface {
	Name() string
	Token() string
	Fence() uint64
	Deadline() time.Time
	Done() <-chan struct{}
	Err() error
	Context(parent context.Context) context.Context
	OnEnd(f func(error)) (stop func())
	Extend(ctx context.Context, ttl time.Duration) error
	Release(ctx context.Context) error
}

// Do runs fn with a context of the lease, and then releases the lease, even if fn panics. It returns the error of fn, joined
// with that of Release. A loss that fn has returned, such as context.Cause of its context, is not repeated.
func Do(ctx context.Context, l Handle, fn func(ctx context.Context, fence uint64) error) (err error) {
	defer func() { err = JoinRelease(err, l, l.Release(ctx)) }()
	return fn(l.Context(ctx), l.Fence())
}

// JoinRelease joins err, of a function that had the lease, and released, the error of the release. If released only says that the lease was
// lost, and err says so already, it returns err.
func JoinRelease(err error, l Handle, released error) error {
	if err != nil && errors.Is(released, server.ErrLost) && errors.Is(err, l.Err()) {
		return err
	}
	return server.Join(err, released)
}

// Lifecycle is the end of a lease, which happens once, and the contexts that it cancels. Begin must be called before anything else. It is safe
// for concurrent use.
type Lifecycle struct {
	lease DeadlineChecker // the lease that has this Lifecycle

	Mu         sync.Mutex               // guards the fields below, and those of the lease that say so
	err        error                    // nil while held; then an error that matches ErrReleased or ErrLost
	done       chan struct{}            // closed when the lease ends; nil until Done is called
	background *cancelable              // shared by all contexts whose parents never end; nil until there is one
	contexts   map[*cancelable]struct{} // the other contexts, and the functions of OnEnd
	watch      runtime.Cleanup          // of WatchForLeak. The end of the lease stops it, which is cheaper than to let it find that the lease has ended
}

// DeadlineChecker is a lease. CheckDeadline ends it as lost if its deadline has passed. It is called without any of the
// lease's mutexes held.
type DeadlineChecker interface{ CheckDeadline() }

// Begin sets the lease whose deadline Err, Done and the contexts check whenever they are called.
func (lc *Lifecycle) Begin(lease DeadlineChecker) { lc.lease = lease }

// cancelable is the context behind a leaseContext, which ends with its parent or with the lease; or a function of OnEnd.
type cancelable struct {
	context.Context
	cancel context.CancelCauseFunc
	stop   func() bool // stops the function that removes it from contexts
}

// End ends the lease for its holder, unless it has ended: Err returns err from now on, and Done is closed. The caller may hold a mutex of its
// own, and calls endContexts after it has unlocked that; see EndLocked.
func (lc *Lifecycle) End(err error) (endContexts func()) {
	lc.Mu.Lock()
	defer lc.Mu.Unlock()
	if lc.err != nil {
		return func() {}
	}
	return lc.EndLocked(err)
}

// ErrLocked returns the error with which the lease has ended, or nil. It does not look at the deadline. The caller holds Mu.
func (lc *Lifecycle) ErrLocked() error { return lc.err }

// EndLocked ends the lease, which must not have ended. The caller holds Mu. After it has unlocked Mu, and before it does anything that others
// can observe, it calls cancel, which cancels the contexts. Under Mu, cancel could deadlock: a canceled context removes itself from its parent,
// and a parent that is a context of a lease then checks the deadline of that lease, perhaps this one, which locks Mu.
func (lc *Lifecycle) EndLocked(err error) (cancel func()) {
	lc.err = err
	lc.watch.Stop()
	if lc.done != nil {
		close(lc.done)
	}
	background, contexts := lc.background, lc.contexts
	if background == nil && len(contexts) == 0 {
		return func() {}
	}
	lc.contexts = nil
	return func() {
		if background != nil {
			background.cancel(err)
		}
		for c := range contexts {
			c.stop()
			c.cancel(err)
		}
	}
}

// Err returns nil while the lease is held, and then an error that matches ErrReleased or ErrLost.
func (lc *Lifecycle) Err() error {
	lc.lease.CheckDeadline()
	lc.Mu.Lock()
	defer lc.Mu.Unlock()
	return lc.err
}

// Done returns a channel that is closed when the lease ends. If the deadline has passed, it is closed already.
func (lc *Lifecycle) Done() <-chan struct{} {
	lc.lease.CheckDeadline()
	lc.Mu.Lock()
	defer lc.Mu.Unlock()
	if lc.done == nil {
		lc.done = make(chan struct{})
		if lc.err != nil {
			close(lc.done)
		}
	}
	return lc.done
}

// Context returns a child of parent that is also canceled when the lease ends, with the lease's error as its cause. The lease
// keeps a reference to it until the parent ends, and none if the parent never ends.
func (lc *Lifecycle) Context(parent context.Context) context.Context {
	if parent.Done() == nil {
		return &leaseContext{cancelable: lc.withoutParent(), parent: parent, lifecycle: lc}
	}
	ctx, cancel := context.WithCancelCause(parent)
	c := &leaseContext{cancelable: &cancelable{Context: ctx, cancel: cancel}, parent: parent, lifecycle: lc}
	lc.attach(c.cancelable)
	c.check()
	return c
}

// attach makes the end of the lease cancel the context. It does nothing if the lease has ended.
func (lc *Lifecycle) attach(c *cancelable) {
	lc.Mu.Lock()
	defer lc.Mu.Unlock()
	if lc.err != nil {
		return
	}
	if lc.contexts == nil {
		lc.contexts = map[*cancelable]struct{}{}
	}
	lc.contexts[c] = struct{}{}
	c.stop = context.AfterFunc(c, func() { // the parent may end first
		lc.Mu.Lock()
		delete(lc.contexts, c)
		lc.Mu.Unlock()
	})
}

// OnEnd calls f with the lease's error when the lease ends, before the server is sent a release, or at once if the lease has ended. f may be
// called twice, and must not block. The lease refers to f until it ends or stop is called.
func (lc *Lifecycle) OnEnd(f func(error)) (stop func()) {
	c := &cancelable{Context: context.Background(), cancel: f}
	lc.attach(c)
	if err := lc.Err(); err != nil {
		f(err)
	}
	return func() {
		lc.Mu.Lock()
		delete(lc.contexts, c)
		lc.Mu.Unlock()
	}
}

// withoutParent returns the context that only the end of the lease cancels.
func (lc *Lifecycle) withoutParent() *cancelable {
	lc.Mu.Lock()
	defer lc.Mu.Unlock()
	if lc.background == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		lc.background = &cancelable{Context: ctx, cancel: cancel}
	}
	return lc.background
}

// leaseContext checks the lease's deadline in each of its methods. A process that was paused past the deadline thus learns of
// the loss from its first call, even before its timers fire. A Done channel that was returned earlier, and a context that was
// derived earlier, do not check; they end when the lease's timer fires.
type leaseContext struct {
	cancelable *cancelable
	parent     context.Context
	lifecycle  *Lifecycle
	user       any // what the user has of the lease; see ContextFor
}

// leaseKey is the key for which a leaseContext returns itself.
type leaseKey struct{}

// ContextFor returns h.Context(parent). The context refers to user, what the user has of the lease, and LeaseOf returns it.
func ContextFor(h Handle, parent context.Context, user any) context.Context {
	return withUser(h.Context(parent), user)
}

func withUser(ctx context.Context, user any) context.Context {
	if c, ok := ctx.(*leaseContext); ok {
		c.user = user
	}
	return ctx
}

// LeaseOf returns the lease that ctx was derived from: what the user has of it (nil if ContextFor was not used), and the lease itself (nil for a
// Group). Both are nil if ctx was derived from none.
func LeaseOf(ctx context.Context) (user any, h Handle) {
	c, ok := ctx.Value(leaseKey{}).(*leaseContext)
	if !ok {
		return nil, nil
	}
	h, _ = c.lifecycle.lease.(Handle)
	return c.user, h
}

// check cancels the context if the lease has ended.
func (ctx *leaseContext) check() {
	if ctx.cancelable.Err() != nil {
		return
	}
	if err := ctx.lifecycle.Err(); err != nil {
		ctx.cancelable.cancel(err) // the goroutine that ended the lease may not have canceled it yet
	}
}

// Deadline implements context.Context.
func (ctx *leaseContext) Deadline() (time.Time, bool) { return ctx.parent.Deadline() }

// Done implements context.Context.
func (ctx *leaseContext) Done() <-chan struct{} {
	ctx.check()
	return ctx.cancelable.Done()
}

// Err implements context.Context.
func (ctx *leaseContext) Err() error {
	ctx.check()
	return ctx.cancelable.Err()
}

// Value implements context.Context. context.Cause calls it, too.
func (ctx *leaseContext) Value(key any) any {
	ctx.check()
	if key == (leaseKey{}) {
		return ctx
	}
	if v := ctx.cancelable.Value(key); v != nil {
		return v
	}
	return ctx.parent.Value(key)
}
