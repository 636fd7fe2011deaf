package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// outages are the cases that tell outages, contention and ended contexts apart.
var outages = []Case{
	{Name: "61_outage_during_acquire_is_not_contention", Alone: true, Test: outageDuringAcquire},
	{Name: "61_outage_during_wait_is_not_contention", Alone: true, Test: outageDuringWait},
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
	ctx, cancel := context.WithTimeout(w.ctx(), d)
	defer cancel()
	return call(ctx)
}

// expectUnavailable checks that a call with this timeout fails when it has passed, because nothing replies.
func (w *World) expectUnavailable(what string, d time.Duration, call func(context.Context) error) {
	w.Helper()
	start := time.Now()
	err := w.callWithTimeout(d, call)
	w.checkError(err, lockkeeper.ErrUnavailable, context.DeadlineExceeded)
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

// outageDuringWait stops the server's replies while others wait for a holder. A deadline is long enough to notice
// it, wherever it falls between two heartbeats; a cancellation can come just before the first reply is missed.
func outageDuringWait(w *World) {
	const heartbeatInterval = time.Second
	waits := []time.Duration{0, heartbeatInterval / 20, heartbeatInterval / 2, 2 * heartbeatInterval} // counted from a heartbeat after the freeze
	if w.Real {
		// It takes a while until all wait.
		waits = []time.Duration{4 * heartbeatInterval}
	}
	for i, more := range waits {
		name := fmt.Sprintf("x%d", i)
		lease := w.hold(w.Process().Lock(name, withTTL(time.Minute)))
		p := w.Process(func(o *lockkeeper.Options) {
			o.HeartbeatInterval, o.HeartbeatTimeout = heartbeatInterval, 3*heartbeatInterval
		})
		l := p.Lock(name, withTTL(time.Minute))
		timed := must.Within(w, heartbeatInterval+20*time.Millisecond+more)
		called, cancelCall := context.WithCancel(w.ctx())
		defer cancelCall()
		var chans []chan result
		for range 3 {
			chans = append(chans, w.lockAsync(timed, l))
		}
		last := w.lockAsync(called, l)
		w.awaitWaiters(name, map[bool]int64{true: 4, false: 1}[w.P.Fair])
		thaw := w.freeze(p)
		time.Sleep(heartbeatInterval + more + 200*time.Millisecond)
		cancelCall()
		for _, ch := range chans {
			w.checkError(await(w, ch, heartbeatInterval).err, lockkeeper.ErrUnavailable, context.DeadlineExceeded)
		}
		w.checkError(await(w, last, heartbeatInterval).err, lockkeeper.ErrUnavailable, context.Canceled)
		thaw()
		w.release(lease)
	}
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
