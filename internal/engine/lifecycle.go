package engine

import (
	"context"
	"sync"
	"time"
)

// Handle is what a holder has: a Hold, or a MajorityHold.
type Handle interface {
	Name() string
	Token() string
	Fence() uint64
	Deadline() time.Time
	Done() <-chan struct{}
	Err() error
	Context(parent context.Context) context.Context
	Extend(ctx context.Context, ttl time.Duration) error
	Release(ctx context.Context) error
}

// Do runs fn under the lease and releases it, also when fn panics. The result is fn's error, joined with what went
// wrong with the lease.
func Do(ctx context.Context, l Handle, fn func(ctx context.Context, fence uint64) error) (err error) {
	defer func() {
		if e := l.Release(ctx); e != nil {
			err = join(err, e)
		}
	}()
	return fn(l.Context(ctx), l.Fence())
}

// lifecycle is the part of a lease that is the same for all: that it ends once and for good, and the contexts that end
// with it.
type lifecycle struct {
	lease DeadlineChecker // whose tenure it is

	mu       sync.Mutex    // guards what follows, and the rest of the lease
	err      error         // nil while held, then ErrReleased or an ErrLost that says why
	done     chan struct{} // nil until somebody wants to know; closed when the lease is held no more
	alone    *inner        // of all contexts whose parents never end; nil until there is one
	contexts map[*inner]struct{}
	former   *lifecycle // of the lease whose holder has this one instead, without knowing; it ends with this one
}

// DeadlineChecker is a lease. CheckDeadline ends it as lost if its deadline has passed. It is called without any of the
// lease's mutexes held.
type DeadlineChecker interface{ CheckDeadline() }

func (t *lifecycle) begin(l DeadlineChecker) { t.lease = l }

// inner is what a context of the lease is made of: it ends with its parent, and when it is cancelled.
type inner struct {
	context.Context
	cancel context.CancelCauseFunc
	forget func() bool // stops waiting for the parent
}

// endLocked ends the lease for its holder. The caller calls the result when it has given up mu, and before it does anything
// that others can see: it ends the contexts. Under mu it could not, because a context that ends takes itself from its
// parent, and that may be a context of this lease, or of another one that finds its deadline passed.
func (t *lifecycle) endLocked(err error) (cancel func()) {
	t.err = err
	if t.done != nil {
		close(t.done)
	}
	alone, contexts, former := t.alone, t.contexts, t.former
	t.contexts = nil
	return func() {
		if former != nil {
			former.end(err)
		}
		if alone != nil {
			alone.cancel(err)
		}
		for c := range contexts {
			c.forget()
			c.cancel(err)
		}
	}
}

// end ends the lease for its holder, if it has not ended.
func (t *lifecycle) end(err error) {
	t.mu.Lock()
	cancel := func() {}
	if t.err == nil {
		cancel = t.endLocked(err)
	}
	t.mu.Unlock()
	cancel()
}

// Err is nil while the lease is held; then ErrReleased or an error that is ErrLost.
func (t *lifecycle) Err() error {
	t.lease.CheckDeadline()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Done is closed when the lease is held no more; also at once, if the deadline has passed.
func (t *lifecycle) Done() <-chan struct{} {
	t.lease.CheckDeadline()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.err != nil {
			close(t.done)
		}
	}
	return t.done
}

// Context is a child of parent that also ends when the lease does, with the lease's error as its cause. The lease keeps
// nothing of it once the parent has ended, and nothing at all if the parent never ends.
func (t *lifecycle) Context(parent context.Context) context.Context {
	if parent.Done() == nil {
		return &leaseContext{inner: t.withoutParent(), values: parent, lifecycle: t}
	}
	ctx, cancel := context.WithCancelCause(parent)
	c := &leaseContext{inner: &inner{Context: ctx, cancel: cancel}, values: parent, lifecycle: t}
	t.attach(c.inner)
	c.look()
	return c
}

// attach makes a context end with the lease, unless that has ended.
func (t *lifecycle) attach(c *inner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return
	}
	if t.contexts == nil {
		t.contexts = map[*inner]struct{}{}
	}
	t.contexts[c] = struct{}{}
	c.forget = context.AfterFunc(c, func() { // the parent may end first
		t.mu.Lock()
		delete(t.contexts, c)
		t.mu.Unlock()
	})
}

// withoutParent ends with the lease alone.
func (t *lifecycle) withoutParent() *inner {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alone == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		t.alone = &inner{Context: ctx, cancel: cancel}
	}
	return t.alone
}

// leaseContext looks at the lease's deadline whenever it is asked something, so that a process that was frozen learns of the
// loss from the first question, and not only when its clockwork has come round. A channel that was handed out before, and a
// context that was derived before, cannot be asked: these end when the clockwork rings.
type leaseContext struct {
	inner     *inner
	values    context.Context // the parent
	lifecycle *lifecycle
}

// look ends the context if the lease has ended.
func (c *leaseContext) look() {
	if c.inner.Err() != nil {
		return
	}
	if err := c.lifecycle.Err(); err != nil {
		c.inner.cancel(err) // whoever ended the lease may not have come to it yet
	}
}

// Deadline is as in context.Context.
func (c *leaseContext) Deadline() (time.Time, bool) { return c.values.Deadline() }

// Done is as in context.Context.
func (c *leaseContext) Done() <-chan struct{} {
	c.look()
	return c.inner.Done()
}

// Err is as in context.Context.
func (c *leaseContext) Err() error {
	c.look()
	return c.inner.Err()
}

// Value is as in context.Context. It is also what context.Cause asks.
func (c *leaseContext) Value(key any) any {
	c.look()
	if v := c.inner.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}
