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

// departure gives up whatever a token has, its lease or its place in line. It repeats itself in the background until
// the server has answered, or until what the token has is over by itself.
type departure struct {
	lock    *Lock
	token   string
	bury    int64     // ms
	unused  int       // 1: whoever asked never learned of a lease, so that nothing of it was used; 2: see origin
	origin  *Hold     // in whose place the lease would have come. If it has come, it is not given up but looked for, and kept
	request *waiter   // for that lease
	looks   bool      // it is there, and looked for now
	until   time.Time // when there is nothing left to give up
	done    time.Time // instead of releasing, the work is recorded as done until then; see Complete
	alarm   timers.Alarm
	pauses  *backoff.ExponentialBackOff
	over    chan struct{} // closed when it has ended

	mu      sync.Mutex // guards what follows
	stray   bool       // an attempt's fate was not learned, so the server may have done it already
	had     int64      // the server's answer
	failure error      // or why there is none
	found   *Hold      // the lease that has come in the place of the origin, not yet begun
	ended   bool       // it has ended
	heir    *Hold      // that is told of it then; nil: Convert waits for that
}

var (
	errNotHeld = errors.New("the server does not know the token")
	errNoEcho  = chained(ErrUnavailable, errors.New("the release was not answered; the lease ends by itself"))
	// Why the lease ends that was to be turned into another by a request that was given up.
	errConverted = errors.New("it had been turned into another lease, which is over")
	errUnsure    = errors.New("it is not known whether it was turned into another lease")
)

// depart prepares a departure, which Close waits for and which is to be sent now. Stray says that a copy of the token's
// request may still run: then it is buried.
func (l *Lock) depart(token string, stray bool, until time.Time) *departure {
	d := &departure{lock: l, token: token, until: until, over: make(chan struct{})}
	if stray {
		d.bury = millis(graveTime)
	}
	d.alarm.Ring = func(time.Time) { d.send(l.e.courier.Send) }
	l.e.enter(true)
	return d
}

// bury keeps copies of a request that has ended, and of which nothing is to be given back, from being obeyed. It blocks until
// the server has answered, but not for long and not after ctx has ended, and goes on in the background then.
func (l *Lock) bury(ctx context.Context, token string) {
	d := l.depart(token, true, time.Now().Add(graveTime))
	d.send(l.e.courier.Send)
	ctx, cancel := context.WithTimeout(ctx, graceAfterEnd)
	defer cancel()
	comes(ctx, d.over)
}

func (d *departure) send(by func(*transport.Call)) {
	l := d.lock
	if d.looks {
		by(l.renewCall(d.token, l.ttl, renewsFacts, false, d.looked))
		return
	}
	if ms := millis(time.Until(d.done)); ms > 0 { // if the time is over already, there is nothing to record
		call := l.call(l.spec.Scripts.Complete, 1, 2, d.sent)
		call.Args = lua.CompleteArgs(call.Args, d.token, ms)
		by(call)
		return
	}
	call := l.call(l.spec.Scripts.Release, 4, 6, d.sent)
	call.Args = lua.ReleaseArgs(call.Args, d.token, l.args.idle, l.args.wake, l.args.sharded, d.bury, d.unused)
	by(call)
}

func (d *departure) sent(call *transport.Call) {
	e := d.lock.e
	n, err := parseReply(call)
	if err == nil {
		err = n.want(2)
	}
	if err == nil && n[0] == lua.Held && d.unused == 2 {
		if d.holder().Err() != nil {
			d.unused = 1 // nobody wants it any more
		} else {
			d.looks = true
		}
		d.send(e.courier.Send)
		return
	}
	if err == nil {
		d.finish(n[0], nil)
		if n[1]&moreToAdmit != 0 {
			d.lock.nudge()
		}
		if n[1]&lineEmpty != 0 {
			d.lock.lineWasEmpty(call.Sent)
		}
		return
	}
	d.repeat(err)
}

// looked deals with the answer to a renewal of the lease that has come in the place of the origin.
func (d *departure) looked(call *transport.Call) {
	r, err := parseFullRenewal(call)
	deadline := call.Sent.Add(d.lock.trust(d.lock.ttl))
	switch {
	case err != nil:
		d.repeat(err)
	case !r.held:
		d.finish(0, errConverted)
	case !time.Now().Before(deadline):
		d.send(d.lock.e.courier.Send) // the answer was too long in coming
	default:
		h := d.lock.newHold(d.token, r.fence, deadline)
		h.request = d.request
		d.mu.Lock()
		d.found = h
		d.mu.Unlock()
		d.finish(lua.Held, nil)
	}
}

// repeat sends it again after a pause, or ends if that is of no use.
func (d *departure) repeat(err error) {
	e, now := d.lock.e, time.Now()
	d.mu.Lock()
	d.stray = d.stray || transport.FateOf(err) == transport.Lost
	if d.pauses == nil {
		d.pauses = e.cfg.Retry.pauses()
	}
	pause := d.pauses.NextBackOff()
	d.mu.Unlock()
	if !transport.Passing(err) || now.Add(pause).After(d.until) || !e.mayRepeat(now.Add(pause)) {
		d.finish(0, err)
		return
	}
	e.clock.Set(&d.alarm, now.Add(pause))
}

// mayRepeat says whether a departure may send again at that time: not after Close has returned.
func (e *Engine) mayRepeat(at time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.closed || at.Before(e.closeBy)
}

// holder is whoever believes to hold what is, or was, in the place of the lease.
func (d *departure) holder() *Hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.heir != nil {
		return d.heir
	}
	return d.origin
}

// leaveTo makes a lease learn what has become of the conversion, in the place of Convert. It says no if that is known by now.
func (d *departure) leaveTo(heir *Hold) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.heir = heir
	}
	return !d.ended
}

func (d *departure) finish(had int64, err error) {
	d.mu.Lock()
	d.had, d.failure, d.ended = had, err, true
	heir, found := d.heir, d.found
	d.mu.Unlock()
	if heir != nil {
		heir.settle(found, err)
	}
	close(d.over)
	d.lock.e.exit()
}

// enter notes that something has begun which Close has to wait for. After Close it says no, but for what gives back.
func (e *Engine) enter(givesBack bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed && !givesBack {
		return false
	}
	e.leaving++
	return true
}

// exit notes its end.
func (e *Engine) exit() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leaving--; e.leaving == 0 {
		e.left.Broadcast()
	}
}

// err is how the departure of a lease ended: nil if the lease was given up; ErrLost if the server did not know it any
// more, unless an attempt before may have done it.
func (d *departure) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.failure != nil:
		return d.lock.fail(d.failure)
	case d.had == lua.Refused && !d.stray:
		return d.lock.fail(ErrLost, errNotHeld)
	}
	return nil
}

// errNow is err of a departure that may not have ended.
func (d *departure) errNow() error {
	select {
	case <-d.over:
		return d.err()
	default:
		return d.lock.fail(errNoEcho)
	}
}

// nudge asks the server to go on admitting, where a script had walked far enough.
func (l *Lock) nudge() {
	l.e.courier.Send(l.beatCall(0, 0, func(call *transport.Call) {
		if p, err := parsePulse(call, 0); err == nil && p.more {
			l.nudge()
		}
	}))
}
