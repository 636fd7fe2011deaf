package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/clockwork"
	"github.com/lockkeeper/lockkeeper/internal/courier"
	"github.com/lockkeeper/lockkeeper/lua"
)

// departure gives up whatever a token has, its lease or its place in line. It repeats itself in the background until
// the server has answered, or until what the token has is over by itself.
type departure struct {
	lock   *Lock
	token  string
	bury   int64     // ms
	unused int       // 1: whoever asked never learned of a lease, so that nothing of it was used; 2: see origin
	origin *Hold     // in whose place the lease would have come. It has to end before what has come is given up
	until  time.Time // when there is nothing left to give up
	alarm  clockwork.Alarm
	pauses *backoff.ExponentialBackOff
	over   chan struct{} // closed when it has ended

	mu      sync.Mutex // guards what follows
	stray   bool       // an attempt's fate was not learned, so the server may have done it already
	had     int64      // the server's answer
	failure error      // or why there is none
}

var (
	errNotHeld = errors.New("the server does not know the token")
	errNoEcho  = errors.New("the release was not answered; the lease ends by itself")
	// Why the lease ends that was to be turned into another by a request that was given up.
	errConverted = errors.New("it had been turned into another lease already")
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

func (d *departure) send(by func(*courier.Call)) {
	l := d.lock
	call := l.call(l.spec.Scripts.Release, 4, 6, d.sent)
	call.Args = lua.ReleaseArgs(call.Args, d.token, l.args.idle, l.args.wake, l.args.sharded, d.bury, d.unused)
	by(call)
}

func (d *departure) sent(call *courier.Call) {
	e := d.lock.e
	n, err := parseReply(call)
	if err == nil {
		err = n.want(2)
	}
	if err == nil && n[0] == lua.Held && d.unused == 2 {
		d.origin.lose(errConverted)
		d.unused = 1
		d.send(e.courier.Send)
		return
	}
	if err == nil {
		d.finish(n[0], nil)
		if n[1] != 0 {
			d.lock.nudge()
		}
		return
	}
	now := time.Now()
	d.mu.Lock()
	d.stray = d.stray || courier.FateOf(err) == courier.Lost
	if d.pauses == nil {
		d.pauses = e.cfg.Retry.pauses()
	}
	pause := d.pauses.NextBackOff()
	d.mu.Unlock()
	if !courier.Passing(err) || now.Add(pause).After(d.until) || !e.mayRepeat(now) {
		d.finish(0, err)
		return
	}
	e.clock.Set(&d.alarm, now.Add(pause))
}

// mayRepeat says whether departures may go on: not for long after Close.
func (e *Engine) mayRepeat(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.closed || now.Before(e.closeBy)
}

func (d *departure) finish(had int64, err error) {
	d.mu.Lock()
	d.had, d.failure = had, err
	d.mu.Unlock()
	if d.origin != nil {
		if err != nil {
			d.origin.lose(errUnsure)
		}
		d.origin.converted()
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

// nudge asks the server to go on admitting, where a script had walked far enough.
func (l *Lock) nudge() {
	l.e.courier.Send(l.beatCall(0, 0, func(call *courier.Call) {
		if p, err := parsePulse(call, 0); err == nil && p.more {
			l.nudge()
		}
	}))
}
