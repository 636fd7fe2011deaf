package keeper

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// This file makes leases of a read-write lock write, or read. A lease that is converted keeps its token, its timer and its contexts. Its
// fence rises, and a mark at the server says that it does not do what its token says (lua/policy/rwlock.lua).
//
// An upgrade is a request, with a token of its own, that waits like any other. It is granted no lease: from its grant on, the other lease
// writes. To give it up is to release it: then that lease reads. A downgrade is one call.

// conversion is what a lease has that was converted, or is being converted. It is guarded by the lease's mu.
type conversion struct {
	calls     int    // that have converted the lease, or do
	underWay  bool   // the last of them does
	converted bool   // the lease does not do what its token says
	upgrade   *Lease // the request by which it writes; nil: none
}

// writer is a lease that is certain to write, since it was converted and no call converts it now: by which call, and how its token is to
// be read. The zero writer is no such lease.
type writer struct {
	calls     int
	converted bool
}

// writer returns the lease as such a one.
func (h *Lease) writer() writer {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if c := h.conversion; c != nil && !c.underWay && writesByToken(h.token) != c.converted {
		return writer{c.calls, c.converted}
	}
	return writer{}
}

// markLost reports whether the server takes the lease for a reader's, as after a failover that has lost the upgrade, by the answer to a
// renewal that was sent when the lease was this writer. No conversion may have come between.
func (h *Lease) markLost(sent writer, r protocol.RenewReply) bool {
	return sent.calls > 0 && r.Held && r.Converted != sent.converted && h.writer() == sent
}

// writesByToken reports whether a lease of this token writes that was not converted.
func writesByToken(token string) bool {
	t, _ := protocol.ParseToken(token)
	return t.Flags != protocol.FlagRead
}

