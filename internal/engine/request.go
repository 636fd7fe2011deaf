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

// requestMode says what happens to a request that cannot be granted at once, and how often it is sent while it is not answered.
type requestMode uint8

const (
	modeTry      requestMode = iota // refused; sent MaxTries times at most
	modeTryFirst                    // refused, but of a caller who waits; sent for as long as the retry policy allows
	modeWait                        // queued; sent for as long as the retry policy allows
)

// request is one request on its way to a grant. It ends once, by a grant or by leaving, whichever is first; a grant
// that comes after it left is undone by its cleanup.
type request struct {
	lock        *Lock
	serial      string
	token       string
	policyArg   any          // the token of the lease to be replaced, or a semaphore's limits, or ""
	owner       *Owner       // of the lease, see Lease.owner; nil: none
	origin      *Lease       // the lease to be replaced; nil: none
	retention   *retention   // of the lease, if the process retains it
	observation *Observation // the call, for the observer
	noPush      bool         // the keeper cannot receive messages: it is granted the lock all the same, and learns of it by a heartbeat
	quota       *Quota       // where to store what the reply says of the window; nil: nowhere
	since       time.Time    // when the caller came
	end         signal       // when the request has ended

	// Guarded by the engine's mu.
	notified bool      // a message about its grant came
	due      time.Time // when to send a heartbeat once it is queued, if that was asked for before; zero: not asked

	mu           sync.Mutex // guards the fields below; lease, fence, err and cleanup are final when it has ended
	state        requestState
	TokenRecord                  // of the calls that asked for the lease
	call         *transport.Call // the one under way; nil: none, or only heartbeats
	health       *ServerHealth   // of the server; that of its queue, once it is queued
	own          ServerHealth    // before that
	lease        *Lease          // if it is leased
	fence        uint64          // if it is leased or permitted
	err          error           // if it has failed
	cleanup      *Cleanup        // once it has ended without a lease, if there is something to clean up
	place        int64           // in the server's queue; 0: it was not queued
	reportedRank int             // the last position that the observer was told; -1: none
	// A grant by a message counts from askedAt if its fence is larger than floor. askedAt is when the last call was sent that
	// the server answered with "waiting", and floor is the last fence it had drawn by then. So the grant was made after
	// that answer, and no clocks need to be compared. Before any answer, askedAt is when the first call was sent. clock is the
	// server's clock in that answer, in ms; 0: there was none yet. early is the fence of a message that has overtaken it.
	askedAt time.Time
	floor   int64
	clock   int64
	early   int64
}

// newRequest registers a request, so that messages find it. It returns nil after Close. health is what earlier requests have
// recorded, or nil.
func (l *Lock) newRequest(t Terms, health *ServerHealth) *request {
	r := &request{lock: l, health: health, reportedRank: -1, observation: t.observation, since: t.since}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	if health == nil {
		r.own.maxAge = l.e.maxAge()
		r.health = &r.own
	}
	r.noPush = strings.Contains(t.Flags, protocol.FlagNoPush)
	r.quota = t.quota
	r.policyArg = l.args.policyArg
	if t.origin != nil {
		r.policyArg, r.origin = t.origin.token, t.origin
		if !t.Direct {
			t.Number = int(l.e.upgrades.Add(1)) // of two requests to replace a lease, the later one counts
		}
	}
	r.token, r.serial = l.newToken(t.Flags, int64(t.Number))
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if l.e.closed {
		return nil
	}
	for l.e.requests[r.serial] != nil || l.e.retentions[r.serial] != nil { // once in 2^47 divided by their number
		r.token, r.serial = l.newToken(t.Flags, int64(t.Number))
	}
	if t.retention != nil {
		r.policyArg, r.retention = protocol.PolicyArgRetain, t.retention
		t.retention.serial = r.serial
	}
	l.e.requests[r.serial] = r
	if r.retention != nil {
		l.e.addRetentionLocked(r.retention)
	}
	return r
}

