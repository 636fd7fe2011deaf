package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Lease is a lease. It is held at first; then, once and for good, released or lost.
type Lease struct {
	lifecycle
	lock      *Lock
	token     string
	request   *request // that it came out of, if that is still of interest
	fence     uint64
	grantedAt time.Time
	timer     timers.Timer
	owner     *Owner // the lease that it is part of, which gets its events; nil: none
	adopted   bool   // it came out of a token
	use       string // what it is for, if its token says something else; see Convert

	// Guarded by the tenure's mu. There may be a hundred thousand of these, so what few have is behind pointers.
	unconfirmed bool       // granted for a short time, to be confirmed by the first renewal
	inFlight    int32      // renewals under way
	ttl         int64      // ms that a renewal asks for
	deadline    time.Time  // until when it is believed, if nothing else comes
	renewAt     time.Time  // zero: not any more
	metadataAt  time.Time  // when the facts of the name were last kept alive
	extension   *extension // nil: Extend was never called
	drained     chan struct{}
	conversion  *conversion                 // into another lease, while one is under way
	next        atomic.Pointer[Lease]       // what its holder has in its place; see become
	backoff     *backoff.ExponentialBackOff // nil while renewals succeed
	renewErr    error                       // why they do not
	cleanup     *Cleanup                    // once it is released
}

// The reasons for a loss, beside ErrNotHeld.
var (
	errDeadline = errors.New("it was not renewed in time")
	errLifetime = errors.New("it has reached its maximum lifetime")
	errFixed    = errors.New("its time is over and it is not renewed")
)

func (l *Lock) newLease(token string, fence int64, deadline time.Time) *Lease {
	now := time.Now()
	h := &Lease{lock: l, token: token, fence: uint64(fence), grantedAt: now, metadataAt: now, ttl: l.ttl, deadline: deadline}
	h.begin(h)
	h.timer.Fire = h.onTimer
	return h
}

// addLease registers a lease; it says no after Close.
func (e *Engine) addLease(h *Lease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.leases[h] = struct{}{}
	return true
}

// start sets the clock for a new lease.
func (h *Lease) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return
	}
	now := time.Now()
	switch {
	case !h.lock.spec.NoRenewal:
		h.renewAt = h.lock.e.renewalTime(now, min(duration(h.ttl)/3, h.deadline.Sub(now)/3))
	case h.unconfirmed:
		h.renewAt = now // a fixed lease is confirmed once, for what remains of its time
	}
	h.armLocked()
}

// renewalTime is about after from now, a little sooner: leases that were granted one after the other are renewed together.
func (e *Engine) renewalTime(now time.Time, after time.Duration) time.Time {
	at := now.Add(after)
	if grid := after / 16; grid > 0 {
		at = at.Add(-(at.Sub(e.started) % grid))
	}
	return at
}

func (h *Lease) armLocked() {
	at := h.deadline
	if !h.renewAt.IsZero() && h.renewAt.Before(at) {
		at = h.renewAt
	}
	h.lock.e.timers.Set(&h.timer, at)
}

// onTimer is called by the clock when the lease is to be renewed or its deadline has come.
func (h *Lease) onTimer(now time.Time) {
	h.mu.Lock()
	if h.err != nil || h.next.Load() != nil {
		h.mu.Unlock()
		return
	}
	if !now.Before(h.deadline) {
		h.mu.Unlock()
		h.lose(nil)
		return
	}
	if h.renewAt.IsZero() || now.Before(h.renewAt) {
		h.armLocked()
		h.mu.Unlock()
		return
	}
	ttl := h.nextTTLLocked(now)
	if ttl == 0 {
		h.renewAt = time.Time{}
		h.armLocked()
		h.mu.Unlock()
		return
	}
	// If this attempt is not answered, others follow before the deadline; not so many that a server which hangs
	// gathers them.
	h.renewAt = time.Time{}
	if h.inFlight++; h.inFlight < 4 {
		h.renewAt = now.Add(max(h.deadline.Sub(now)/3, duration(h.ttl)/30))
	}
	full := now.Sub(h.metadataAt) > h.lock.e.cfg.MetadataTTL/2
	h.armLocked()
	h.mu.Unlock()
	keys := renewOnly
	if full {
		keys = renewMetadata
	}
	h.lock.e.transport.Send(h.lock.renewCall(h.token, ttl, keys, false, func(call *transport.Call) { h.renewed(call, ttl, full) }))
}

