package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// A Cleanup releases whatever a token has at the server, a lease or a queue entry. It is repeated in the background until the
// server has answered, or until what the token has has expired.
type Cleanup struct {
	lock      *Lock
	token     string
	tombstone int64     // ms
	unused    int       // 1: whoever asked never learned of a lease, so that nothing of it was used; 2: see origin
	origin    *Lease    // in whose place the lease would have come. If it has come, it is not given up but looked for, and kept
	request   *request  // for that lease
	checks    bool      // it is there, and looked for now
	until     time.Time // when there is nothing left to give up
	done      time.Time // instead of releasing, the work is recorded as done until then; see Complete
	timer     timers.Timer
	backoff   *backoff.ExponentialBackOff
	finished  chan struct{} // closed when it has ended

	mu        sync.Mutex // guards what follows
	inDoubt   bool       // an attempt's fate was not learned, so the server may have done it already
	had       int64      // the server's answer
	failure   error      // or why there is none
	found     *Lease     // the lease that has come in the place of the origin, not yet begun
	onEnd     bool       // it has ended
	successor *Lease     // that is told of it then; nil: Convert waits for that
}

var (
	// ErrNotHeld means that the server knows no lease of the token.
	ErrNotHeld = errors.New("the server does not know the token")
	// ErrReleaseUnanswered means that the server has not confirmed a release.
	ErrReleaseUnanswered = Chain(ErrUnavailable, errors.New("the release was not answered; the lease ends by itself"))
	// Why the lease ends that was to be turned into another by a request that was given up.
	errConverted = errors.New("it had been turned into another lease, which is over")
	errUnsure    = errors.New("it is not known whether it was turned into another lease")
)

// newCleanup prepares a departure, which Close waits for and which is to be sent now. Stray says that a copy of the token's
// request may still run: then it is buried.
func (l *Lock) newCleanup(token string, stray bool, until time.Time) *Cleanup {
	d := &Cleanup{lock: l, token: token, until: until, finished: make(chan struct{})}
	if stray {
		d.tombstone = millis(tombstoneTTL)
	}
	d.timer.Fire = func(time.Time) { d.send(l.e.transport.Send) }
	l.e.beginWork(true)
	return d
}

// tombstone keeps copies of a request that has ended, and of which nothing is to be given back, from being obeyed. It blocks until
// the server has answered, but not for long and not after ctx has ended, and goes on in the background then.
func (l *Lock) tombstone(ctx context.Context, token string) {
	d := l.newCleanup(token, true, time.Now().Add(tombstoneTTL))
	d.send(l.e.transport.Send)
	ctx, cancel := context.WithTimeout(ctx, cancelGrace)
	defer cancel()
	waitFor(ctx, d.finished)
}

func (d *Cleanup) send(by func(*transport.Call)) {
	l := d.lock
	if d.checks {
		by(l.renewCall(d.token, l.ttl, renewMetadata, false, d.checked))
		return
	}
	if ms := millis(time.Until(d.done)); ms > 0 { // if the time is over already, there is nothing to record
		call := l.call(l.spec.Scripts.Complete, 1, 2, d.sent)
		call.Args = lua.CompleteArgs(call.Args, d.token, ms)
		by(call)
		return
	}
	call := l.call(l.spec.Scripts.Release, 4, 6, d.sent)
	call.Args = lua.ReleaseArgs(call.Args, d.token, l.args.metadataTTL, l.args.channelPrefix, l.args.sharded, d.tombstone, d.unused)
	by(call)
}

func (d *Cleanup) sent(call *transport.Call) {
	e := d.lock.e
	n, err := parseReply(call)
	if err == nil {
		err = n.checkLength(2)
	}
	if err == nil && n[0] == lua.Held && d.unused == 2 {
		if d.holder().Err() != nil {
			d.unused = 1 // nobody wants it any more
		} else {
			d.checks = true
		}
		d.send(e.transport.Send)
		return
	}
	if err == nil {
		d.finish(n[0], nil)
		if n[1]&moreToAdmit != 0 {
			d.lock.continueAdmitting()
		}
		if n[1]&queueEmpty != 0 {
			d.lock.queueWasEmpty(call.Sent)
		}
		return
	}
	d.retry(err)
}