// acquireSubscribed makes a request and waits for its end. A request is queued only once the server has acknowledged the keeper's
// subscription. A keeper subscribes when it has to wait for the first time: most locks are free. So until then it first tries,
// and makes a second request only after the first was refused.
func (l *Lock) acquireSubscribed(ctx context.Context, t Terms, wait bool, health *ServerHealth) (*request, error) {
	r := l.newRequest(t, health)
	if r != nil {
		l.e.announce()
	}
	switch {
	case r == nil:
		return nil, l.fail(ErrClosed)
	case !wait:
		return r, r.run(ctx, modeTry)
	case t.retention != nil, l.e.subscriber.IsSubscribed(l.channel): // a retention begins with a subscription
		return r, r.run(ctx, modeWait)
	}
	health = r.serverHealth()
	err := r.run(ctx, modeTryFirst)
	if !errors.Is(err, ErrNotAcquired) || ctx.Err() != nil {
		return r, err
	}
	l.short.failed()                         // it would be refused again
	if r.origin != nil && r.cleanup != nil { // a copy of the call may have been granted the lease
		switch l.e.waitFor(ctx, r.cleanup.finished.done()) {
		case nil:
		case ErrClosed:
			return nil, l.fail(ErrClosed)
		default:
			return nil, l.fail(health.waitError(ctx))
		}
		if r.cleanup.found != nil || r.cleanup.failure != nil {
			return nil, err
		}
		r.origin.setUndoing(nil)
	}
	if err := l.subscribe(ctx, health); err != nil {
		if ctx.Err() != nil {
			return nil, l.fail(err)
		}
		if errors.Is(err, pubsub.ErrClosed) {
			return nil, l.fail(ErrClosed)
		}
		t.Flags += protocol.FlagNoPush
	}
	if r = l.newRequest(t, health); r == nil {
		return nil, l.fail(ErrClosed)
	}
	return r, r.run(ctx, modeWait)
}

// subscribe subscribes the keeper to the lock's channel. It returns an error if that is not permitted, or not acknowledged within
// a heartbeat interval.
func (l *Lock) subscribe(ctx context.Context, health *ServerHealth) error {
	if l.e.subscriber.CannotReceive(l.channel, l.e.cfg.HeartbeatInterval) {
		return errDeaf // for so long that it is not awaited again
	}
	limited, cancel := context.WithTimeout(ctx, l.e.cfg.HeartbeatInterval)
	defer cancel()
	defer context.AfterFunc(l.e.closing, cancel)()
	began := time.Now()
	health.Sent(began)
	defer health.Dropped(began)
	err := l.e.subscriber.Subscribe(limited, l.channel)
	if err != nil && ctx.Err() != nil {
		return health.waitError(ctx)
	}
	return err
}

// run sends the request and returns when it has ended. Without an error it was granted.
func (r *request) run(ctx context.Context, mode requestMode) error {
	if err := r.ask(ctx, mode); err != nil {
		r.leave(err)
		_, err := r.result()
		return err
	}
	if !r.end.isClosed() {
		r.wait(ctx)
	}
	if err := ctx.Err(); err != nil {
		// The grant and the end of ctx may coincide; then the caller does not get it, unless it replaces the lease that the
		// caller had.
		if r.origin == nil && r.wasGranted() {
			r.abandonGrant()
			return r.lock.fail(ErrNotAcquired, err)
		}
	}
	_, err := r.result()
	return err
}

// wait returns when the request has ended. It ends the request when ctx ends.
func (r *request) wait(ctx context.Context) {
	near, stop := nearDeadline(ctx)
	defer stop()
	for {
		select {
		case <-r.end.done():
			return
		case <-ctx.Done():
			r.leave(r.lock.fail(r.serverHealth().waitError(ctx)))
			return
		case <-near:
			r.lock.e.heartbeatIfStale(r.lock.key(keyQueue))
		}
	}
}

// serverHealth returns what is known of the health of the server.
func (r *request) serverHealth() *ServerHealth {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.health
}

func (r *request) result() (*Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease, r.err
}

