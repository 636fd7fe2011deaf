package keeper

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// This file converts leases of a read-write lock, from reading to writing and back. A converted lease keeps its token, its timer and its
// contexts. Its fence rises, and a mark at the server says that the lease does the opposite of what its token says (lua/policy/rwlock.lua).
//
// An upgrade is a request with a token of its own, which waits like any other. Its grant is no lease: it makes the first lease write. Releasing
// the request makes the first lease read again. A downgrade is one call, which deletes or sets the mark.

// conversion is the state of a lease's conversions. It is guarded by the lease's Mu.
type conversion struct {
	calls     int    // calls that have converted the lease, or tried to
	underWay  bool   // the last of these calls has not returned
	converted bool   // the lease does the opposite of what its token says
	upgrade   *Lease // the request that made the lease write; nil: none
}

// writer identifies a period in which a lease surely writes: after so many calls of conversions, with this mark. The zero writer is none.
type writer struct {
	calls     int
	converted bool
}

// writer returns the current period, or the zero writer if the lease was never converted, is being converted, or reads.
func (h *Lease) writer() writer {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if c := h.conversion; c != nil && !c.underWay && writesByToken(h.token) != c.converted {
		return writer{c.calls, c.converted}
	}
	return writer{}
}

// markLost reports whether the answer to a renewal shows that the server has lost the lease's upgrade, for example in a failover. sent is the
// lease's writer when the renewal was sent; if a conversion has come between, the answer shows nothing.
func (h *Lease) markLost(sent writer, r protocol.RenewReply) bool {
	return sent.calls > 0 && r.Held && r.Converted != sent.converted && h.writer() == sent
}

// writesByToken reports whether a lease of this token writes before any conversion.
func writesByToken(token string) bool {
	t, _ := protocol.ParseToken(token)
	return t.Flags != protocol.FlagRead
}

// beginConversion makes sure that the caller is the only one that converts the lease, until it calls end. The error is ErrInvalid if the lease is
// not of this lock, if another call converts it, or if it writes already, or reads already if write is false.
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

// converted notes that the lease writes, by an upgrade's request, or reads, if by is nil; and its new fence. It reports Released for the call that
// had the lease so far; from now on the lease's events are of o. It returns false if the lease has ended.
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

// Upgrade waits until no other lease is left, ahead of all waiting writers, and makes the lease write. The lease is held and renewed meanwhile.
// After an error it reads as before. o is the call, whose start was reported already; nil: Upgrade reports it.
func (l *Lock) Upgrade(ctx context.Context, h *Lease, o *Observation) error {
	t := Terms{Flags: protocol.FlagUpgrade, lease: h, Observation: o}
	_, err := l.acquire(ctx, t, true, (*Lock).upgrade)
	return err
}

// upgrade makes the lease of the terms write, and returns it.
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

// Downgrade makes a lease that writes read. It blocks until the server has answered, until ctx ends, or until the retry policy gives up. If there
// is no answer and the call may have run or may still run, the lease reads from now on, without an error, and the call is repeated in the
// background; until it is answered, the server may keep other readers out. After an error the lease has ended or writes as before. o is the
// call, whose start was reported already; nil: Downgrade reports it.
func (l *Lock) Downgrade(ctx context.Context, h *Lease, o *Observation) error {
	t := Terms{Flags: protocol.FlagRead, lease: h, Observation: o}
	_, err := l.acquire(ctx, t, false, (*Lock).downgrade)
	return err
}

// downgrade makes the lease of the terms read, and returns it.
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

// doubtfulUpgrade returns the token of the upgrade's request if a copy of that request may still arrive; else "".
func (h *Lease) doubtfulUpgrade() string {
	h.Mu.Lock()
	by := h.conversion.upgrade
	h.Mu.Unlock()
	if by == nil || !by.Snapshot().InDoubt() {
		return ""
	}
	return by.token
}

// sendDowngrade asks the server to make the lease read, if it writes with this fence, and to refuse copies of the upgrade's request with this token.
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