// nextTTLLocked is what a renewal now should ask for; 0 if there should be none.
func (h *Lease) nextTTLLocked(now time.Time) int64 {
	ttl := h.ttl
	if x := h.extension; x != nil && x.requested > 0 {
		ttl = min(ttl, x.requested)
	}
	spec := h.lock.spec
	if spec.NoRenewal {
		ttl -= millis(now.Sub(h.grantedAt))
	}
	if spec.MaxLifetime > 0 {
		ttl = min(ttl, millis(spec.MaxLifetime-now.Sub(h.grantedAt)))
	}
	if duration(ttl) < ShortestTTL {
		return 0
	}
	return ttl
}

// renewed deals with the answer to a renewal that asked for ttl.
func (h *Lease) renewed(call *transport.Call, ttl int64, full bool) {
	n, err := parseRenewal(call)
	now := time.Now()
	h.mu.Lock()
	h.inFlight--
	if h.inFlight == 0 && h.drained != nil {
		close(h.drained)
		h.drained = nil
	}
	if h.err != nil || h.next.Load() != nil {
		h.mu.Unlock()
		return
	}
	switch {
	case err == nil && n[0] == lua.Granted:
		if d := call.Sent.Add(h.lock.trusted(h.guaranteedLocked(call.Sent, ttl))); d.After(h.deadline) {
			h.deadline = d
		}
		h.backoff, h.renewErr, h.unconfirmed = nil, nil, false
		if full {
			h.metadataAt = now
		}
		h.renewAt = time.Time{}
		if !h.lock.spec.NoRenewal {
			h.renewAt = h.lock.e.renewalTime(now, min(duration(ttl), h.deadline.Sub(now))/3) // an Extend may have cut it meanwhile
		}
		h.armLocked()
		h.mu.Unlock()
		h.observe(Renewed, now.Sub(h.grantedAt), nil)
	case err == nil && h.conversion != nil: // it may have been replaced, and the answer to that be on its way
		h.armLocked()
		h.mu.Unlock()
	case err == nil:
		h.mu.Unlock()
		h.lose(ErrNotHeld)
	case transport.WrongType(err):
		h.mu.Unlock()
		h.lose(err)
	default: // nothing is lost yet: the lease is believed until its deadline, and asked for again before
		if h.backoff == nil {
			h.backoff = h.lock.e.cfg.Retry.NewBackoff()
		}
		h.renewErr = err
		if at := now.Add(h.backoff.NextBackOff()); h.renewAt.IsZero() || at.Before(h.renewAt) {
			h.renewAt = at
		}
		h.armLocked()
		h.mu.Unlock()
	}
}

// How many of the lock's keys a renewal takes, and with them what it does.
const (
	renewOnly      = 1 // alone, so that it works while a cluster moves the slot
	renewMetadata  = 2 // it also keeps the facts of the name, and learns the fence
	renewAndNotify = 4 // it also tells the first in line when the lease ends now
)

// renewCall prepares a renewal. An exact one may shorten the lease, which others, of which a copy may run late, must not.
func (l *Lock) renewCall(token string, ttl int64, keys int, exact bool, done func(*transport.Call)) *transport.Call {
	call := l.call(l.spec.Scripts.Renew, keys, 6, done)
	call.Urgent = true
	call.Args = lua.RenewArgs(call.Args, token, ttl, l.args.metadataTTL, boolArg(exact), l.args.channelPrefix, l.args.sharded)
	return call
}

// parseRenewal looks at the answer to a renewal: refused, or granted with a fence.
func parseRenewal(call *transport.Call) (reply, error) {
	n, err := parseReply(call)
	if err != nil {
		return nil, err
	}
	switch n[0] {
	case lua.Granted:
		if err = n.checkLength(2); err == nil && n[1] < 0 {
			err = fmt.Errorf("%w: fence %d from renew", transport.ErrReply, n[1])
		}
	case lua.Refused:
		err = n.checkLength(1)
	default:
		err = fmt.Errorf("%w: code %d from renew", transport.ErrReply, n[0])
	}
	return n, err
}

