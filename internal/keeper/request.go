package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// request is what a Lease needs until it is granted: how it is asked for, and the caller that waits for it.
type request struct {
	*Lease
	terms     Terms         // what the caller asks for; Turn.Since is set
	policyArg any           // of an upgrade, the token of its lease; of a semaphore, the limits; else ""
	part      *partRequest  // it asks for a part of a majority; nil: it does not
	serial    string        // names it in messages
	began     time.Time     // when the first call was sent
	deadline  time.Time     // of the caller's context; zero: none
	ended     server.Signal // when the request has ended

	// Guarded by the lease's mu. err is final when the request has ended.
	call   *askCall // the one under way; nil: none, or only heartbeats
	err    error    // if it has failed
	queued struct { // what the reply that has queued it says
		retryIn  int64
		more     bool
		rank     int
		reported int // the last rank that the observer was told; -1: none
	}

	notified bool // a message about its grant came; guarded by the mutex of messages
}

// newRequest registers a request, so that messages find it. It returns nil after Close.
func (l *Lock) newRequest(ctx context.Context, t Terms, mode claim.Mode) *request {
	r := &request{policyArg: l.PolicyArg(), began: time.Now()}
	r.deadline, _ = ctx.Deadline()
	r.queued.reported = -1
	if t.lease != nil {
		r.policyArg = t.lease.token
		t.Number = int(l.k.upgrades.Add(1)) // of two requests to upgrade a lease, the later one counts
		if t.note == "" {
			of, _ := protocol.ParseToken(t.lease.token)
			t.note = of.Note
		}
	}
	t.Turn.Since = cmp.Or(t.Turn.Since, r.began)
	r.terms = t
	token, serial := l.newToken(t.Flags, int64(t.Number), t.note)
	r.Lease, r.serial = l.NewLease(token, claim.New(mode, r.upgrades(), false), t.Observation), serial
	r.request, r.observer = r, t.Observer
	for {
		switch taken, closed := l.k.messages.Register(r.serial, r, false); {
		case closed:
			return nil
		case !taken:
			return r
		}
		// once in 2^47 divided by their number
		r.token, r.serial = l.newToken(t.Flags, int64(t.Number), t.note)
	}
}

// upgrades reports whether the request asks that a lease writes, and for none of its own.
func (r *request) upgrades() bool { return r.terms.lease != nil }

// ask makes a request and waits for its end. If there is no error, it was granted. A keeper subscribes when the server has queued
// its first waiter: most locks are free. The waiter does not count on the subscription before it is acknowledged.
func (l *Lock) ask(ctx context.Context, t Terms, wait bool) (*Lease, error) {
	mode := claim.Try
	if wait {
		mode = claim.Wait
	}
	r := l.newRequest(ctx, t, mode)
	if r == nil {
		return nil, l.Fail(server.ErrClosed)
	}
	l.k.Announce()
	return r.Lease, r.run(ctx)
}

// run sends the request and returns when it has ended. Without an error it was granted.
func (r *request) run(ctx context.Context) error {
	r.StepBy(r.lock.k.Now(), claim.Event{Kind: claim.Called}, nil, func(call *transport.Call) {
		r.lock.k.Transport.SendInline(ctx, call, r)
	})
	if !r.ended.IsClosed() {
		r.wait(ctx)
	}
	err := r.result()
	if end := server.ContextError(ctx); end != nil && err == nil {
		// The grant and the end of ctx coincide; then the caller does not get it.
		r.Abandon()
		return r.lock.Fail(server.ErrNotAcquired, end)
	}
	return err
}

// wait returns when the request has ended. It ends the request when ctx ends. Of waits that end at once, a few are handled at a time: the
// others only wait their turn, so that goroutines with other locks need not wait until all have been handled.
func (r *request) wait(ctx context.Context) {
	near := server.NearDeadline(ctx)
	for {
		select {
		case <-r.ended.Done():
			return
		case <-ctx.Done():
			r.lock.k.ending <- struct{}{}
			runtime.Gosched() // whoever leaves lets the next one run at once, before all others
			r.ContextEnded(ctx)
			<-r.lock.k.ending
			return
		case <-near:
			r.lock.k.queues.heartbeatIfStale(r.lock.Key())
		}
	}
}

// ContextEnded implements transport.EndReceiver. It ends the request, because ctx has ended.
func (r *request) ContextEnded(ctx context.Context) {
	err := server.WaitError(ctx, r.outage(time.Now()))
	if r.Snapshot().CameLate() {
		err = server.Chain(ErrTooLate, server.ContextError(ctx))
	}
	r.Step(claim.Event{Kind: claim.Cancelled}, r.lock.Fail(err))
}

