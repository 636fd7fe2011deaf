package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/pubsub"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// noPushFlag, in a token, says that the keeper cannot receive messages. The waiter is granted the lock in its turn all the
// same, and learns of it at its next heartbeat.
const noPushFlag = "s"

// request is one request on its way to a grant. It ends once, by a grant or by leaving, whichever is first; a grant
// that comes after it left is undone by its cleanup.
type request struct {
	lock      *Lock
	serial    string
	token     string
	policyArg any           // the token of the lease to be replaced, or a semaphore's limits, or ""
	owner     *Owner        // of the lease, see Lease.owner; nil: none
	origin    *Lease        // the lease to be replaced; nil: none
	noPush    bool          // the keeper cannot receive messages
	quota     *Quota        // where to store what the reply says of the window; nil: nowhere
	notified  bool          // a message about its grant came; guarded by the engine's mu, as is due
	due       time.Time     // when to send a heartbeat once it is queued, if that was asked for before; zero: not asked
	end       chan struct{} // closed when the request has ended

	mu             sync.Mutex // guards what follows
	state          requestState
	atServer       tokenState    // by the calls that have ended; see atServerLocked
	copiesInFlight int           // calls under way
	health         *ServerHealth // of the server; that of its queue, once it is queued
	own            ServerHealth  // before that
	lease          *Lease        // if it is leased
	fence          uint64        // if it is leased or permitted
	err            error         // if it has failed
	cleanup        *Cleanup      // once it has ended without a lease, if there is something to clean up
	place          int64         // in the server's queue; 0: it was not queued
	reportedRank   int           // the last position that the observer was told; -1: none
	// A grant by a message counts from askedAt if its fence is larger than floor. askedAt is when the last call was sent that
	// the server answered with "waiting", and floor is the last fence it had drawn by then. So the grant was made after
	// that answer, and no clocks need to be compared. Before any answer, askedAt is when the first call was sent.
	askedAt time.Time
	floor   int64
}

// newRequest registers a request, so that messages find it. It returns nil after Close. c is the health that earlier requests
// have recorded, or nil.
func (l *Lock) newRequest(t Terms, c *ServerHealth) *request {
	w := &request{lock: l, health: c, serial: l.e.nextSerial(), end: make(chan struct{}), reportedRank: -1}
	if c == nil {
		w.own.maxAge = l.e.maxAge()
		w.health = &w.own
	}
	w.token = l.token(w.serial, t)
	w.noPush = strings.Contains(t.Flags, noPushFlag)
	w.quota = t.quota
	w.policyArg = l.args.policyArg
	if t.origin != nil {
		w.policyArg, w.origin = t.origin.token, t.origin
	}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if l.e.closed {
		return nil
	}
	l.e.requests[w.serial] = w
	return w
}

// acquire makes one request and waits for its end. Without an error it was granted what it asked for.
func (l *Lock) acquire(ctx context.Context, t Terms, wait bool, c *ServerHealth) (*request, error) {
	w := l.newRequest(t, c)
	if w == nil {
		return nil, l.fail(ErrClosed)
	}
	// A request is queued only once the server has acknowledged the keeper's subscription. A keeper subscribes when it has to
	// wait for the first time, so until then a request is a try: most locks are free.
	if !wait || l.e.subscriber.IsSubscribed(l.channel) {
		return w, w.await(ctx, wait, wait)
	}
	c = w.known()
	err := w.await(ctx, false, true)
	if !errors.Is(err, ErrNotAcquired) || ctx.Err() != nil {
		return w, err
	}
	if w.origin != nil && w.cleanup != nil { // a copy of the call may have been granted the lease
		if !waitFor(ctx, w.cleanup.finished) {
			return nil, l.fail(c.waitEnded(ctx))
		}
		if w.cleanup.found != nil || w.cleanup.failure != nil {
			return nil, err
		}
		w.origin.setUndoing(nil)
	}
	if err := l.listen(ctx, c); err != nil {
		if ctx.Err() != nil {
			return nil, l.fail(err)
		}
		if errors.Is(err, pubsub.ErrClosed) {
			return nil, l.fail(ErrClosed)
		}
		t.Flags += noPushFlag
	}
	if w = l.newRequest(t, c); w == nil {
		return nil, l.fail(ErrClosed)
	}
	return w, w.await(ctx, true, true)
}

