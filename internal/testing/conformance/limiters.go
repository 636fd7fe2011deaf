package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

var limiterCases = []Case{
	{Name: "45_invalid_permit_counts_rejected", Test: invalidPermitCounts},
	{Name: "48_latest_callers_limit_applies", Test: latestCallersLimit},
	{Name: "61_permit_outage_is_not_contention", Alone: true, Test: outageForPermits},
	{Name: "inspect_permits", Test: inspectPermits},
	{Name: "server_clock_anywhere_for_permits", Embedded: true, Test: anyServerClock(inspectPermits, latestCallersLimit)},
}

// limiter is a semaphore or a rate limit under test. Its Acquire and TryAcquire are the calls for whichever it is: a semaphore
// and a ConcurrentLimiter have leases, and the permits of a Limiter are not held.
type limiter struct {
	limits
	byClock *ratelimit.Limiter // or else
	leasing leasing            // is set
	w       *World
}

type leasing interface {
	AcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error)
	TryAcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error)
	Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error)
}

type limits interface {
	Available(ctx context.Context) (int, error)
	DoN(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error
	Holders(ctx context.Context) ([]lockkeeper.Holder, error)
	SetLimit(ctx context.Context, limit int) error
	Waiters(ctx context.Context) ([]lockkeeper.Waiter, error)
}

// limiter returns the limiter of a process. With maxConcurrent 0 it is a Limiter.
func (p *Process) limiter(limit int, window time.Duration, maxConcurrent int) limiter {
	p.w.Helper()
	const name = "x"
	if maxConcurrent > 0 {
		l := must.Get(ratelimit.NewConcurrent(p.Keeper, name, limit, window, maxConcurrent, &ratelimit.ConcurrentOptions{TTL: ttl}))(p.w)
		return limiter{limits: l, leasing: l, w: p.w}
	}
	l := must.Get(ratelimit.New(p.Keeper, name, limit, window, nil))(p.w)
	return limiter{limits: l, byClock: l, w: p.w}
}

// makers are the kinds of limiter that the primitive has.
func (w *World) makers() []func(p *Process, limit int) limiter {
	if w.P.Kind == "semaphore" {
		return []func(*Process, int) limiter{func(p *Process, limit int) limiter {
			s := p.sem(limit)
			return limiter{limits: s, leasing: s, w: w}
		}}
	}
	return []func(*Process, int) limiter{
		func(p *Process, limit int) limiter { return p.limiter(limit, time.Hour, 0) },
		func(p *Process, limit int) limiter { return p.limiter(limit, time.Hour, 100) },
	}
}

// Acquire waits for n permits.
func (l limiter) Acquire(ctx context.Context, n int) (g grant, err error) {
	if l.leasing != nil {
		return leased(l.leasing.AcquireN(ctx, n))
	}
	err = l.byClock.DoN(ctx, n, func(_ context.Context, fence uint64) error {
		g.fence = fence
		return nil
	})
	return g, err
}

// notAllowed is a refusal by AllowN as an error.
type notAllowed struct{ ratelimit.LimitedError }

// Error implements error.
func (notAllowed) Error() string { return `lockkeeper: ratelimit "x": not allowed` }

// Unwrap makes it match lockkeeper.ErrNotAcquired.
func (notAllowed) Unwrap() error { return lockkeeper.ErrNotAcquired }

// TryAcquire takes n permits or is refused.
func (l limiter) TryAcquire(ctx context.Context, n int) (grant, error) {
	if l.leasing != nil {
		return leased(l.leasing.TryAcquireN(ctx, n))
	}
	r, err := l.byClock.AllowN(ctx, n)
	if err != nil {
		return grant{}, err
	}
	if r.Allowed != (r.Fence > 0) || r.Limit < n || r.Remaining < 0 || r.Remaining > r.Limit || r.RetryAfter < 0 ||
		r.Allowed && (r.RetryAfter != 0 || r.ResetAfter <= 0 || r.Remaining > r.Limit-n) {
		l.w.Errorf("for %d permits: %+v", n, r)
	}
	if !r.Allowed {
		return grant{}, &notAllowed{ratelimit.LimitedError{RetryAfter: r.RetryAfter, RetryAt: time.Now().Add(r.RetryAfter)}}
	}
	return grant{fence: r.Fence}, nil
}

func (w *World) mustTake(l limiter, n int) grant {
	w.Helper()
	return must.Get(l.Acquire(w.ctx(), n))(w)
}

func (w *World) giveBack(g grant) {
	w.Helper()
	if g.lease != nil {
		w.release(g.lease)
	}
}

// takeAsync asks for n permits; it returns when k requests are queued.
func (w *World) takeAsync(ctx context.Context, k int64, l limiter, n int) chan result {
	w.Helper()
	ch := make(chan result, 1)
	go func() {
		g, err := l.Acquire(ctx, n)
		ch <- result{g, err, time.Now()}
	}()
	w.awaitWaiters("x", k)
	return ch
}

func (w *World) limited(l limiter, n int) error {
	w.Helper()
	err := errorOf(l.TryAcquire(w.ctx(), n))
	w.checkError(err, lockkeeper.ErrNotAcquired)
	return err
}

// wantLimitedError checks that an error says when to try again.
func (w *World) wantLimitedError(err error) *ratelimit.LimitedError {
	w.Helper()
	limited := new(ratelimit.LimitedError)
	if refusal := (*notAllowed)(nil); errors.As(err, &refusal) {
		limited = &refusal.LimitedError
	} else if !errors.As(err, &limited) {
		w.Fatalf("the error does not say when to try again: %v", err)
	}
	must.That(w, limited.RetryAfter > 0, "retry after %v", limited.RetryAfter)
	return limited
}

func (w *World) available(s interface {
	Available(ctx context.Context) (int, error)
}, want int) {
	w.Helper()
	got := must.Get(s.Available(w.ctx()))(w)
	must.That(w, got == want, "%d permits may be had, want %d", got, want)
}

func (w *World) awaitAvailable(l limits, want int) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d permits", want), func() bool {
		got, err := l.Available(w.ctx())
		return err == nil && got == want
	})
}

