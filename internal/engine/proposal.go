package engine

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// proposal registers a request for a token that goes to several servers, as a waiter that never stands in line. It
// returns nil after Close.
func (l *Lock) proposal(u *MajorityHold) *waiter {
	// The token is registered in the place of a serial: serials of another keeper would mix with those of this one.
	w := &waiter{lock: l, serial: u.token, token: u.token, whole: u, end: make(chan struct{})}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if l.e.closed {
		return nil
	}
	l.e.waiters[w.serial] = w
	return w
}

// propose sends the request, once more if its connection breaks, and tells what was answered: when the waiter has ended with
// a lease, or why there is none.
func (w *waiter) propose(again bool, told func(w *waiter, a answer, sent time.Time, err error)) {
	l := w.lock
	w.leaves(time.Now())
	call := l.call(l.spec.Scripts.Acquire, 4, 8, func(call *transport.Call) {
		w.arrived(transport.FateOf(call.Err))
		if again && transport.FateOf(call.Err) == transport.Lost && transport.Passing(call.Err) && !w.hasEnded() {
			w.propose(false, told)
			return
		}
		a, err := parseAnswer(call)
		if err == nil {
			err = w.concludes(call, a)
		} else if call.Err == nil {
			w.doubt()
		}
		told(w, a, call.Sent, err)
	})
	call.Args = lua.AcquireArgs(call.Args, w.token, l.args.ttl, l.args.idle, 0, l.args.wake, l.args.sharded, "", 0)
	l.e.courier.Send(call)
}

// concludes ends the waiter with a lease, or says why there is none.
func (w *waiter) concludes(call *transport.Call, a answer) error {
	switch a.code {
	case lua.Granted:
		if a.more {
			w.lock.nudge()
		}
		return w.grant(a.fence, call.Sent, a.until-a.now, false)
	case lua.Refused:
		w.mu.Lock()
		w.had = w.stray
		w.mu.Unlock()
		return ErrNotAcquired
	case lua.Buried:
		return errBuried
	}
	w.doubt()
	return fmt.Errorf("%w: code %d for a try", transport.ErrReply, a.code)
}

// affirm asks the server for its second word on a lease: that it still holds it, and will give larger fences only.
func (h *Hold) affirm(least int64, up time.Duration, told func(err error)) {
	l := h.lock
	call := l.call(l.spec.Scripts.Affirm, 2, 4, func(call *transport.Call) {
		n, err := parseReply(call)
		switch {
		case err != nil:
		case n[0] == lua.Granted:
			if err = n.want(2); err == nil && n[1] < least {
				err = fmt.Errorf("%w: fence %d after %d, from affirm", transport.ErrReply, n[1], least)
			}
		case n[0] == lua.Refused:
			h.lose(errNotHeld)
			err = errNotHeld
		case n[0] == lua.Unknown:
			if err = n.want(2); err == nil {
				err = fmt.Errorf("%w: it has run for %v", errYoung, duration(n[1]))
			}
		default:
			err = fmt.Errorf("%w: code %d from affirm", transport.ErrReply, n[0])
		}
		told(err)
	})
	call.Args = lua.AffirmArgs(call.Args, h.token, least, l.args.idle, millis(up))
	l.e.courier.Send(call)
}
