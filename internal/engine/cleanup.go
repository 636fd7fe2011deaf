package engine

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// A Cleanup releases whatever a token has at the server, a lease or a queue entry. It retries in the background until the
// server has answered, or until the lease or entry must have expired.
type Cleanup struct {
	lock      *Lock
	token     string
	tombstone int64     // ms for which the token must not be granted again; 0: no tombstone
	unused    int       // an argument of release.lua: usedLease, unusedLease or unusedUnlessGranted; set between attempts only
	origin    *Lease    // for a conversion: the lease that is converted; see unusedUnlessGranted
	request   *request  // for a conversion: its request
	until     time.Time // when the lease or entry must have expired
	needsLong bool      // the short form of release.lua has not decided it; set between attempts only
	short     bool      // the call under way is the short form of release.lua; set between attempts only
	done      time.Time // if set, a record that lasts until then replaces the lease; see Complete
	timer     timers.Timer
	finished  signal         // when state becomes cleanupEnded
	first     transport.Call // the first one that is sent
	owner     *Owner         // is notified of its end; nil: none
	explained bool           // its result is that of a holder, who is told why the lease was gone

	mu        sync.Mutex // guards the fields below, which are final when it has ended
	state     cleanupState
	sent      bool // first is in use
	backoff   *backoff.ExponentialBackOff
	inDoubt   bool   // the outcome of an attempt is unknown, so the server may have done it already
	code      int64  // the code of the server's reply
	failure   error  // why there is no answer, or nil
	loss      error  // why the lease was gone, if that was asked
	found     *Lease // the lease that replaced the origin, not started yet
	successor *Lease // the lease whose settle is called at the end; nil: Convert waits instead
}

type cleanupState int

const (
	cleanupReleasing cleanupState = iota // sends release.lua or complete.lua
	cleanupChecking                      // the conversion took effect; renews the new lease to learn its fence
	cleanupEnded
)

var (
	// ErrNotHeld means that the server knows no lease of the token.
	ErrNotHeld = NewLoss(LossGone, "the server does not know the token: the lease expired there, or its key was deleted or lost")
	// ErrReleaseUnanswered means that the server has not confirmed a release.
	ErrReleaseUnanswered = Chain(ErrUnavailable, errors.New("the release was not answered; if the server did not run it, the lease expires by itself"))
	// errConverted and errUnsure are why a lease is lost after a conversion whose outcome was unknown at first.
	errConverted = NewLoss(LossGone, "it was converted to another lease, which has ended")
	errUnsure    = NewLoss(LossUnavailable, "it is not known whether it was converted to another lease")
)

// newCleanup returns a cleanup for which Close waits. The caller must call send. If inDoubt is set, a copy of the token's
// request may still run, and the token gets a tombstone.
func (l *Lock) newCleanup(token string, inDoubt bool, until time.Time) *Cleanup {
	c := &Cleanup{lock: l, token: token, until: until}
	if inDoubt {
		c.tombstone = millis(tombstoneTTL)
	}
	l.e.beginWork(true)
	return c
}

// tombstone prevents copies of a request that has ended from being granted. There is nothing to release. It blocks until
// the server has answered, for cancelGrace at most, or until ctx ends, and continues in the background after that.
func (l *Lock) tombstone(ctx context.Context, token string) {
	c := l.newCleanup(token, true, time.Now().Add(tombstoneTTL))
	c.send(l.e.transport.Send)
	ctx, cancel := context.WithTimeout(ctx, cancelGrace)
	defer cancel()
	waitFor(ctx, c.finished.done())
}

// send sends the command of the current state, by Transport.Send or SendInline.
func (c *Cleanup) send(by func(*transport.Call)) {
	l := c.lock
	c.mu.Lock()
	state := c.state
	call := &c.first
	if c.sent {
		call = &transport.Call{}
	}
	c.sent = true
	c.mu.Unlock()
	call.Done = c
	c.short = false
	if state == cleanupChecking {
		l.setRenewal(call, c.token, l.ttl, renewMetadata, false, false)
	} else if ms := millis(time.Until(c.done)); ms > 0 { // otherwise the record would have expired already
		l.setCompletion(call, c.token, ms)
	} else if c.short = !c.needsLong && c.tombstone == 0 && c.unused == usedLease && l.spec.Yield == 0 && l.ending.usable(); c.short {
		l.setShortRelease(call, c.token)
	} else {
		l.setRelease(call, c.token, c.tombstone, c.unused)
	}
	by(call)
}

// CallDone implements transport.Receiver.
func (c *Cleanup) CallDone(call *transport.Call) {
	if call.Script == c.lock.spec.Scripts.Renew {
		c.checked(call)
	} else {
		c.released(call)
	}
}