// listen subscribes the keeper to the lock's channel. It returns an error if that is not permitted, or not acknowledged within
// a heartbeat interval.
func (l *Lock) listen(ctx context.Context, c *ServerHealth) error {
	limited, cancel := context.WithTimeout(ctx, l.e.cfg.HeartbeatInterval)
	defer cancel()
	began := time.Now()
	c.Sent(began)
	defer c.Dropped(began)
	err := l.e.subscriber.Subscribe(limited, l.channel)
	if err != nil && ctx.Err() != nil {
		return c.waitEnded(ctx)
	}
	return err
}

// await sends the request, waits in the queue if stand is set and the lock is not free, and returns when the request has
// ended. A patient request is repeated for as long as the retry policy allows.
func (w *request) await(ctx context.Context, stand, patient bool) error {
	if err := w.ask(ctx, stand, patient); err != nil {
		w.leave(err)
		_, err := w.result()
		return err
	}
	near, stop := nearDeadline(ctx)
	defer stop()
	for waiting := true; waiting; {
		select {
		case <-w.end:
			waiting = false
		case <-ctx.Done():
			w.leave(w.lock.fail(w.known().waitEnded(ctx)))
			waiting = false
		case <-near:
			w.lock.e.askNow(w.lock.key(keyQueue))
		}
	}
	if err := ctx.Err(); err != nil {
		// The grant and the end of ctx may coincide; then the caller does not get it, unless it replaces the lease that the
		// caller had.
		if w.origin == nil && w.wasGranted() {
			w.abandonGrant()
			return w.lock.fail(ErrNotAcquired, err)
		}
	}
	_, err := w.result()
	return err
}