// outage returns why it is not known whether somebody else has the lock; nil: it is known. That is so if the last call of the request has not
// failed, the node answers, and the server has said within MaxAge that the request waits. A request that is not queued, and younger than
// SilenceTimeout, knows it if its caller had to wait for a turn: then the caller before it has or had the lock.
func (r *request) outage(now time.Time) error {
	r.Mu.Lock()
	failed, queued, asked := r.lastErrLocked(), r.Claim.State() == claim.Waiting, r.lock.k.Time(r.Claim.Asked())
	r.Mu.Unlock()
	if failed != nil {
		return failed
	}
	if err := r.lock.Outage(now); err != nil {
		return err
	}
	if queued && now.Sub(asked) > r.lock.k.MaxAge() || !queued && (!r.terms.Turn.Waited || now.Sub(r.began) >= server.SilenceTimeout) {
		return server.ErrNoAnswer
	}
	return nil
}

// result returns nil if the request was granted, and else why not. It has ended.
func (r *request) result() error {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.err
}

// reportPosition reports the position of a waiter to the observer, if it has changed.
func (r *request) reportPosition(rank int) {
	r.Mu.Lock()
	moved := r.Claim.Pending() && r.queued.reported != rank
	r.queued.reported = rank
	r.Mu.Unlock()
	if moved {
		ev := r.lock.Event(Queued, r.Observation())
		ev.Token, ev.Position = r.Token(), rank
		r.lock.Observe(ev)
	}
}

// withdrawLocked keeps the call that is under way from being sent, if it was not.
func (r *request) withdrawLocked() (withdrawn bool) {
	if r.call != nil {
		withdrawn, r.call = r.call.Withdraw(), nil
	}
	return withdrawn
}

// reportQueued reports the position in the queue.
func (r *request) reportQueued() {
	if r.terms.Queued != nil {
		r.terms.Queued()
	}
	r.reportPosition(r.queued.rank)
}

// deliverLocked notes how the request has ended.
func (r *request) deliverLocked(granted, closed bool, cause error) {
	switch {
	case !granted:
		r.err = r.failureLocked(cause)
	case closed:
		r.err = r.lock.Fail(server.ErrClosed)
	}
}

// delivered unblocks the caller. heard says that a message brought the grant. It reports whether the lease no longer needs the request if no
// late reply comes.
func (r *request) delivered(heard bool) (final bool) {
	l := r.lock
	final = !l.k.cfg.ReplicaAck.enabled() && r.part == nil
	if heard {
		ev := l.Event(WakeupReceived, r.Observation())
		ev.Token, ev.Fence = r.Token(), r.Fence()
		l.Observe(ev)
	}
	r.ended.Close()
	r.unregister()
	if r.part != nil {
		r.answerPart()
	}
	return final
}

// Denied reports whether the server has refused the request. It may be called on nil.
func (h *Lease) Denied() bool { return h != nil && h.Snapshot().Reason() == claim.ByDenial }

// failureLocked returns why the request has failed. cause is the error of the event that has ended it.
func (r *request) failureLocked(cause error) error {
	l := r.lock
	switch r.Claim.Reason() {
	case claim.ByClose:
		return l.Fail(server.ErrClosed)
	case claim.ByBreak, claim.ByDenial:
		return l.Fail(server.ErrNotAcquired, cause)
	case claim.ByTombstone:
		if r.part != nil {
			return errTombstoned
		}
		return l.Fail(server.ErrNotAcquired, errTombstoned)
	case claim.ByConflict:
		return l.Fail(server.ErrConflict)
	case claim.ByLimit:
		return l.Fail(server.ErrAboveLimit)
	case claim.ByLateness:
		return l.Fail(ErrTooLate)
	}
	return l.Fail(cause)
}

// unregister removes a request that has ended, so that messages no longer find it and no heartbeat is sent for it.
func (r *request) unregister() {
	r.lock.k.messages.Unregister(r.serial, r)
	r.lock.k.queues.leave(r)
}

// askCall is one call of acquire.lua, of allow.lua if the caller wants to know the quota, or of the fast script in place of these.
type askCall struct {
	transport.Call
	r    *request
	fast bool // of the fast script

	uncounted bool // it has said that the keeper does not count on its subscription
}

// mayUseFast reports whether the next call of the request should be of the fast script. That relies on metadata which others may have kept
// for short leases: for half of MetadataTTL at least, by when renewals keep it for this lease.
func (r *request) mayUseFast() bool {
	l, ofWindow := r.lock, r.lock.FastOfWindow() // it takes one permit
	return !r.upgrades() && r.part == nil && (ofWindow && r.terms.Number <= 1 || !ofWindow && r.terms.quota == nil) &&
		l.Fast().Acquire != nil && claim.Duration(l.TTL) <= l.k.Config.MetadataTTL/4 && l.FastBackoff.Acquire.Usable()
}

// newCallLocked prepares a call, which is under way from now on.
func (r *request) newCallLocked(general bool) *askCall {
	l := r.lock
	c := &askCall{r: r, fast: !general && r.mayUseFast()}
	c.Done, r.call = c, c
	switch {
	case c.fast:
		l.SetFastAcquire(&c.Call, r.Token())
	case r.terms.quota != nil:
		l.SetAllow(&c.Call, r.Token())
	default:
		var maxWait any
		if r.Claim.Waits() {
			maxWait = r.maxWait()
		}
		c.uncounted = !l.k.Subscriber.Reliable(l.Channel)
		l.SetAcquire(&c.Call, r.Token(), r.policyArg, maxWait, c.uncounted)
	}
	return c
}

