package proptest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"pgregory.net/rapid"
)

// permits: so many may be held at once, and so many taken in any window of time. Waiters are served strictly in order,
// also those who want more than those behind them. The limit can be changed, by which no permits are taken away.
//
// It is a semaphore, or a rate limit if there is a window. A Limiter has no leases to observe; here
// it is a ConcurrentLimiter, whose bound on concurrent calls is never reached.
type permits struct {
	atOnce  int
	window  int           // 0: no limit
	per     time.Duration // the window
	pause   time.Duration // the longest; 0: there is none
	highest int           // that atOnce ever was
	taken   []taking      // in the last window
}

// taking is permits taken from a window.
type taking struct {
	token string
	at    int64 // µs, by the server's clock
	count int
}

// Additional promises.
const (
	limits  = "never more permits are held than the limit"
	windows = "never more permits are taken in a window than the limit"
	pauses  = "no permits are taken from a window in a pause"
)

func (p *permits) scripts() *lua.Set {
	if p.window > 0 {
		return lua.RateLimit
	}
	return lua.Semaphore
}

func (*permits) bare() bool      { return false }
func (*permits) queuesAll() bool { return true }

func (*permits) leases(m *miniredis.Miniredis, k protocol.Keys, v *view) {
	leasesInSet(m, k, v)
	scores, _ := m.SortedSet(k.Lock)
	for member, at := range scores {
		if token, taken := strings.CutPrefix(member, "@"); taken {
			v.taken = append(v.taken, taking{token: token, at: -int64(at) / 1000})
		}
	}
	_, v.limits, _ = strings.Cut(m.HGet(k.Meta, "limits"), " ")
}

func (p *permits) settings(r *rapid.T) {
	p.atOnce = rapid.IntRange(1, 6).Draw(r, "at once")
	switch rapid.SampledFrom([]string{"at once", "in a window", "both"}).Draw(r, "limits") {
	case "in a window":
		p.atOnce = 1_000_000
		p.window = rapid.IntRange(1, 6).Draw(r, "in a window")
	case "both":
		p.window = rapid.IntRange(1, 6).Draw(r, "in a window")
	}
	if p.window > 0 {
		p.per = rapid.SampledFrom([]time.Duration{
			100 * time.Millisecond, time.Second, 3 * time.Second, time.Second, ratelimit.MinWindow, ratelimit.MaxWindow,
		}).Draw(r, "per")
	}
	p.highest = p.atOnce
}

// most returns the maximum number of permits of a request.
func (p *permits) most() int {
	if p.window == 0 {
		return p.atOnce
	}
	return min(p.atOnce, p.window)
}

func (p *permits) wants(r *rapid.T, q *request) {
	q.count = 1
	if rapid.IntRange(0, 2).Draw(r, "several permits") == 0 {
		q.count = rapid.IntRange(1, p.most()).Draw(r, "permits")
	}
}

// permitLock is what a semaphore and a rate limit with leases have in common.
type permitLock interface {
	AcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error)
	TryAcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error)
	Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error)
	SetLimit(ctx context.Context, limit int) error
}

func (p *permits) open(k *lockkeeper.Keeper, ttl, lifetime time.Duration, noRenewal bool) (l permitLock) {
	var err error
	if p.window > 0 {
		l, err = ratelimit.NewConcurrent(k, name, p.window, p.per, p.atOnce, &ratelimit.ConcurrentOptions{TTL: ttl, MaxLifetime: lifetime, NoRenewal: noRenewal})
	} else {
		l, err = semaphore.New(k, name, p.atOnce, &semaphore.Options{TTL: ttl, MaxLifetime: lifetime, NoRenewal: noRenewal})
	}
	if err != nil {
		panic(err)
	}
	return l
}

func (p *permits) get(q *request) (*lockkeeper.Lease, error) {
	s := p.open(q.p.Keeper, q.ttl(), q.lifetime(), q.fixed)
	if q.adopts != nil {
		return s.Adopt(q.ctx, q.adopts.lease.Token())
	}
	if q.try {
		return s.TryAcquireN(q.ctx, q.count)
	}
	return s.AcquireN(q.ctx, q.count)
}

// held returns the number of held permits.
func (*permits) held(w *world, v *view) int {
	sum := 0
	for token := range v.leases {
		sum += w.terms(token).count
	}
	return sum
}

// inForce is the limits that are: of what is held, and of a window.
func (p *permits) inForce(v *view) (atOnce, window int) {
	var ms int
	if _, err := fmt.Sscanf(v.limits, "%d:%d:%d", &atOnce, &window, &ms); err != nil {
		return p.atOnce, p.window
	}
	return atOnce, window
}

// paused reports whether no permits may be taken by the clock.
func (p *permits) paused(v *view) bool {
	_, pause, _ := strings.Cut(v.limits, " ")
	var until, ms int64
	_, err := fmt.Sscanf(pause, "%d %d", &until, &ms)
	return err == nil && p.window > 0 && v.now/1000 < until
}

func (p *permits) together(w *world, v *view) bool { return p.held(w, v) <= p.highest }

func (*permits) before(_ *world, _ *step, y waiting, _ string, at float64, stood bool) bool {
	return !stood || y.at < at
}