func nextEvent[T any](w *World, reported chan T) T {
	w.Helper()
	return must.Receive(w, reported, 10*time.Second, "a call of the hook")
}

// contend takes random numbers of permits from several processes at once, and calls f with what it was granted.
func (w *World) contend(processes, goroutines, rounds, limit int, limiterOf func(*Process) limiter, f func(grant, int)) {
	seed := rand.Uint64()
	w.Logf("seed %d", seed)
	var list []limiter
	for range processes {
		list = append(list, limiterOf(w.Process()))
	}
	parallel(processes*goroutines, func(i int) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for range rounds {
			n := 1 + r.IntN(limit)
			g, err := list[i%processes].Acquire(w.ctx(), n)
			if err != nil {
				w.Error(err)
				return
			}
			f(g, n)
			time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
		}
	})
}

func (w *World) forget() {
	w.Helper()
	w.must(w.admin.Del(w.ctx(), w.P.Key("x"), w.metaKey("x")).Err())
}

func invalidPermitCounts(w *World) {
	p := w.Process()
	p.Net.ResetCount()
	for _, limiterOf := range w.makers() {
		s := limiterOf(p, 3)
		for _, n := range []int{0, -1, 4} {
			w.checkError(errorOf(s.Acquire(w.ctx(), n)), lockkeeper.ErrInvalid)
			w.checkError(errorOf(s.TryAcquire(w.ctx(), n)), lockkeeper.ErrInvalid)
			if s.byClock != nil {
				w.checkError(s.byClock.WaitN(w.ctx(), n), lockkeeper.ErrInvalid)
			}
			w.checkError(s.DoN(w.ctx(), n, func(context.Context, uint64) error { return nil }), lockkeeper.ErrInvalid)
		}
		w.checkError(s.DoN(w.ctx(), 1, nil), lockkeeper.ErrInvalid)
		for _, limit := range []int{0, -1, 1_000_000_001} {
			w.checkError(s.SetLimit(w.ctx(), limit), lockkeeper.ErrInvalid)
		}
	}
	check.That(w, p.Net.Scripts() == 0, "%d scripts were sent", p.Net.Scripts())

	// The limit in force is lower than this caller's.
	s := w.makers()[0](p, 3)
	w.giveBack(w.mustTake(s, 1))
	w.must(s.SetLimit(w.ctx(), 2))
	ctx := must.Within(w, 10*time.Second)
	w.checkError(errorOf(s.Acquire(ctx, 3)), ratelimit.ErrAboveLimit)
	w.checkError(errorOf(s.TryAcquire(w.ctx(), 3)), ratelimit.ErrAboveLimit)
	w.awaitWaiters("x", 0)
}