// checked deals with the answer to a renewal of the lease that has come in the place of the origin.
func (d *Cleanup) checked(call *transport.Call) {
	r, err := parseFullRenewal(call)
	deadline := call.Sent.Add(d.lock.trusted(d.lock.ttl))
	switch {
	case err != nil:
		d.retry(err)
	case !r.held:
		d.finish(0, errConverted)
	case !time.Now().Before(deadline):
		d.send(d.lock.e.transport.Send) // the answer was too long in coming
	default:
		h := d.lock.newLease(d.token, r.fence, deadline)
		h.request = d.request
		d.mu.Lock()
		d.found = h
		d.mu.Unlock()
		d.finish(lua.Held, nil)
	}
}

// retry sends it again after a pause, or ends if that is of no use.
func (d *Cleanup) retry(err error) {
	e, now := d.lock.e, time.Now()
	d.mu.Lock()
	d.inDoubt = d.inDoubt || transport.OutcomeOf(err) == transport.InDoubt
	if d.backoff == nil {
		d.backoff = e.cfg.Retry.NewBackoff()
	}
	pause := d.backoff.NextBackOff()
	d.mu.Unlock()
	if !transport.Retryable(err) || now.Add(pause).After(d.until) || !e.mayRetry(now.Add(pause)) {
		d.finish(0, err)
		return
	}
	e.timers.Set(&d.timer, now.Add(pause))
}

// mayRetry says whether a departure may send again at that time: not after Close has returned.
func (e *Engine) mayRetry(at time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.closed || at.Before(e.closeBy)
}

// holder is whoever believes to hold what is, or was, in the place of the lease.
func (d *Cleanup) holder() *Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.successor != nil {
		return d.successor
	}
	return d.origin
}

// handTo makes a lease learn what has become of the conversion, in the place of Convert. It says no if that is known by now.
func (d *Cleanup) handTo(heir *Lease) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.onEnd {
		d.successor = heir
	}
	return !d.onEnd
}

func (d *Cleanup) finish(had int64, err error) {
	d.mu.Lock()
	d.had, d.failure, d.onEnd = had, err, true
	heir, found := d.successor, d.found
	d.mu.Unlock()
	if heir != nil {
		heir.settle(found, err)
	}
	close(d.finished)
	d.lock.e.endWork()
}

// beginWork notes that something has begun which Close has to wait for. After Close it says no, but for what gives back.
func (e *Engine) beginWork(givesBack bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed && !givesBack {
		return false
	}
	e.working++
	return true
}

// endWork notes its end.
func (e *Engine) endWork() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.working--; e.working == 0 {
		e.idle.Broadcast()
	}
}

// err is how the departure of a lease ended: nil if the lease was given up; ErrLost if the server did not know it any
// more, unless an attempt before may have done it.
func (d *Cleanup) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.failure != nil:
		return d.lock.fail(d.failure)
	case d.had == lua.Refused && !d.inDoubt:
		return d.lock.fail(ErrLost, ErrNotHeld)
	}
	return nil
}

// errNow is err of a departure that may not have ended.
func (d *Cleanup) errNow() error {
	select {
	case <-d.finished:
		return d.err()
	default:
		return d.lock.fail(ErrReleaseUnanswered)
	}
}

// continueAdmitting asks the server to go on admitting, where a script had walked far enough.
func (l *Lock) continueAdmitting() {
	l.e.transport.Send(l.heartbeatCall(0, 0, func(call *transport.Call) {
		if p, err := parseHeartbeat(call, 0); err == nil && p.more {
			l.continueAdmitting()
		}
	}))
}
