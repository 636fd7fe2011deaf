package conformance

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

// clockJumpsPastLease sets the server's clock past the end of a lease, so the next waiter is granted the lock. The
// first holder learns of it by its next renewal; until then there are two.
func clockJumpsPastLease(w *World) {
	if w.Real {
		return // a real server uses the clock of the machine
	}
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	defer w.mini.SetTime(time.Time{})
	defer w.shiftClock(time.Hour)()
	second := w.hold(w.Process().Lock("x"))
	check.Is(w, first.Err(), nil, "the first holder considers its lease lost before its renewal")
	w.checkFenceRises(first, second)
	w.awaitLoss(first, time.Minute/3)
	w.release(second)
}

// clockSetBackWhileHeld sets the server's clock back while the lock is held. The lease is renewed as before. After a
// crash of its holder it would last until the clock has caught up; the next waiter's heartbeat shortens it to its
// ttl. A primitive without a queue has no waiter that does so.
func clockSetBackWhileHeld(w *World) {
	if w.Real {
		return
	}
	p := w.Process()
	first := w.hold(p.Lock("x"))
	defer w.mini.SetTime(time.Time{})
	defer w.shiftClock(-time.Hour)()
	// A server stores the time at which a key expires, the embedded one the time that is left, so this shifts it by
	// hand.
	back := func() {
		key := w.P.Key("x")
		w.must(w.admin.PExpire(w.ctx(), key, w.admin.PTTL(w.ctx(), key).Val()+time.Hour).Err())
	}
	back()
	time.Sleep(2 * ttl)
	w.must(first.Err())
	p.Crash()
	back() // a renewal may have replaced it
	ch := w.lockAsync(w.ctx(), w.Process().Lock("x"))
	r := w.awaitGrant(ch, ttl+2*heartbeatInterval)
	w.checkFenceRises(first, r.lease)
	w.release(r.lease)
}