// released handles the reply of release.lua or complete.lua.
func (c *Cleanup) released(call *transport.Call) {
	e := c.lock.e
	r, err := decode(call, protocol.ParseReleaseReply)
	if err == nil && r.Code == lua.Held && c.unused == unusedUnlessGranted {
		if c.holder().Err() != nil {
			c.unused = unusedLease // its holder has released or lost it meanwhile
		} else {
			c.mu.Lock()
			c.state = cleanupChecking
			c.mu.Unlock()
		}
		c.send(e.transport.Send)
		return
	}
	if err == nil && c.short {
		if c.needsLong = !r.QueueEmpty; c.needsLong {
			c.lock.ending.failed()
			c.send(e.transport.Send)
			return
		}
		c.lock.ending.decided()
	} else if err == nil && r.QueueEmpty {
		c.lock.ending.longGranted()
	}
	if err == nil {
		if r.Code == lua.Refused && c.explained && !c.isInDoubt() {
			c.finishGone()
		} else {
			c.finish(r.Code, nil)
		}
		if r.More {
			c.lock.continueAdmitting()
		}
		if r.QueueEmpty {
			c.lock.queueWasEmpty(call.Sent)
		}
		return
	}
	c.retry(err)
}

// checked handles the answer to a renewal of the lease that replaced the origin.
func (c *Cleanup) checked(call *transport.Call) {
	r, err := decode(call, protocol.ParseRenewReplyWithFence)
	deadline := LeaseUntil(call.Sent, c.lock.ttl)
	switch {
	case err != nil:
		c.retry(err)
	case !r.Held:
		c.finish(0, errConverted)
	case !GrantInTime(deadline, time.Now()):
		c.send(c.lock.e.transport.Send) // the answer took longer than the lease lasts
	default:
		h := c.lock.newLease(c.token, r.Fence, deadline, c.request.observation)
		h.request = c.request
		c.mu.Lock()
		c.found = h
		c.mu.Unlock()
		c.finish(lua.Held, nil)
	}
}

// retry sends the command again after a pause, or ends the cleanup if the error is permanent or time has run out.
func (c *Cleanup) retry(err error) {
	e, now := c.lock.e, time.Now()
	c.mu.Lock()
	c.inDoubt = c.inDoubt || transport.OutcomeOf(err) == transport.InDoubt
	if c.backoff == nil {
		c.backoff = e.cfg.Retry.NewBackoff()
	}
	pause := c.backoff.NextBackOff()
	c.mu.Unlock()
	if !transport.Retryable(err) || now.Add(pause).After(c.until) || !e.mayRetry(now.Add(pause)) {
		c.finish(0, err)
		return
	}
	c.timer.Handler = timers.Func(func(time.Time) { c.send(e.transport.Send) })
	e.timers.Set(&c.timer, now.Add(pause))
}

// mayRetry reports whether a cleanup may send again at that time: not after Close has returned.
func (e *Engine) mayRetry(at time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.closed || at.Before(e.closeBy)
}

// holder returns the lease that the caller of Convert has now.
func (c *Cleanup) holder() *Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.successor != nil {
		return c.successor
	}
	return c.origin
}

// handTo makes the cleanup call settle of the lease when it ends, since Convert no longer waits. It returns false if the
// cleanup has ended already.
func (c *Cleanup) handTo(successor *Lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == cleanupEnded {
		return false
	}
	c.successor = successor
	return true
}

// finishGone is finish for a lease that the server does not have, when it is known why.
func (c *Cleanup) finishGone() {
	l := c.lock
	l.gone(c.token, func(b *protocol.Breaker) {
		if b != nil {
			l.e.logBroken(l, c.token, "lease", *b)
		}
		c.mu.Lock()
		c.loss = l.e.lossOf(b)
		c.mu.Unlock()
		c.finish(lua.Refused, nil)
	})
}

func (c *Cleanup) finish(code int64, err error) {
	c.mu.Lock()
	c.code, c.failure, c.state = code, err, cleanupEnded
	successor, found := c.successor, c.found
	c.mu.Unlock()
	if successor != nil {
		successor.settle(found, err)
	}
	c.finished.close()
	if c.owner != nil {
		c.owner.Observer.PartCleanedUp()
	}
	c.lock.e.endWork()
}

// beginWork registers work that Close waits for. It returns false after Close, unless the work releases something.
func (e *Engine) beginWork(releases bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed && !releases {
		return false
	}
	e.working++
	return true
}

// endWork undoes a beginWork that returned true.
func (e *Engine) endWork() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.working--; e.working == 0 {
		e.idle.Broadcast()
	}
}

// err returns how a release ended: nil if the server has released the lease, ErrLost if the server did not know the
// lease. If the outcome of an earlier attempt is unknown, that attempt may have released it, and err returns nil.
func (c *Cleanup) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failure != nil:
		return c.lock.fail(c.failure)
	case c.code == lua.Refused && !c.inDoubt:
		return c.lock.fail(ErrLost, cmp.Or(c.loss, ErrNotHeld))
	}
	return nil
}

// isInDoubt reports whether an earlier attempt may have taken effect.
func (c *Cleanup) isInDoubt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inDoubt
}

// errNow is err for a cleanup that may not have ended yet.
func (c *Cleanup) errNow() error {
	if c.finished.isClosed() {
		return c.err()
	}
	return c.lock.fail(ErrReleaseUnanswered)
}

// continueAdmitting makes the server go on admitting waiters after a script reached the limit of one run.
func (l *Lock) continueAdmitting() {
	l.e.transport.Send(l.heartbeatCall(0, 0, func(call *transport.Call) {
		if h, err := decodeHeartbeat(call, 0); err == nil && h.More {
			l.continueAdmitting()
		}
	}))
}
