package engine

import (
	"context"
	"errors"
	"time"
)

// Convert waits for a lease that comes in the place of another one of the same name, which ends in the same step at the
// server: there is no moment at which neither is held. The terms say what the new lease is. If it does not come about,
// the other one is held as before.
func (l *Lock) Convert(ctx context.Context, from *Hold, t Terms) (*Hold, error) {
	if from == nil {
		return nil, l.fail(ErrReleased)
	}
	if from.lock.keys != l.keys || from.lock.e != l.e {
		return nil, Invalid("the lease is of %s %q in another keeper or of another lock than %q", from.Kind(), from.Name(), l.spec.Name)
	}
	if err := from.Err(); err != nil {
		return nil, l.fail(err)
	}
	if !from.convert() {
		return nil, Invalid("the lease of %q is being converted already", from.Name())
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	t.origin = from
	h, err := l.obtain(from.Context(waiting), t, true) // the wait ends with the lease that it is for
	if err == nil {
		from.replaced()
		return h, nil
	}
	if d := from.undoing.Swap(nil); d == nil {
		from.converted()
	} else { // what became of the conversion is known when it has been undone
		grace := time.NewTimer(graceAfterEnd)
		defer grace.Stop()
		select {
		case <-d.over:
		case <-grace.C:
		}
	}
	switch lost := from.Err(); {
	case ctx.Err() != nil && lost != nil:
		err = errors.Join(err, lost)
	case ctx.Err() != nil, errors.Is(err, ErrClosed):
	case lost != nil:
		err = l.fail(lost)
	case errors.Is(err, ErrConflict):
	case errors.Is(err, ErrNotAcquired): // the server does not know the lease that was to be converted
		from.lose(errNotHeld)
		err = l.fail(from.Err())
	}
	return nil, err
}

// convert notes that the lease is being converted: until that has ended, a renewal that is refused means nothing.
func (h *Hold) convert() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil || h.converting {
		return false
	}
	h.converting = true
	return true
}

// converted notes that the conversion has not come about.
func (h *Hold) converted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.converting = false
	if h.err == nil && !h.lock.spec.Fixed {
		h.renewAt = time.Now() // the server may not know it any more
		h.setLocked()
	}
}

// replaced ends a lease in whose place another one has come: there is nothing to give back.
func (h *Hold) replaced() {
	h.mu.Lock()
	h.converting = false
	if h.err != nil {
		h.mu.Unlock()
		return
	}
	h.endLocked(ErrReleased)
	h.mu.Unlock()
	h.forget()
	h.observe(Released, time.Since(h.since), nil)
}
