package engine

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// proposal registers a request for a token that goes to several servers, as a waiter that never stands in line. It
// returns nil after Close.
func (l *Lock) proposal(u *MajorityLease) *request {
	// The token is registered in the place of a serial: serials of another keeper would mix with those of this one.
	w := &request{lock: l, serial: u.token, token: u.token, majority: u, end: make(chan struct{})}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if l.e.closed {
		return nil
	}
	l.e.requests[w.serial] = w
	return w
}

// propose sends the request, once more if its connection breaks, and tells what was answered: when the waiter has ended with
// a lease, or why there is none.
func (w *request) propose(again bool, told func(w *request, a acquireReply, sent time.Time, err error)) {
	l := w.lock
	w.copySent(time.Now())
	call := l.call(l.spec.Scripts.Acquire, 4, 8, func(call *transport.Call) {
		w.copyDone(transport.OutcomeOf(call.Err))
		if again && transport.OutcomeOf(call.Err) == transport.InDoubt && transport.Retryable(call.Err) && !w.hasEnded() {
			w.propose(false, told)
			return
		}
		a, err := parseAcquire(call)
		if err == nil {
			err = w.takeReply(call, a)
		} else if call.Err == nil {
			w.markInDoubt()
		}
		told(w, a, call.Sent, err)
	})
	call.Args = lua.AcquireArgs(call.Args, w.token, l.args.ttl, l.args.metadataTTL, 0, l.args.channelPrefix, l.args.sharded, "", 0)
	l.e.transport.Send(call)
}

// takeReply ends the waiter with a lease, or says why there is none.
func (w *request) takeReply(call *transport.Call, a acquireReply) error {
	switch a.code {
	case lua.Granted:
		if a.more {
			w.lock.continueAdmitting()
		}
		return w.grant(a.fence, call.Sent, a.until-a.now, false)
	case lua.Refused:
		w.mu.Lock()
		w.had = w.inDoubt
		w.mu.Unlock()
		return ErrNotAcquired
	case lua.Tombstoned:
		return errTombstoned
	}
	w.markInDoubt()
	return fmt.Errorf("%w: code %d for a try", transport.ErrReply, a.code)
}

// raiseFence asks the server for its second word on a lease: that it still holds it, and will give larger fences only.
func (h *Lease) raiseFence(least int64, up time.Duration, told func(err error)) {
	l := h.lock
	call := l.call(l.spec.Scripts.RaiseFence, 2, 4, func(call *transport.Call) {
		n, err := parseReply(call)
		switch {
		case err != nil:
		case n[0] == lua.Granted:
			if err = n.checkLength(2); err == nil && n[1] < least {
				err = fmt.Errorf("%w: fence %d after %d, from affirm", transport.ErrReply, n[1], least)
			}
		case n[0] == lua.Refused:
			h.lose(ErrNotHeld)
			err = ErrNotHeld
		case n[0] == lua.Unknown:
			if err = n.checkLength(2); err == nil {
				err = fmt.Errorf("%w: it has run for %v", errRecentRestart, duration(n[1]))
			}
		default:
			err = fmt.Errorf("%w: code %d from affirm", transport.ErrReply, n[0])
		}
		told(err)
	})
	call.Args = lua.RaiseFenceArgs(call.Args, h.token, least, l.args.metadataTTL, millis(up))
	l.e.transport.Send(call)
}