// latestCallersLimit: SetLimit is in force for those who know the same limit as before, until one comes who knows another.
func latestCallersLimit(w *World) {
	changed := make(chan int, 10)
	hook := func(o *lockkeeper.Options) {
		o.Hooks.LimitChanged = func(e lockkeeper.Event) {
			check.That(w, string(e.Kind) == w.P.Kind, "%+v", e)
			changed <- e.Limit
		}
	}
	for _, limiterOf := range w.makers() {
		a, b, c := limiterOf(w.Process(hook), 4), limiterOf(w.Process(hook), 4), limiterOf(w.Process(hook), 7)
		var taken []grant
		take := func(l limiter) { taken = append(taken, w.mustTake(l, 1)) }
		take(a)
		w.available(a, 3)
		w.must(a.SetLimit(w.ctx(), 2))
		take(b)
		w.available(b, 0)
		take(c)
		w.available(b, 4)
		take(a) // the old limit is in force again, as that of the latest caller
		w.available(b, 0)
		for _, want := range []int{2, 7, 4} {
			got := nextEvent(w, changed)
			check.That(w, got == want, "LimitChanged reported %d, want %d", got, want)
		}
		check.That(w, len(changed) == 0, "LimitChanged reported limits that were in force already")
		for _, g := range taken {
			w.giveBack(g)
		}
		w.forget()
	}
}

// outageForPermits checks the calls that other locks do not have.
func outageForPermits(w *World) {
	p := w.Process()
	s := w.makers()[0](p, 1)
	w.mustTake(s, 1)
	acquire := func(ctx context.Context) error { return errorOf(s.Acquire(ctx, 1)) }
	w.checkError(w.callWithTimeout(heartbeatInterval, acquire), lockkeeper.ErrNotAcquired)
	defer w.freeze(p)()
	w.expectUnavailable("Acquire", heartbeatInterval, acquire)
	w.expectUnavailable("SetLimit", heartbeatInterval, func(ctx context.Context) error { return s.SetLimit(ctx, 2) })
	w.expectUnavailable("Available", heartbeatInterval, errorOnly(s.Available))
}

// inspectPermits: without leases the holders are those whose permits have not returned.
func inspectPermits(w *World) {
	for _, limiterOf := range w.makers() {
		p := w.Process()
		s := limiterOf(p, 5)
		holders := func() []lockkeeper.Holder {
			return must.Get(s.Holders(w.ctx()))(w)
		}
		check.That(w, len(holders()) == 0, "there are holders of nothing")
		one, three := w.mustTake(s, 1), w.mustTake(s, 3)
		ctx, cancel := context.WithCancel(w.ctx())
		waits := []chan result{w.takeAsync(ctx, 1, s, 4), w.takeAsync(ctx, 2, s, 2)}
		lasts := time.Hour + time.Millisecond
		if one.lease != nil {
			lasts = ttl
		}
		list := holders()
		for _, h := range list {
			want := map[uint64]int{one.fence: 1, three.fence: 3}[h.Fence]
			check.That(w, h.Permits == want && h.Keeper == p.ID() && h.ExpiresIn > 0 && h.ExpiresIn <= lasts,
				"holder %+v, want %d permits", h, want)
		}
		queue := must.Get(s.Waiters(w.ctx()))(w)
		must.That(w, len(list) == 2 && len(queue) == 2, "holders %+v, waiters %+v", list, queue)
		first := queue[0]
		check.That(w, first.Permits == 4 && queue[1].Permits == 2 && first.Alive && first.Keeper == p.ID(), "waiters %+v", queue)
		w.available(s, 1)
		cancel()
		for _, ch := range waits {
			w.checkError(await(w, ch, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
		}
		w.awaitWaiters("x", 0)
		w.giveBack(one)
		w.giveBack(three)
		check.That(w, one.lease == nil || len(holders()) == 0, "there are holders after the release")
		w.forget()
	}
}

// Leaseless are the shared cases that apply to a rate limit without leases, where Wait and Allow stand for Lock and TryLock; see
// Primitive.Only. The others use the lease, go on when a lease is released, are about TTL, or wait until a deadline, while a wait
// that cannot end before its deadline is refused at once. RateLimits has what such a limit promises instead.
var Leaseless = []string{
	"02_one_of_100_try_locks_succeeds",
	"03_contended_try_lock_returns_immediately",
	"08_wait_cancelled_during_grant_cleans_up",
	"16_cancel_100_waiters",
	"30_waiters_served_in_order",
	"33_heartbeat_counts_until_timeout",
	"56_unlimited_retries_outlast_outage",
	"60_server_slower_than_ttl_is_an_error",
	"61_outage_during_acquire_is_not_contention",
	"f19_slow_subscription_disconnected",
	"f33_server_loading",
	"f35_waiter_on_server_refusing_writes",
	"f53_missing_permissions",
}