// excused: a waiter for more permits than the limit in force.
func (p *permits) excused(w *world, s *step, token string) bool {
	return p.above(w.terms(token).count, s.after)
}

func (p *permits) above(count int, v *view) bool {
	atOnce, window := p.inForce(v)
	return count > atOnce || window > 0 && count > window
}

// stepped keeps account of what was taken, and compares it with the limits.
func (p *permits) stepped(w *world, s *step) {
	now, fresh := s.after.now, false
	if s.script == "release" && s.unused {
		p.taken = slices.DeleteFunc(p.taken, func(t taking) bool { return t.token == s.token })
	}
	for token := range s.after.leases {
		if _, had := s.before.leases[token]; had {
			continue
		}
		fresh = true
		p.taken = slices.DeleteFunc(p.taken, func(t taking) bool { return t.token == token })
		p.taken = append(p.taken, taking{token, now, w.terms(token).count})
	}
	if !fresh {
		return
	}
	if p.paused(s.after) {
		w.breaksLocked(pauses, "until %s", s.after.limits)
	}
	atOnce, window := p.inForce(s.after)
	if n := p.held(w, s.after); n > atOnce {
		w.breaksLocked(limits, "%d of %d", n, atOnce)
	}
	if n := p.spent(now); window > 0 && n > window {
		w.breaksLocked(windows, "%d of %d", n, window)
	}
}

// spent returns the number of permits that have not returned at a time in µs, by which the server counts as well.
func (p *permits) spent(now int64) int {
	sum := 0
	p.taken = slices.DeleteFunc(p.taken, func(t taking) bool { return t.at+p.per.Microseconds() < now })
	for _, t := range p.taken {
		sum += t.count
	}
	return sum
}

// away is how many permits have not returned as the server has it: who learns late of its grant has taken them then.
func (p *permits) away(w *world, v *view) int {
	sum := 0
	for _, t := range v.taken {
		if t.at+p.per.Milliseconds() >= v.now/1000 {
			sum += w.terms(t.token).count
		}
	}
	return sum
}

func (p *permits) owed(w *world, v *view) []string {
	y := w.firstConnected(v)
	if y == nil || p.above(w.terms(y.token).count, v) || p.paused(v) {
		return nil
	}
	count := w.terms(y.token).count
	atOnce, window := p.inForce(v)
	if p.held(w, v)+count > atOnce || window > 0 && max(p.spent(v.now), p.away(w, v))+count > window {
		return nil
	}
	return []string{y.token}
}

func (p *permits) vacant(v *view) bool { return p.window == 0 && len(v.leases) == 0 }

func (p *permits) free(v *view) bool { return p.window == 0 && len(v.leases) == 0 && len(v.queue) == 0 }

// lingers returns for how long permits stay that return by the clock: until those of a period are removed together, and for a pause.
func (p *permits) lingers() time.Duration { return p.per + min(p.per, time.Minute) + p.pause }

func (p *permits) serverDegraded(lost bool, was, now int64) {
	if lost {
		p.taken = nil
		return
	}
	p.spent(was)
	for i := range p.taken { // as long ago as before
		p.taken[i].at -= was - now
	}
}

func (p *permits) actions(w *world) map[string]func(*rapid.T) {
	switch p.per {
	case ratelimit.MinWindow:
		w.reach("at its bound: the shortest window")
	case ratelimit.MaxWindow:
		w.reach("at its bound: the longest window")
	}
	actions := map[string]func(*rapid.T){}
	if w.now(w.r, sets, 4) {
		actions["the limit changes"] = p.limitChanges(w)
	}
	if p.window > 0 && w.now(w.r, halts, 4) {
		p.pause = 2 * time.Second
		actions["the limit is paused"] = p.isPaused(w)
	}
	return actions
}

func (p *permits) limitChanges(w *world) func(*rapid.T) {
	return func(r *rapid.T) {
		by := draw(r, w.in(running), "process")
		to := rapid.IntRange(1, 8).Draw(r, "limit")
		w.mu.Lock()
		w.noteLocked("process %d sets the limit to %d", by.id, to)
		w.tally["the limit changes"]++
		p.highest = max(p.highest, to)
		w.lowered = true
		w.mu.Unlock()
		w.usesInAll(sets)
		w.actors.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = p.open(by.Keeper, 0, 0, false).SetLimit(ctx, to)
		})
	}
}

// isPaused sets a pause, or ends it.
func (p *permits) isPaused(w *world) func(*rapid.T) {
	return func(r *rapid.T) {
		by := draw(r, w.in(running), "process")
		d := rapid.SampledFrom([]time.Duration{p.pause, p.pause / 4, p.per, 0}).Draw(r, "pause")
		w.mu.Lock()
		w.noteLocked("process %d sets a pause of %v", by.id, d)
		w.tally["the limit is paused"]++
		w.mu.Unlock()
		w.usesInAll(halts)
		w.actors.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			l := p.open(by.Keeper, 0, 0, false).(*ratelimit.ConcurrentLimiter)
			if d == 0 {
				_ = l.Resume(ctx)
			} else {
				_ = l.Pause(ctx, min(d, p.pause))
			}
		})
	}
}
