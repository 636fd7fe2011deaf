package engine

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Lease is what a holder has: a Hold, or a MajorityHold.
type Lease interface {
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
func Do(ctx context.Context, l Lease, fn func(ctx context.Context, fence uint64) error) (err error) {
	defer func() {
		if e := l.Release(ctx); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return fn(l.Context(ctx), l.Fence())
}

// tenure is the part of a lease that is the same for all: that it ends once and for good, and the contexts that end
// with it.
type tenure struct {
	lease deadliner // whose tenure it is

	mu       sync.Mutex    // guards what follows, and the rest of the lease
	err      error         // nil while held, then ErrReleased or an ErrLost that says why
	done     chan struct{} // nil until somebody wants to know; closed when the lease is held no more
	contexts map[*leaseContext]struct{}
}

// deadliner is a lease that loses itself when it is asked to look at the clock and its deadline has passed. It is asked
// without the tenure's mu.
type deadliner interface{ checkDeadline() }

func (t *tenure) begin(l deadliner) { t.lease = l }

// endLocked ends the lease for its holder.
func (t *tenure) endLocked(err error) {
	t.err = err
	if t.done != nil {
		close(t.done)
	}
	for c := range t.contexts {
		c.forget()
		c.cancel(err)
	}
	t.contexts = nil
}

// Err is nil while the lease is held; then ErrReleased or an error that is ErrLost.
func (t *tenure) Err() error {
	t.lease.checkDeadline()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Done is closed when the lease is held no more.
func (t *tenure) Done() <-chan struct{} {
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

// Context is a child of parent that also ends when the lease does, with the lease's error as its cause.
func (t *tenure) Context(parent context.Context) context.Context {
	inner, cancel := context.WithCancelCause(parent)
	c := &leaseContext{Context: inner, lease: t.lease, cancel: cancel}
	t.lease.checkDeadline()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		cancel(t.err)
		return c
	}
	if t.contexts == nil {
		t.contexts = map[*leaseContext]struct{}{}
	}
	t.contexts[c] = struct{}{}
	c.forget = context.AfterFunc(inner, func() { // the parent may end first
		t.mu.Lock()
		delete(t.contexts, c)
		t.mu.Unlock()
	})
	return c
}

// leaseContext looks at the lease's deadline when it is asked, so that a process that was frozen learns of the loss
// from the first question, and not only when its clockwork has come round.
type leaseContext struct {
	context.Context
	lease  deadliner
	cancel context.CancelCauseFunc
	forget func() bool // stops waiting for the parent
}

// Err is as in context.Context.
func (c *leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	c.lease.checkDeadline()
	return c.Context.Err()
}