// beginConversion makes the caller the one that converts the lease, and returns what ends that. The error is ErrInvalid if the lease is not of
// this lock, if another call converts it, or if it writes, or reads, already.
func (l *Lock) beginConversion(h *Lease, write bool) (end func(), err error) {
	if h == nil {
		return nil, l.Fail(server.ErrReleased)
	}
	if !h.lock.Same(l.AtServer()) {
		return nil, l.Invalid("the lease is of %s %q, of another keeper or another lock; pass a lease of this lock", h.Kind(), h.Name())
	}
	if err := h.Err(); err != nil {
		return nil, l.Fail(err)
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.conversion == nil {
		h.conversion = &conversion{}
	}
	c := h.conversion
	switch writes := writesByToken(h.token) != c.converted; {
	case c.underWay:
		return nil, l.Invalid("the lease is being converted by another call; wait until that call has returned")
	case write && writes:
		return nil, l.Invalid("the lease of %q is not a read lease", h.Name())
	case !write && !writes:
		return nil, l.Invalid("the lease of %q is not a write lease", h.Name())
	}
	c.calls++
	c.underWay = true
	return func() {
		h.Mu.Lock()
		c.underWay = false
		h.Mu.Unlock()
	}, nil
}

// converted notes that the lease writes, by that request, or reads, if that is nil, and its fence. It tells the observer that the call which
// had the lease so far has it no more; from now on events of the lease are of o. It reports false if the lease has ended.
func (h *Lease) converted(by *Lease, fence uint64, o *Observation) bool {
	h.Mu.Lock()
	if h.ErrLocked() != nil {
		h.Mu.Unlock()
		return false
	}
	h.conversion.converted, h.conversion.upgrade = writesByToken(h.token) != (by != nil), by
	former := h.observation
	h.observation = o
	h.Mu.Unlock()
	h.observeFor(former, h.fence.Swap(fence), Released, nil)
	return true
}

// Upgrade makes a lease write, when no other lease is left, and waits for that, ahead of all waiting writers. The lease is held and renewed
// meanwhile. After an error it reads as before. o is the call, for the observer, which was told of its start; nil: it is told here.
func (l *Lock) Upgrade(ctx context.Context, h *Lease, o *Observation) error {
	t := Terms{Flags: protocol.FlagUpgrade, lease: h, Observation: o}
	_, err := l.acquire(ctx, t, true, (*Lock).upgrade)
	return err
}

// upgrade is Upgrade of the lease that the terms name, which it returns.
func (l *Lock) upgrade(ctx context.Context, t Terms, wait bool) (*Lease, error) {
	h := t.lease
	end, err := l.beginConversion(h, true)
	if err != nil {
		return nil, err
	}
	defer end()
	whileHeld, cancel := context.WithCancel(ctx)
	defer cancel()
	granted, err := l.Request(h.Context(whileHeld), t, wait) // the wait ends when the lease does
	if err == nil {
		if h.converted(granted, granted.Fence(), t.Observation) {
			return h, nil
		}
		granted.Abandon()
	} else if errors.Is(err, server.ErrNotAcquired) && granted.Denied() { // the server does not know the lease
		return nil, h.LoseRefused(ctx)
	}
	switch lost := h.Err(); {
	case ctx.Err() != nil && lost != nil:
		return nil, l.Fail(err, lost)
	case ctx.Err() == nil && errors.Is(err, server.ErrClosed):
		return nil, l.Fail(server.ErrClosed) // without the end of the lease's context, which is not the caller's
	case ctx.Err() == nil && lost != nil:
		return nil, l.Fail(lost)
	}
	return nil, err
}

// Downgrade makes a lease read, which writes. It blocks until the server has answered, until ctx ends, or until the retry policy gives up. If
// the call may have run by then, or may still run, the lease reads from then on as well, and the call is repeated in the background: the
// server may have it as a writer's until that is answered. After an error it has ended, or writes as before. o is as for Upgrade.
func (l *Lock) Downgrade(ctx context.Context, h *Lease, o *Observation) error {
	t := Terms{Flags: protocol.FlagRead, lease: h, Observation: o}
	_, err := l.acquire(ctx, t, false, (*Lock).downgrade)
	return err
}

// downgrade is Downgrade of the lease that the terms name, which it returns.
func (l *Lock) downgrade(ctx context.Context, t Terms, _ bool) (*Lease, error) {
	h := t.lease
	end, err := l.beginConversion(h, false)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := server.ContextError(ctx); err != nil {
		return nil, l.Fail(err)
	}
	fence := h.Fence()
	whileHeld, cancel := context.WithCancel(ctx)
	defer cancel()
	undone := h.doubtfulUpgrade()
	r, inDoubt, err := h.sendDowngrade(h.Context(whileHeld), fence, undone)
	switch {
	case err == nil && !r.Held:
		return nil, h.LoseRefused(ctx)
	case err == nil:
		if h.converted(nil, uint64(r.Fence), t.Observation) {
			return h, nil
		}
	case inDoubt && h.converted(nil, fence, t.Observation):
		if l.k.BeginWork(false) {
			go func() {
				defer l.k.EndWork()
				_, _, _ = h.sendDowngrade(h.Context(context.Background()), fence, undone)
			}()
		}
		return h, nil
	}
	if lost := h.Err(); lost != nil {
		return nil, l.Fail(lost)
	}
	return nil, l.Fail(err)
}

// doubtfulUpgrade returns the token of the request by which the lease writes, if a copy of that may still be under way; else "".
func (h *Lease) doubtfulUpgrade() string {
	h.Mu.Lock()
	by := h.conversion.upgrade
	h.Mu.Unlock()
	if by == nil || !by.Snapshot().InDoubt() {
		return ""
	}
	return by.token
}

// sendDowngrade asks the server to let a lease read that writes with that fence, as RoundTrip does. It does not grant that upgrade again.
func (h *Lease) sendDowngrade(ctx context.Context, fence uint64, upgrade string) (r protocol.DowngradeReply, inDoubt bool, err error) {
	call, inDoubt, err := h.lock.k.RoundTrip(ctx, 0, func(p *server.Pending) { h.lock.SetDowngrade(&p.Call, h.token, fence, upgrade) })
	if err == nil {
		r, err = server.Decode(call, protocol.ParseDowngradeReply)
		inDoubt = err != nil
	}
	if r.More {
		h.lock.ContinueAdmitting()
	}
	return r, inDoubt, err
}
