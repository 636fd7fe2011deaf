package engine

import "time"

// This file has the two ends of a request: it is granted, or it leaves.

// push handles the message about a grant. The lease lasts for claimTTL. The server counts from the last heartbeat that it has
// received, and push from the last one that was answered, which is never later; so the lease is never relied on too long. A message
// is only a message: whoever may publish can send one. So it counts only if it fits what the server has answered.
func (r *request) push(fence int64) {
	r.mu.Lock()
	asked, floor, clock := r.askedAt, r.floor, r.clock
	if clock == 0 { // it has overtaken the reply that the request waits, so nothing is known that it can be checked by
		r.early = max(r.early, fence)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	if !WakeupCounts(fence, floor, clock, asked, time.Now(), r.lock.claimTTL) {
		r.lock.e.heartbeatsBy(r, time.Now())
		return
	}
	err := r.grantThen(fence, asked, r.lock.claimTTL, leaseUnconfirmed, func() {
		ev := r.lock.Event(WakeupReceived, r.observation)
		ev.Token, ev.Fence = r.token, uint64(fence)
		r.lock.e.observe(ev)
	})
	if err == ErrTooLate {
		r.lock.e.heartbeatsBy(r, time.Now())
	}
}

// grant ends the request as granted, for ms from then on. The lease is leaseUnconfirmed if it may be shorter than the ttl, else
// leaseHeld. It does nothing if the request has ended. If too little is left of the lease, it returns ErrTooLate: the request
// goes on, and the caller must make it ask again.
func (r *request) grant(fence int64, from time.Time, ms int64, state leaseState) error {
	return r.grantThen(fence, from, ms, state, func() {})
}

// grantThen is grant, and calls first before the caller of the request is unblocked.
func (r *request) grantThen(fence int64, from time.Time, ms int64, state leaseState, first func()) error {
	deadline := LeaseUntil(from, ms)
	r.mu.Lock()
	if r.state.ended() {
		r.mu.Unlock()
		return nil
	}
	if !GrantInTime(deadline, time.Now()) {
		r.mu.Unlock()
		return ErrTooLate
	}
	if r.lock.spec.Limits.clockOnly() {
		if r.lock.e.isClosed() {
			r.mu.Unlock()
			return r.lock.fail(ErrClosed) // Close is about to end the request
		}
		r.state, r.fence = requestPermitted, uint64(fence)
		r.withdrawLocked()
		r.mu.Unlock()
		first()
		r.end.close()
		r.unregister()
		return nil
	}
	r.withdrawLocked()
	h := r.lock.newLease(r.token, fence, deadline, r.observation)
	if r.NeedsTombstone() || r.lock.e.cfg.ReplicaAck.enabled() { // otherwise it is no longer needed
		h.request = r
	}
	h.state, h.retention = state, r.retention
	h.setDeadlineLocked(deadline)
	if r.owner != nil {
		h.owner, h.grantedAt = r.owner, r.owner.Since
	}
	if !r.lock.e.addLease(h) {
		r.mu.Unlock()
		return r.lock.fail(ErrClosed) // Close is about to end the request
	}
	r.state, r.lease, r.fence = requestLeased, h, h.fence
	r.mu.Unlock()
	first()
	r.end.close()
	h.start()
	r.unregister()
	return nil
}

// abandonGrant releases in the background what the request was granted and nobody uses. It returns nil if that is nothing.
func (r *request) abandonGrant() *Cleanup {
	if h, _ := r.result(); h != nil {
		c, _ := h.release(r.lock.e.transport.Send, true)
		return c
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != requestPermitted {
		return nil
	}
	r.undoLocked()
	return r.cleanup
}

// leave ends the request as failed, and cleans up in the background what it may have at the server. It does nothing if the
// request has ended.
func (r *request) leave(err error) {
	r.mu.Lock()
	if r.state.ended() {
		r.mu.Unlock()
		return
	}
	if err == ErrClosed { // from Close, which does not know the lock
		err = r.lock.fail(ErrClosed)
	}
	r.state, r.err = requestFailed, err
	r.withdrawLocked()
	if r.NeedsCleanup() {
		r.undoLocked()
	}
	r.end.close()
	r.mu.Unlock()
	r.unregister()
}

// undoLocked starts a cleanup of what the request has, or may have, at the server.
func (r *request) undoLocked() {
	r.cleanup = r.lock.newCleanup(r.token, r.NeedsTombstone(), time.Now().Add(r.lock.spec.TTL+r.lock.e.cfg.HeartbeatTimeout))
	r.cleanup.unused, r.cleanup.owner = unusedLease, r.owner
	if r.origin != nil {
		r.cleanup.unused, r.cleanup.origin, r.cleanup.request = unusedUnlessGranted, r.origin, r
		r.origin.setUndoing(r.cleanup)
	}
	r.cleanup.send(r.lock.e.transport.Send)
}

// stop ends the request as failed, without a cleanup. It reports whether there may be something to clean up at the server. It
// does nothing if the request has ended. The caller calls unregister.
func (r *request) stop(err error) (something bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.ended() {
		return false
	}
	r.state, r.err = requestFailed, err
	r.withdrawLocked()
	r.end.close()
	return r.NeedsCleanup()
}

// unregister removes a request that has ended, so that messages no longer find it and no heartbeat is sent for it.
func (r *request) unregister() {
	e := r.lock.e
	e.mu.Lock()
	if e.requests[r.serial] == r { // else it is a later one of the same token; see NewTokenRequest
		delete(e.requests, r.serial)
	}
	e.mu.Unlock()
	r.lock.e.leaveQueue(r)
}