// maxWait returns how many ms the caller can wait at most, or 0 if the server cannot know how long it would have to.
func (r *request) maxWait() any {
	if !r.deadline.IsZero() && r.lock.spec.Limits.byClock() {
		return max(time.Until(r.deadline).Milliseconds(), 1)
	}
	return 0
}

// decode returns the reply to the call.
func (c *askCall) decode() (a protocol.AcquireReply, err error) {
	parse := protocol.ParseAcquireReply
	switch lim := c.r.lock.spec.Limits; {
	case c.fast && c.r.terms.quota != nil:
		parse = func(n []int64) (protocol.AcquireReply, error) {
			return protocol.ParseFastAllowReply(n, lim.Window, lim.Per.Milliseconds())
		}
	case c.fast:
		parse = protocol.ParseFastAcquireReply
	case c.r.terms.quota != nil:
		parse = protocol.ParseAllowReply
	}
	a, err = server.Decode(&c.Call, parse)
	if err == nil && c.r.part != nil && a.Code != lua.Granted && a.Code != lua.Refused && a.Code != lua.Tombstoned {
		err = fmt.Errorf("%w: code %d for a request that does not wait", protocol.ErrReply, a.Code)
	}
	return a, err
}

// CallDone implements transport.Receiver.
func (c *askCall) CallDone(*transport.Call) {
	r := c.r
	if c.Withdrawn() { // of which the claim was told
		return
	}
	if a, err := c.decode(); err != nil {
		r.askFailed(c, err)
	} else {
		r.replied(c, a)
	}
}

// askFailed handles a call that was not answered, or by an error.
func (r *request) askFailed(c *askCall, err error) {
	ev := claim.Event{Kind: claim.AskFailed, Outcome: transport.OutcomeOf(c.Err)}
	if c.Err == nil {
		ev.Outcome = claim.InDoubt // the reply is malformed
	} else {
		ev.Retryable = transport.Retryable(err) && !errors.Is(err, transport.ErrQueueFull) && !errors.Is(err, transport.ErrPanicked)
		now := time.Now()
		ev.Exhausted = r.lock.k.Config.Retry.Exhausted(r.began, now) || r.lock.Exhausted(r.terms.Turn.Since, now) != nil
	}
	r.Step(ev, err)
}

// replied handles the reply to a call.
func (r *request) replied(c *askCall, a protocol.AcquireReply) {
	l, k := r.lock, r.lock.k
	now := time.Now()
	ev := claim.Event{
		Kind: claim.Replied, Code: codes[a.Code], Sent: k.Instant(c.Sent), Fast: c.fast, More: a.More,
		Fence: a.Fence, Clock: a.Now, Place: a.Place, Exhausted: k.Config.Retry.Exhausted(r.began, now),
	}
	if a.Undecided {
		ev.Code = claim.Undecided
	}
	if r.part == nil && l.FastBackoff.Acquire.Answered(c.fast, r.Claim.Waits(), a) {
		if r.terms.quota != nil {
			r.Mu.Lock()
			if r.Claim.Pending() { // the caller has not returned
				*r.terms.quota = newQuota(a)
			}
			r.Mu.Unlock()
		}
		if a.LimitsChanged && l.spec.Limits != nil {
			l.limitsChanged(r.Observation(), r.Token(), l.spec.Limits.own())
		}
	}
	if r.part != nil {
		k.Clock.Note(a.Now, c.Sent)
		r.Mu.Lock()
		if r.Claim.Pending() { // the caller has not returned
			r.part.retryAfter = claim.Duration(max(a.RetryAfter, 0))
		}
		r.Mu.Unlock()
	}
	var cause error
	switch a.Code {
	case lua.Granted:
		if a.More {
			l.ContinueAdmitting()
		}
	case lua.Waiting:
		ev.Fence = a.Seq
		r.Mu.Lock()
		r.queued.retryIn, r.queued.more, r.queued.rank = a.RetryIn, a.More, a.Rank
		r.Mu.Unlock()
		l.ExpectWaiters() // when it has the lock, others probably wait as well
	case lua.Refused:
		if l.spec.Limits.byClock() {
			cause = tooSoon(now, a.RetryAfter)
		}
	}
	done := r.StepAt(k.Instant(now), ev, cause)
	if done.Queue && c.uncounted && k.Subscriber.Reliable(l.Channel) { // acknowledged meanwhile
		k.queues.heartbeatsBy(r, k.Now())
	}
}

// codes is what the codes of scripts say to a claim.
var codes = map[int64]claim.Code{
	lua.Granted: claim.Granted, lua.Waiting: claim.Queued, lua.Refused: claim.Denied, lua.Tombstoned: claim.Tombstoned,
	lua.Conflict: claim.Conflict, lua.AboveLimit: claim.AboveLimit,
}

var (
	errTombstoned = errors.New("the request was given up while it was under way")
	// ErrTooLate means that the server granted a lease, but its answer came when the lease was about to expire.
	ErrTooLate = server.Chain(server.ErrUnavailable, errors.New("the answer came when too little of the lease was left to use it"))
)