// abandonGrant releases in the background what the request was granted and nobody uses. It returns nil if that is nothing.
func (w *request) abandonGrant() *Cleanup {
	if h, _ := w.result(); h != nil {
		d, _ := h.release(w.lock.e.transport.Send, true)
		return d
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != requestPermitted {
		return nil
	}
	w.undoLocked()
	return w.cleanup
}

// known returns what is known of the health of the server.
func (w *request) known() *ServerHealth {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

func (w *request) result() (*Lease, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lease, w.err
}

// ask sends the request until it is answered. It returns nil if the token now holds the lock or is queued. A reply that grants
// a lease which is over when the reply arrives counts as none: the request is sent again at once. As for replies that do not
// come, that ends with the context, with the third attempt of a try, or when the retry policy gives up.
func (w *request) ask(ctx context.Context, stand, patient bool) error {
	l := w.lock
	tries := 0
	if !patient {
		tries = MaxTries
	}
	began := time.Now()
	for try := 1; ; try++ {
		err := w.askOnce(ctx, stand, tries, began)
		switch {
		case !errors.Is(err, ErrTooLate):
			if try > 1 && err != nil && errors.Is(err, ctx.Err()) {
				return l.fail(ErrTooLate, ctx.Err())
			}
			return err
		case ctx.Err() != nil, try == tries, l.e.cfg.Retry.Exhausted(began, time.Now()):
			return l.fail(ErrTooLate, ctx.Err())
		}
	}
}

// askOnce sends the request until it is answered, and handles the reply. began is when the first call was sent.
func (w *request) askOnce(ctx context.Context, stand bool, tries int, began time.Time) error {
	l := w.lock
	var heartbeatTTL any = 0
	if stand {
		heartbeatTTL = l.args.heartbeatTTL
	}
	c := w.known()
	call, _, err := l.e.roundTrip(ctx, w.end, tries, func(done func(*transport.Call)) *transport.Call {
		w.copySent(began)
		sent := time.Now()
		c.Sent(sent)
		script := l.spec.Scripts.Acquire
		if w.quota != nil {
			script = l.spec.Scripts.Allow
		}
		return l.acquireCall(script, w.token, heartbeatTTL, w.policyArg, l.maxWait(ctx, stand), func(call *transport.Call) {
			if _, err := w.decode(call); err != nil {
				c.Failed(sent, err)
			} else {
				c.Answered(sent)
			}
			w.copyDone(transport.OutcomeOf(call.Err))
			done(call)
		})
	})
	switch {
	case errors.Is(err, errStopped): // a message came before the reply, or Close was called
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return l.fail(c.waitEnded(ctx))
	case err != nil:
		return l.fail(err)
	}
	a, err := w.decode(call)
	if err != nil {
		w.markInDoubt()
		return l.fail(err)
	}
	if w.quota != nil {
		*w.quota = newQuota(a)
	}
	if a.LimitsChanged && l.spec.Limits != nil {
		l.limitsChanged(w.token, l.spec.Limits.own())
	}
	if a.Code == lua.Refused && a.More {
		return w.askOnce(ctx, stand, tries, began) // more leases have ended than one script sweeps
	}
	return w.answered(call, a)
}

// decode returns the reply to the request.
func (w *request) decode(call *transport.Call) (protocol.AcquireReply, error) {
	if w.quota != nil {
		return decode(call, protocol.ParseAllowReply)
	}
	return decode(call, protocol.ParseAcquireReply)
}

// maxWait returns how many ms the caller can wait at most, or 0 if the server cannot know how long it would have to.
func (l *Lock) maxWait(ctx context.Context, stand bool) any {
	if end, ok := ctx.Deadline(); ok && stand && l.spec.Limits.byClock() {
		return max(millis(time.Until(end)), 1)
	}
	return 0
}

// answered handles the reply of acquire.lua.
func (w *request) answered(call *transport.Call, a protocol.AcquireReply) error {
	switch a.Code {
	case lua.Granted:
		err := w.grant(a.Fence, call.Sent, a.ExpiresIn, false)
		if a.More {
			w.lock.continueAdmitting()
		}
		return err
	case lua.Waiting:
		w.stillWaiting(call.Sent, a.Seq, a.Place)
		w.lock.enqueue(w, a)
		return nil
	case lua.Refused:
		w.markAbsent()
		if !w.lock.spec.Limits.byClock() {
			return w.lock.fail(ErrNotAcquired)
		}
		return w.lock.fail(ErrNotAcquired, tooSoon(time.Now(), a.RetryAfter))
	case lua.Conflict:
		return w.lock.fail(ErrConflict)
	case lua.AboveLimit:
		return w.lock.fail(ErrAboveLimit)
	}
	return w.lock.fail(ErrNotAcquired, errTombstoned)
}

var (
	errTombstoned = errors.New("the request was given up while it was under way")
	// ErrTooLate means that the server granted a lease, but its answer came when the lease was about to expire.
	ErrTooLate = Chain(ErrUnavailable, errors.New("the answer came when the lease was as good as over"))
)

// push handles the message about a grant. Such a grant lasts until the heartbeat times out that the server received last, or
// for the ttl if that is shorter. The last heartbeat that was answered is that one or an earlier one; so the lease lasts for
// claimTTL, counted from when that heartbeat was sent.
func (w *request) push(fence int64) {
	w.mu.Lock()
	asked, fresh := w.askedAt, fence > w.floor
	w.mu.Unlock()
	trusted := time.Until(asked.Add(w.lock.trusted(w.lock.claimTTL)))
	if !fresh || trusted < duration(w.lock.claimTTL)/8 {
		// An old message, or too little of the lease is certain: ask the server.
		w.lock.e.heartbeatBy(w, time.Now())
		return
	}
	err := w.grantThen(fence, asked, w.lock.claimTTL, true, func() {
		ev := w.lock.event(WakeupReceived)
		ev.Token, ev.Fence = w.token, uint64(fence)
		w.lock.e.observe(ev)
	})
	if err == ErrTooLate {
		w.lock.e.heartbeatBy(w, time.Now())
	}
}

// grant ends the request as granted, for ms from then on. claim says that the grant may be shorter than the ttl and has to be
// confirmed. It does nothing if the request has ended. If too little is left of the lease, it returns ErrTooLate: the request
// goes on, and the caller must make it ask again.
func (w *request) grant(fence int64, from time.Time, ms int64, claim bool) error {
	return w.grantThen(fence, from, ms, claim, func() {})
}

// grantThen is grant, and calls first before the caller of the request is unblocked.
func (w *request) grantThen(fence int64, from time.Time, ms int64, claim bool, first func()) error {
	deadline := from.Add(w.lock.trusted(ms))
	w.mu.Lock()
	if w.state.ended() {
		w.mu.Unlock()
		return nil
	}
	if time.Until(deadline) <= 0 {
		w.mu.Unlock()
		return ErrTooLate
	}
	if w.lock.spec.Limits.clockOnly() {
		if w.lock.e.isClosed() {
			w.mu.Unlock()
			return w.lock.fail(ErrClosed) // Close is about to end the request
		}
		w.state, w.fence = requestPermitted, uint64(fence)
		w.mu.Unlock()
		first()
		close(w.end)
		w.abandoned()
		return nil
	}
	h := w.lock.newLease(w.token, fence, deadline)
	if w.atServerLocked() == tokenInDoubt || w.lock.e.cfg.ReplicaAck.enabled() { // otherwise it is no longer needed
		h.request = w
	}
	if claim {
		h.state = leaseUnconfirmed
	}
	if w.owner != nil {
		h.owner, h.grantedAt = w.owner, w.owner.Since
	}
	if !w.lock.e.addLease(h) {
		w.mu.Unlock()
		return w.lock.fail(ErrClosed) // Close is about to end the request
	}
	w.state, w.lease, w.fence = requestLeased, h, h.fence
	w.mu.Unlock()
	first()
	close(w.end)
	h.start()
	w.abandoned()
	return nil
}

// leave ends the request as failed, and cleans up in the background what it may have at the server. It does nothing if the
// request has ended.
func (w *request) leave(err error) {
	w.mu.Lock()
	if w.state.ended() {
		w.mu.Unlock()
		return
	}
	if err == ErrClosed { // from Close, which does not know the lock
		err = w.lock.fail(ErrClosed)
	}
	w.state, w.err = requestFailed, err
	if w.atServerLocked() != tokenAbsent {
		w.undoLocked()
	}
	close(w.end)
	w.mu.Unlock()
	w.abandoned()
}

// undoLocked starts a cleanup of what the request has, or may have, at the server.
func (w *request) undoLocked() {
	w.cleanup = w.lock.newCleanup(w.token, w.atServerLocked() == tokenInDoubt, time.Now().Add(w.lock.spec.TTL+w.lock.e.cfg.HeartbeatTimeout))
	w.cleanup.unused = unusedLease
	if w.origin != nil {
		w.cleanup.unused, w.cleanup.origin, w.cleanup.request = unusedUnlessGranted, w.origin, w
		w.origin.setUndoing(w.cleanup)
	}
	w.cleanup.send(w.lock.e.transport.Send)
}

// stop ends the request as failed, without a cleanup. It reports whether there may be something to clean up at the server. It
// does nothing if the request has ended. The caller calls abandoned.
func (w *request) stop(err error) (something bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.ended() {
		return false
	}
	w.state, w.err = requestFailed, err
	close(w.end)
	return w.atServerLocked() != tokenAbsent
}

// abandoned unregisters the request.
func (w *request) abandoned() {
	e := w.lock.e
	e.mu.Lock()
	if e.requests[w.serial] == w { // else it is a later one of the same token; see NewTokenRequest
		delete(e.requests, w.serial)
	}
	e.mu.Unlock()
	w.lock.e.leaveQueue(w)
}