// ask sends the request until it is answered. It returns nil if the token now holds the lock or is queued. A reply that grants
// a lease which is over when the reply arrives counts as none: the request is sent again at once. As for replies that do not
// come, that ends with the context, with the third attempt of a try, or when the retry policy gives up.
func (r *request) ask(ctx context.Context, mode requestMode) error {
	l := r.lock
	tries := 0
	if mode == modeTry {
		tries = MaxTries
	}
	began := time.Now()
	for try := 1; ; try++ {
		err := r.askOnce(ctx, mode, r.mayUseShort(), tries, began)
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

// askOnce sends the request until it is answered, and handles the reply. It begins by the short form, if short is set, and goes
// on to the long form where that does not decide it. began is when the first call was sent.
func (r *request) askOnce(ctx context.Context, mode requestMode, short bool, tries int, began time.Time) error {
	l := r.lock
	health := r.serverHealth()
	call, _, err := l.e.roundTrip(ctx, r.end.done, tries, func(p *pending) {
		if p.stopped = !r.copySent(began, &p.Call); p.stopped {
			return
		}
		p.request, p.health, p.sent = r, health, time.Now()
		health.Sent(p.sent)
		r.setCall(ctx, &p.Call, mode, short)
	})
	switch {
	case errors.Is(err, errStopped): // a message came before the reply, or Close was called
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return l.fail(health.waitError(ctx))
	case err != nil:
		return l.fail(err)
	}
	a, err := r.decode(call)
	if err == nil && a.NeedsLong && !short {
		err = protocol.ErrReply
	}
	if err != nil {
		r.markInDoubt()
		return l.fail(err)
	}
	if !l.short.answered(short, mode, a) {
		return r.askOnce(ctx, mode, false, tries, began)
	}
	if r.quota != nil {
		*r.quota = newQuota(a)
	}
	if a.LimitsChanged && l.spec.Limits != nil {
		l.limitsChanged(r.observation, r.token, l.spec.Limits.own())
	}
	if a.Code == lua.Tombstoned {
		return r.askTombstoned(ctx)
	}
	if a.Code == lua.Refused && a.More {
		return r.askOnce(ctx, mode, false, tries, began) // more leases have ended than one script sweeps
	}
	return r.answered(call, a)
}

// callDone notes the outcome of a call.
func (r *request) callDone(call *transport.Call, health *ServerHealth, sent time.Time) {
	if call.Withdrawn() {
		health.Withdrawn(sent)
	} else if _, err := r.decode(call); err != nil {
		health.Failed(sent, err)
	} else {
		health.Answered(sent)
	}
	r.copyDone(call, transport.OutcomeOf(call.Err))
}

// setCall makes the call one of acquire.lua, or of allow.lua if the caller wants to know the quota.
func (r *request) setCall(ctx context.Context, call *transport.Call, mode requestMode, short bool) {
	l := r.lock
	if short {
		l.setShortAcquire(call, r.token)
		return
	}
	script := l.spec.Scripts.Acquire
	if r.quota != nil {
		script = l.spec.Scripts.Allow
	}
	var maxWait any
	if mode == modeWait {
		maxWait = l.maxWait(ctx)
	}
	l.setAcquire(call, script, r.token, r.policyArg, maxWait)
}

// decode returns the reply to the request.
func (r *request) decode(call *transport.Call) (protocol.AcquireReply, error) {
	if r.quota != nil {
		lim := r.lock.spec.Limits
		return decode(call, func(n []int64) (protocol.AcquireReply, error) {
			return protocol.ParseAllowReply(n, lim.Window, millis(lim.Per))
		})
	}
	return decode(call, protocol.ParseAcquireReply)
}

// maxWait returns how many ms the caller can wait at most, or 0 if the server cannot know how long it would have to.
func (l *Lock) maxWait(ctx context.Context) any {
	if end, ok := ctx.Deadline(); ok && l.spec.Limits.byClock() {
		return max(millis(time.Until(end)), 1)
	}
	return 0
}

// answered handles the reply of acquire.lua.
func (r *request) answered(call *transport.Call, a protocol.AcquireReply) error {
	switch a.Code {
	case lua.Granted:
		err := r.grant(a.Fence, call.Sent, r.lock.ttl, leaseHeld)
		if a.More {
			r.lock.continueAdmitting()
		}
		return err
	case lua.Waiting:
		r.lock.ending.contended() // when it has the lock, others probably wait as well
		early := r.stillWaiting(call.Sent, a.Now, a.Seq, a.Place)
		r.lock.enqueue(r, a)
		if early > 0 {
			r.push(early)
		}
		return nil
	case lua.Refused:
		r.markAbsent()
		if !r.lock.spec.Limits.byClock() {
			return r.lock.fail(ErrNotAcquired)
		}
		return r.lock.fail(ErrNotAcquired, tooSoon(time.Now(), a.RetryAfter))
	case lua.Conflict:
		return r.lock.fail(ErrConflict)
	case lua.AboveLimit:
		return r.lock.fail(ErrAboveLimit)
	}
	return r.lock.fail(ErrNotAcquired, errTombstoned)
}

// askTombstoned returns why a request has a tombstone although it has not ended: somebody has broken it.
func (r *request) askTombstoned(ctx context.Context) error {
	replies := make(chan *protocol.Breaker, 1)
	r.lock.askBreaker(r.token, func(b *protocol.Breaker) { replies <- b })
	select {
	case b := <-replies:
		r.tombstoned(b)
	case <-r.end.done(): // by the message
	case <-ctx.Done():
		return r.lock.fail(ErrNotAcquired, ctx.Err())
	}
	return nil
}

// tombstoned ends a request that has a tombstone. b is who has broken it, or nil if that is not known.
func (r *request) tombstoned(b *protocol.Breaker) {
	if b == nil {
		r.leave(r.lock.fail(ErrNotAcquired, errTombstoned))
		return
	}
	r.lock.e.broken(r, r.serial, *b)
}

var (
	errDeaf       = errors.New("the keeper has no subscription")
	errTombstoned = errors.New("the request was given up while it was under way")
	// ErrTooLate means that the server granted a lease, but its answer came when the lease was about to expire.
	ErrTooLate = Chain(ErrUnavailable, errors.New("the answer came when too little of the lease was left to use it"))
)