// renewal is the answer to one that was waited for.
type renewal struct {
	sent    time.Time
	held    bool
	fence   int64
	inDoubt bool // a copy of it may still run
}

// renew is a renewal of the facts as well that is waited for, and repeated while it fails for a passing reason.
func (l *Lock) renew(ctx context.Context, token string, ttl int64, keys int, exact bool) (r renewal, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if l.e.closing.Err() != nil {
		return r, ErrClosed
	}
	call, stray, err := l.e.roundTrip(ctx, l.e.closing.Done(), 0, func(done func(*transport.Call)) *transport.Call {
		return l.renewCall(token, ttl, keys, exact, done)
	})
	r.inDoubt = stray
	if errors.Is(err, errStopped) {
		return r, ErrClosed
	}
	if err != nil {
		return r, err
	}
	r, err = parseFullRenewal(call)
	r.inDoubt = stray
	return r, err
}

// parseFullRenewal looks at the answer to a renewal that also learns the fence.
func parseFullRenewal(call *transport.Call) (r renewal, err error) {
	n, err := parseRenewal(call)
	if err != nil {
		return r, err
	}
	r.sent, r.held = call.Sent, n[0] == lua.Granted
	if r.held {
		if r.fence = n[1]; r.fence == 0 {
			return r, fmt.Errorf("%w: no fence from a full renewal", transport.ErrReply)
		}
	}
	return r, nil
}

// lose ends the lease as lost, if it has not ended. Without a reason it is the deadline that has come.
func (h *Lease) lose(reason error) {
	h.mu.Lock()
	if next := h.next.Load(); next != nil {
		h.mu.Unlock()
		next.lose(reason)
		return
	}
	if h.err != nil {
		h.mu.Unlock()
		return
	}
	spec := h.lock.spec
	switch {
	case reason != nil:
	case spec.NoRenewal:
		reason = errFixed
	case spec.MaxLifetime > 0 && time.Since(h.grantedAt) >= spec.MaxLifetime-Margin(spec.MaxLifetime)-ShortestTTL:
		reason = errLifetime
	case h.renewErr != nil:
		reason = fmt.Errorf("%w: %w", errDeadline, h.renewErr)
	default:
		reason = errDeadline
	}
	err := h.lock.fail(ErrLost, reason)
	cancel := h.endLocked(err)
	h.mu.Unlock()
	cancel()
	h.forget()
	h.observe(Lost, time.Since(h.grantedAt), err)
}

func (h *Lease) forget() {
	e := h.lock.e
	e.timers.Cancel(&h.timer)
	e.mu.Lock()
	delete(e.leases, h)
	e.mu.Unlock()
}

func (h *Lease) observe(what EventType, took time.Duration, err error) {
	if h.owner != nil {
		h.owner.Observer.PartEvent(what)
		return
	}
	if h.lock.e.cfg.Observe == nil {
		return
	}
	ev := h.lock.event(what)
	ev.Token, ev.Fence, ev.Duration, ev.Err = h.token, h.fence, took, err
	h.lock.e.observe(ev)
}

// release ends the lease and starts giving it back, by a command that is sent by the function; it returns the departure.
// Unused says that nobody ever had the lease. If it was lost release returns ErrLost, and if there is nothing to give
// back, nil and nil.
func (h *Lease) release(by func(*transport.Call), unused bool) (*Cleanup, error) {
	return h.end(by, unused, time.Time{})
}

