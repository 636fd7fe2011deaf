package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// outages are the cases that tell outages, contention and ended contexts apart.
var outages = []Case{
	{Name: "61_outage_during_acquire_is_not_contention", Alone: true, Test: outageDuringAcquire},
	{Name: "61_outage_during_wait_is_not_contention", Real: true, Alone: true, Test: outageDuringWait},
	{Name: "61_outage_anywhere_during_wait", Embedded: true, Test: outageAnywhere},
	{Name: "61_outage_reported_by_every_call", Alone: true, Test: outageForHolders},
}

// freeze stops all replies until thaw is called.
func (w *World) freeze(p *Process) (thaw func()) {
	if w.Real {
		w.server.Freeze()
		return w.server.Thaw
	}
	p.Net.Blackhole()
	return p.Net.Restore
}

func (w *World) callWithTimeout(d time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(w.ctx(), d, errCause)
	defer cancel()
	return call(ctx)
}

// errCause is the cause of contexts that tests end.
var errCause = errors.New("the cause")

// expectUnavailable checks that a call with this timeout fails when it has passed, because nothing replies.
func (w *World) expectUnavailable(what string, d time.Duration, call func(context.Context) error) {
	w.Helper()
	start := time.Now()
	err := w.callWithTimeout(d, call)
	w.checkError(err, lockkeeper.ErrUnavailable, context.DeadlineExceeded, errCause)
	check.That(w, time.Since(start) <= d+w.slack(), "%s took %v", what, time.Since(start))
}

func errorOnly[T any](call func(context.Context) (T, error)) func(context.Context) error {
	return func(ctx context.Context) error { _, err := call(ctx); return err }
}

// outageDuringAcquire: the lock is free and the server does not reply.
func outageDuringAcquire(w *World) {
	p := w.Process()
	l := p.Lock("x")
	w.checkFree(l)
	defer w.freeze(p)()
	const wait = 500 * time.Millisecond
	parallel(5, func(int) { w.expectUnavailable("Lock", wait, errorOnly(l.Lock)) })
	parallel(5, func(i int) { // also if the first caller gave up long ago
		w.expectUnavailable("Lock", wait+time.Duration(i)*20*time.Millisecond, errorOnly(l.Lock))
	})
	w.checkError(w.callWithTimeout(wait/2, errorOnly(l.TryLock)), lockkeeper.ErrUnavailable) // it may have given up before
	w.expectUnavailable("a very short Lock", time.Millisecond, errorOnly(l.Lock))
}

// outageDuringWait stops the server's replies while others wait for a holder.
func outageDuringWait(w *World) {
	const wait = 5 * heartbeatInterval // it takes a while until all wait
	lease := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	p := w.Process()
	l := p.Lock("x", withTTL(time.Minute))
	timed := must.Within(w, wait+20*time.Millisecond)
	called, cancelCall := context.WithCancel(w.ctx())
	defer cancelCall()
	var chans []chan result
	for range 3 {
		chans = append(chans, w.lockAsync(timed, l))
	}
	last := w.lockAsync(called, l)
	w.awaitWaiters("x", map[bool]int64{true: 4, false: 1}[w.P.Fair])
	thaw := w.freeze(p)
	time.Sleep(wait + 200*time.Millisecond)
	cancelCall()
	for _, ch := range chans {
		w.checkError(await(w, ch, heartbeatInterval).err, lockkeeper.ErrUnavailable, context.DeadlineExceeded)
	}
	w.checkError(await(w, last, heartbeatInterval).err, lockkeeper.ErrUnavailable, context.Canceled)
	thaw()
	w.release(lease)
}

// outageAnywhere lets waits end before and after the server has become unreachable, at all times between heartbeats. Until then the lock is held
// elsewhere. It takes a while until an outage is noticed: for a deadline, which is known before, less than for a cancellation.
func outageAnywhere(w *World) {
	const deadlineNotices, cancelNotices = heartbeatInterval/4 + server.DeadlineLead, heartbeatInterval + server.SilenceTimeout
	holder := w.Process()
	step := heartbeatInterval/8 + time.Millisecond
	if w.P.MajorityLock { // which asks often, without heartbeats
		step *= 3
	}
	for i, begins := range times(heartbeatInterval, step) {
		p := w.Process()
		p.Net.DelayReplies(time.Duration(i%3) * server.SilenceTimeout / 8) // a script that is new to the server takes two replies
		outage := time.Now().Add(2*heartbeatInterval + begins)
		var waits sync.WaitGroup
		for k, more := range times(3*heartbeatInterval/2, heartbeatInterval/9+time.Millisecond) {
			ends := outage.Add(more - heartbeatInterval/4)
			name := fmt.Sprintf("x%d_%d", i, k)
			w.hold(holder.Lock(name, withTTL(time.Hour)))
			wait := func(ctx context.Context, noticed time.Duration) {
				_, err := p.Lock(name, withTTL(time.Hour)).Lock(ctx)
				switch silent := time.Since(outage); {
				case silent < 0:
					w.checkError(err, lockkeeper.ErrNotAcquired, ctx.Err())
				case silent >= noticed:
					w.checkError(err, lockkeeper.ErrUnavailable, ctx.Err())
				default:
					check.Is(w, err, ctx.Err(), "a wait")
				}
			}
			for range 3 { // of which one asks the server, if there is a local queue, and after its end the next
				timed, stop := context.WithDeadline(w.ctx(), ends)
				called, cancelCall := context.WithCancel(w.ctx())
				time.AfterFunc(time.Until(ends), cancelCall)
				waits.Go(func() { wait(timed, deadlineNotices); stop() })
				waits.Go(func() { wait(called, cancelNotices) })
				ends = ends.Add(heartbeatInterval / 7)
			}
		}
		time.Sleep(time.Until(outage))
		if i%2 == 0 {
			p.Net.Blackhole()
		} else {
			p.Net.Down()
		}
		waits.Wait()
		p.Net.Restore()
	}
}

// times returns all times from 0 to a last one in steps.
func times(last, step time.Duration) (list []time.Duration) {
	for d := time.Duration(0); d <= last; d += step {
		list = append(list, d)
	}
	return list
}

func outageForHolders(w *World) {
	p := w.Process()
	l := p.Lock("x", withTTL(time.Minute))
	lease, gone := w.hold(l), w.hold(p.Lock("gone", withTTL(time.Minute)))
	calls := map[string]func(context.Context) error{
		"Extend": func(ctx context.Context) error { return lease.Extend(ctx, time.Minute) },
		"Adopt":  func(ctx context.Context) error { return errorOf(l.Adopt(ctx, lease.Token())) },
	}
	thaw := w.freeze(p)
	defer func() { thaw() }()
	for what, call := range calls {
		w.expectUnavailable(what, heartbeatInterval, call)
	}
	if observe, ok := l.(interface {
		Holders(context.Context) ([]lockkeeper.Holder, error)
	}); ok { // a few attempts, which may end before ctx
		w.checkError(w.callWithTimeout(heartbeatInterval, errorOnly(observe.Holders)), lockkeeper.ErrUnavailable)
	}
	w.must(lease.Err())
	w.expectUnavailable("Release", heartbeatInterval, gone.Release)
	w.checkError(gone.Err(), lockkeeper.ErrReleased)
	thaw()
	thaw = func() {}
	w.release(lease)

	// A server that does not accept connections.
	p.Net.Down()
	w.checkError(w.callWithTimeout(heartbeatInterval, errorOnly(l.TryLock)), lockkeeper.ErrUnavailable)
}
