package keeper

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Convert acquires a lease, described by the terms, that replaces another lease of the same name. The server ends the old
// lease and grants the new one in one step, so there is no moment at which neither is held. If the conversion fails, the old
// lease is held as before.
//
// If ctx ends or the server does not answer before the outcome is known, Convert determines the outcome, for CancelGrace in
// the caller's time and then in the background. If the conversion turns out to have taken effect within that time, the new
// lease is returned. Otherwise the caller keeps what both leases permit. If the new lease permits less (t.Direct), Convert
// returns a lease that permits as much as the new one. If it permits more, the caller keeps the old lease and gets the
// error. In either case, that lease becomes the one that the server turns out to have. The new lease lasts at least as long
// as the old one would have, so the old lease's deadline is valid for both.
func (l *Lock) Convert(ctx context.Context, from *Lease, t Terms) (*Lease, error) {
	if from == nil {
		return nil, l.Fail(server.ErrReleased)
	}
	if !from.Same(l.AtServer()) {
		return nil, l.Invalid("the lease is of %s %q, of another keeper or another lock; pass a lease of this lock", from.Kind(), from.Name())
	}
	t.origin = from
	h, err := l.acquire(ctx, t, true, (*Lock).convert)
	if err == nil {
		from.ReplacedBy(h)
	}
	return h, err
}

// convert is Convert of the lease that the terms name.
func (l *Lock) convert(ctx context.Context, t Terms, wait bool) (*Lease, error) {
	from := t.origin
	if err := from.BeginConversion(ctx); err != nil {
		return nil, err
	}
	if next := from.Next(); next != nil {
		if next.Is(t.Flags) { // an earlier call's conversion took effect
			if l.awaitReplicas(ctx, next) == nil {
				if h := from.HandOver(next, t.Observation); h != nil {
					return h, nil
				}
			}
			return nil, l.Fail(next.Err())
		}
		t.origin = next
		return l.convert(ctx, t, wait)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := l.Request(from.Context(waiting), t, wait) // the wait ends when the old lease does
	if err == nil {
		return h, nil
	}
	settled := false
	if c := from.Undoing(); c != nil {
		h, known, lost := l.resolve(ctx, from, c, t)
		switch {
		case lost != nil:
			err = lost
		case h != nil:
			return h, nil
		}
		if !known && from.Err() == nil {
			return nil, err
		}
		settled = known && lost == nil
	}
	if !settled {
		from.EndConversion()
	}
	switch lost := from.Err(); {
	case ctx.Err() != nil && lost != nil:
		err = l.Fail(err, lost)
	case ctx.Err() != nil:
	case errors.Is(err, server.ErrClosed):
		err = l.Fail(server.ErrClosed) // without the end of the old lease's context, which is not the caller's
	case lost != nil:
		err = l.Fail(lost)
	case errors.Is(err, server.ErrConflict):
	case errors.Is(err, server.ErrNotAcquired) && h.Denied(): // the server does not know the old lease
		from.LoseRefused()
		err = l.Fail(from.Err())
	}
	return nil, err
}

// resolve determines the outcome of a conversion whose request was given up, by its cleanup. It returns the lease that the caller gets instead
// of the old one, or nil, and whether the outcome is known. If the new lease has taken effect, but replicas have not acknowledged it, it is
// released, and the error says so.
func (l *Lock) resolve(ctx context.Context, from *Lease, c *Cleanup, t Terms) (h *Lease, known bool, err error) {
	select {
	case <-c.Done():
	case <-time.After(CancelGrace):
	}
	h, known = from.ResolveInBackground(c, t.Direct, t.Flags, t.Observation)
	if h != nil && h == c.Lease() {
		err = l.awaitReplicas(ctx, h)
	}
	return h, known, err
}
