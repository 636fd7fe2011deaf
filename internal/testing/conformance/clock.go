package conformance

import "time"

// clockJumpsPastLease: the server's clock jumps past the end of a lease, and the next one gets in. The first holder is told by its
// next renewal; until then there are two.
func clockJumpsPastLease(w *World) {
	if w.Real {
		return // its clock is the machine's
	}
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	defer w.mini.SetTime(time.Time{})
	defer w.shiftClock(time.Hour)()
	second := w.hold(w.Process().Lock("x"))
	if err := first.Err(); err != nil {
		w.Errorf("the first holder has been told before it has asked: %v", err)
	}
	if second.Fence() <= first.Fence() {
		w.Errorf("fence %d after %d", second.Fence(), first.Fence())
	}
	w.awaitLoss(first, time.Minute/3)
	w.release(second)
}

// clockSetBackWhileHeld: the server's clock is set back while somebody holds. The lease is renewed as before. When its holder has
// crashed it would last until the clock is there again; it is cut to its ttl when the next one stands in line. A primitive
// without a line has nobody who does that.
func clockSetBackWhileHeld(w *World) {
	if w.Real {
		return
	}
	p := w.Process()
	first := w.hold(p.Lock("x"))
	defer w.mini.SetTime(time.Time{})
	defer w.shiftClock(-time.Hour)()
	// A server keeps the time at which a key ends, the embedded one how long it has left. So this is done by hand.
	back := func() {
		key := w.P.Key("x")
		w.must(w.admin.PExpire(w.ctx(), key, w.admin.PTTL(w.ctx(), key).Val()+time.Hour).Err())
	}
	back()
	time.Sleep(2 * ttl)
	w.must(first.Err())
	p.Crash()
	back() // a renewal may have changed it
	ch := w.lockAsync(w.ctx(), w.Process().Lock("x"))
	r := w.await(ch, ttl+2*heartbeatInterval)
	w.must(r.err)
	if r.lease.Fence() <= first.Fence() {
		w.Errorf("fence %d after %d", r.lease.Fence(), first.Fence())
	}
	w.release(r.lease)
}