// end is release, or Complete until done, if that is set.
func (h *Lease) end(by func(*transport.Call), unused bool, done time.Time) (*Cleanup, error) {
	h.CheckDeadline()
	h.mu.Lock()
	if next := h.next.Load(); next != nil {
		h.mu.Unlock()
		return next.end(by, unused, done)
	}
	if h.err != nil {
		err := h.err
		if errors.Is(err, ErrLost) && h.cleanup == nil {
			// The holder has now stopped as well. Should the server still know the token, others need not wait.
			h.cleanup = h.lock.newCleanup(h.token, h.inDoubt(), h.deadline)
			h.cleanup.done = done
			h.cleanup.send(h.lock.e.transport.Send)
		}
		h.mu.Unlock()
		if errors.Is(err, ErrReleased) {
			return nil, nil
		}
		return nil, h.lock.fail(err)
	}
	cancel := h.endLocked(h.lock.fail(ErrReleased))
	quiet := h.drained
	if h.inFlight > 0 && quiet == nil {
		quiet = make(chan struct{})
		h.drained = quiet
	}
	until := h.deadline.Add(Margin(duration(h.ttl)))
	d := h.lock.newCleanup(h.token, h.inDoubt(), until)
	d.unused, d.done = boolArg(unused), done
	d.inDoubt = h.conversion.resolved() != nil // then it may be another lease by now, which is given back as well
	h.cleanup = d
	h.mu.Unlock()
	cancel()
	h.forget()
	d.send(by)
	h.observe(Released, time.Since(h.grantedAt), nil)
	return d, nil
}

// Release gives the lease back. See Lease.Release in package lockkeeper.
func (h *Lease) Release(ctx context.Context) error {
	if next := h.next.Load(); next != nil {
		return next.Release(ctx)
	}
	by := h.lock.e.transport.Send
	if ctx.Done() == nil {
		by = h.lock.e.transport.SendInline // nobody can call the caller off
	}
	d, err := h.release(by, false)
	if d == nil {
		return err
	}
	return h.await(ctx, d, ErrReleaseUnanswered)
}

// await returns when the departure has been answered and no renewal is under way any more, or when ctx ends; if it has ended
// already, after a second at the most. The error is silence if no answer came.
func (h *Lease) await(ctx context.Context, d *Cleanup, silence error) error {
	var end <-chan time.Time
	done := ctx.Done()
	if ctx.Err() != nil {
		grace := time.NewTimer(cancelGrace)
		defer grace.Stop()
		end, done = grace.C, nil
	}
	h.mu.Lock()
	quiet, other := h.drained, h.conversion.resolved()
	h.mu.Unlock()
	for _, c := range []<-chan struct{}{d.finished, quiet, other} {
		if c == nil {
			continue
		}
		select {
		case <-c:
		case <-done:
			return h.lock.fail(silence, ctx.Err())
		case <-end:
			return h.lock.fail(silence, ctx.Err())
		}
	}
	return d.err()
}

// inDoubt says whether a copy of the request for this lease may yet run, after its release. For a token that another process
// has got nobody here knows.
func (h *Lease) inDoubt() bool { return h.adopted || h.request != nil && h.request.hasInDoubt() }

// currentCleanup is what gives the lease back, or has; nil if nothing does.
func (h *Lease) currentCleanup() *Cleanup {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cleanup
}

// abandon gives the lease back in the background: whoever asked for it has gone.
func (h *Lease) abandon() { _, _ = h.release(h.lock.e.transport.Send, true) }

// CheckDeadline ends the lease as lost if its deadline has passed and its timer has not fired yet, for example because the
// process was frozen.
func (h *Lease) CheckDeadline() {
	if next := h.next.Load(); next != nil {
		if err := next.Err(); err != nil {
			h.lifecycle.end(err) // whoever ended it may not have come to this one yet
		}
		return
	}
	h.mu.Lock()
	over := h.err == nil && h.next.Load() == nil && !time.Now().Before(h.deadline)
	h.mu.Unlock()
	if over {
		h.lose(nil)
	}
}

// Deadline is until when the lease is believed if it is not renewed.
func (h *Lease) Deadline() time.Time {
	h = h.current()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deadline
}

// Token, Fence and Name say what the lease is.
func (h *Lease) Token() string { return h.current().token }

// Fence is the fencing token.
func (h *Lease) Fence() uint64 { return h.fence }

// Name is what is locked.
func (h *Lease) Name() string { return h.lock.spec.Name }

// Kind is the primitive.
func (h *Lease) Kind() string { return h.lock.spec.Scripts.Kind }

// Do runs fn under the lease and releases it, also when fn panics.
func (h *Lease) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return Do(ctx, h, fn)
}
