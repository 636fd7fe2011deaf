package proptest

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/ahead"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"pgregory.net/rapid"
)

// The promises about a rate limit, also if processes take permits ahead; see ratelimit.Options.Ahead.
const (
	// No window, wherever it begins, has more grants than the limit, whatever happens to processes, messages and the server, but for
	// permits that the server has lost with its data, or that have returned early because its clock was set forward. A permit of a block
	// is granted when the caller is told so, any other when the server grants it.
	blocksWindow = "no window has more grants than the limit"
	// Nothing is granted in a pause, but for a twentieth of the window by another process than that which has called Pause.
	blocksPause = "nothing is granted in a pause"
	// Without faults, callers who want more get nearly all of the limit, and are refused inside only shortly after an answer of the server;
	// with faults, each process is served when those have ended.
	blocksProgress = "what is free is granted"
)

// blocksWorld is a world whose processes use one rate limit, and what they were granted.
type blocksWorld struct {
	*world
	keys      protocol.Keys
	limit     int
	window    time.Duration
	faultless bool
	blocks    bool // the processes take permits ahead
	wants     bool // callers want more than the limit
	limiters  []*ratelimit.Limiter

	// Guarded by world.mu.
	takenAt map[uint64]time.Time
	grants  []permitGrant // of the last window, and a little more
	total   int
	asked   time.Time // when the server last ran a script
	since   time.Time // when the server last forgot what was taken
	paused  [2]time.Time
	pauses  *process // that has called Pause
	limits  []limitSince
	late    bool // an earlier copy of a change of the limit may arrive after a later one
}

type permitGrant struct {
	at time.Time
	n  int
}

// limitSince is a limit that is in force from a moment on.
type limitSince struct {
	at    time.Time
	limit int
}

// decided is what the hooks say of a call.
type decided struct{ inside bool }

type decidedKey struct{}

// pace returns the window, or what callers go by if nobody waits for its end.
func (w *blocksWorld) pace() time.Duration { return min(w.window, 3*time.Second) }

// stepped notes when the server grants permits.
func (w *blocksWorld) stepped(script) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = time.Now()
	members, _ := w.server.mini.SortedSet(w.keys.Lock)
	for member, score := range members {
		token, taken := strings.CutPrefix(member, "@")
		if !taken {
			continue
		}
		fence := uint64(-score)
		if f, is := members["#"+token]; is {
			fence = uint64(f)
		}
		if _, known := w.takenAt[fence]; !known {
			w.takenAt[fence] = time.Now()
		}
	}
}

// spent returns how many permits the server has granted in the last window, and whether others wait for some.
func (w *blocksWorld) spent() (n int, others bool) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	members, _ := w.server.mini.SortedSet(w.keys.Lock)
	now := w.server.nowLocked().UnixMicro() // as the script counts: in whole µs, with both ends of the window
	for member, score := range members {
		if t, is := protocol.ParseToken(strings.TrimPrefix(member, "@")); is && member[0] == '@' && now+int64(score) <= w.window.Microseconds() {
			n += int(t.Number)
		}
	}
	return n, w.server.mini.Exists(w.keys.Queue)
}

// granted notes a grant of n permits to a caller of a process, with that fence, and checks the window that ends with it.
func (w *blocksWorld) granted(p *process, fence uint64, n int, inside bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	at, known := w.takenAt[fence]
	if !known || !at.After(w.since) && !w.since.IsZero() {
		w.tally["a grant that the server has forgotten"]++
		return
	}
	if inside {
		at = now
		w.tally["granted inside"]++
	} else {
		w.tally["granted by the server"]++
	}
	w.total += n
	w.grants = append(w.grants, permitGrant{at, n})
	for i := range w.grants { // those that were granted earlier may have been told later
		if end := w.grants[i].at; !end.Before(at) && end.Sub(at) <= w.window {
			w.checkWindow(end)
		}
	}
	begun := w.paused[0]
	if p != w.pauses {
		begun = begun.Add(ahead.Length(w.window))
	}
	if at.After(begun) && at.Before(w.paused[1]) {
		w.breaksLocked(blocksPause, "%v after it began, fence %d", at.Sub(w.paused[0]), fence)
	}
}

// checkWindow checks the window that ends at that time.
func (w *blocksWorld) checkWindow(end time.Time) {
	begin, n := end.Add(-w.window), 0
	kept := w.grants[:0:0]
	for _, g := range w.grants {
		if !g.at.Before(begin) && !g.at.After(end) {
			n += g.n
		}
		if g.at.After(time.Now().Add(-2*w.window - 30*time.Second)) {
			kept = append(kept, g)
		}
	}
	most := 0
	if w.late {
		most = w.limit
	}
	for i, l := range w.limits {
		if i+1 == len(w.limits) || w.limits[i+1].at.After(begin.Add(-ahead.Length(w.window))) {
			most = max(most, l.limit)
		}
	}
	if n > most {
		w.breaksLocked(blocksWindow, "%d in the %v before %s, the limit is %d", n, w.window, end.Format("05.000000"), most)
	}
	if len(w.grants) > 500 {
		w.grants = kept
	}
}

// The ways to ask for permits. Each finds faults that the others do not.
const (
	steadily = "steadily"             // bursts, of a few permits at times, about as often as was drawn
	atEdge   = "at the window's edge" // one permit at a time, when the next one is to return, and shortly before
	silently = "after a silence"      // one permit at a time, and then nothing for a while; then all permits of a window at once, one by one
)

// calls asks for permits until the end of the schedule.
func (w *blocksWorld) calls(p *process, random *rand.Rand, way string, pause time.Duration, burst int) {
	for !w.isClosing() {
		switch way {
		case steadily:
			for i := 1 + random.Intn(burst); i > 0 && !w.isClosing(); i-- {
				n := 1
				if random.Intn(8) == 0 {
					n = 1 + random.Intn(min(w.limit, 4))
				}
				w.call(p, random, n)
			}
			time.Sleep(pause/2 + time.Duration(random.Int63n(int64(pause))))
		case atEdge:
			returns := w.call(p, random, 1)
			time.Sleep(max(min(returns, w.pace())-time.Duration(random.Intn(3))*time.Millisecond, time.Millisecond))
		case silently:
			for range random.Intn(3) {
				w.call(p, random, 1)
			}
			time.Sleep(time.Duration(random.Int63n(int64(w.pace()) * 3 / 2)))
			for i := w.limit + 1; i > 0 && !w.isClosing(); i-- {
				w.call(p, random, 1)
			}
		}
	}
}

// call asks for n permits, and returns after how long to ask again if they are refused.
func (w *blocksWorld) call(p *process, random *rand.Rand, n int) (retryAfter time.Duration) {
	l := w.limiters[p.id]
	var d decided
	ctx := context.WithValue(context.Background(), decidedKey{}, &d)
	timeout := time.Duration(1+random.Intn(100)) * 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if random.Intn(20) == 0 {
		_ = l.DoN(ctx, n, func(_ context.Context, fence uint64) error {
			w.granted(p, fence, n, d.inside)
			return nil
		})
		return 0
	}
	r, err := l.AllowN(ctx, n)
	switch {
	case err != nil:
	case r.Allowed:
		w.granted(p, r.Fence, n, d.inside)
	default:
		spent, others := w.spent()
		w.mu.Lock()
		if w.tally["refused"]++; d.inside {
			w.tally["refused inside"]++
		}
		if w.faultless && !w.blocks && w.lag == 0 && len(w.limits) == 1 && w.paused[1].IsZero() && !others {
			w.tally["refused by a full window"]++
			if spent+n <= w.limit {
				w.breaksLocked(blocksProgress, "%d refused, though only %d of %d are taken", n, spent, w.limit)
			}
		}
		if r.RetryAfter < 0 || r.Remaining < 0 {
			w.breaksLocked(blocksProgress, "refused with %+v", r)
		}
		if unasked := time.Since(w.asked); d.inside && w.faultless && unasked > w.lag+ahead.Length(w.window) {
			w.breaksLocked(blocksProgress, "refused inside with %+v, though the server was not asked for %v", r, unasked)
		}
		w.mu.Unlock()
	}
	return r.RetryAfter
}

// joins starts a process with a limiter.
func (w *blocksWorld) joins() {
	p := w.startProcess(func(*process) lockkeeper.Hooks {
		return lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
			if d, is := e.Context.Value(decidedKey{}).(*decided); is {
				d.inside = e.Local
			}
		}}
	})
	l, err := ratelimit.New(p.Keeper, name, w.limit, w.window, &ratelimit.Options{Ahead: w.blocks})
	if err != nil {
		panic(err)
	}
	w.limiters = append(w.limiters, l)
}

// forgotten notes that the server has forgotten what was taken until now.
func (w *blocksWorld) forgotten() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.grants, w.paused = time.Now(), nil, [2]time.Time{}
}

// disturb injects a fault, or changes the limit, or pauses.
func (w *blocksWorld) disturb(r *rapid.T) {
	if w.faultless && w.wants {
		return
	}
	all := []string{"the limit changes", "a pause"}
	if !w.faultless {
		all = append(append(all, "server restarts empty", "clock forward"), faults...)
	}
	what, p, d := w.disturbance(r, 4*time.Second, all)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	switch what {
	case "the limit changes":
		limit := rapid.IntRange(1, w.limit).Draw(r, "limit")
		w.mu.Lock()
		if limit > w.limits[len(w.limits)-1].limit { // it may be in force before the call returns
			w.limits = append(w.limits, limitSince{time.Now(), limit})
		}
		w.mu.Unlock()
		began := time.Now()
		err := w.limiters[p.id].SetLimit(ctx, limit)
		w.mu.Lock()
		w.late = w.late || err != nil || time.Since(began) > 4*w.lag // it was sent again, or may not have been changed
		w.limits = append(w.limits, limitSince{time.Now(), limit})
		w.mu.Unlock()
	case "a pause":
		called := time.Now()
		if err := w.limiters[p.id].Pause(ctx, d); err == nil && w.faultless {
			w.mu.Lock()
			w.paused, w.pauses = [2]time.Time{time.Now(), called.Add(d)}, p
			w.mu.Unlock()
		}
	case "server restarts empty":
		w.server.thaw()
		w.stopServer()
		w.forgotten()
		w.mu.Lock()
		w.limits = append(w.limits, limitSince{time.Now(), w.limit}) // that of the processes
		w.mu.Unlock()
		w.server.start(nil)
	case "clock forward":
		w.server.jump(d * 10)
		w.forgotten()
	default:
		w.inject(r, what, p, d)
	}
}

// pass lets time pass.
func (w *blocksWorld) pass(d time.Duration) {
	time.Sleep(d)
	w.fail()
}

func (w *blocksWorld) schedules(r *rapid.T) {
	w.faultless = rapid.IntRange(0, 3).Draw(r, "without faults") == 0
	limits := []int{1, 2, 5, 20, 60}
	if w.faultless { // mostly one that is large enough to check how much of it is granted
		limits = []int{1, 5, 60, 60, 60}
	}
	w.blocks = rapid.IntRange(0, 2).Draw(r, "ahead") > 0
	w.limit = rapid.SampledFrom(limits).Draw(r, "limit")
	windows := []time.Duration{ratelimit.MinAheadWindow, time.Second, 3 * time.Second, ratelimit.MaxWindow}
	if !w.blocks && w.limit < 5 { // else it takes long
		windows[0] = ratelimit.MinWindow
	}
	w.window = rapid.SampledFrom(windows).Draw(r, "window")
	w.reach(fmt.Sprintf("a window of %v", w.window))
	w.limits = []limitSince{{time.Now(), w.limit}}
	w.lag = rapid.SampledFrom([]time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}).Draw(r, "lag")
	processes := rapid.IntRange(1, 4).Draw(r, "processes")
	for range processes {
		w.joins()
	}
	rate := rapid.SampledFrom([]float64{0.3, 1, 4}).Draw(r, "demand")
	w.wants = rate > 1
	burst := rapid.SampledFrom([]int{1, 4}).Draw(r, "burst")
	for _, p := range w.processes {
		callers := rapid.IntRange(1, 3).Draw(r, "callers")
		each := float64(w.pace()) / (float64(w.limit) * rate) * float64(processes*callers*(burst+1)/2)
		for range callers {
			random := rand.New(rand.NewSource(rapid.Int64().Draw(r, "seed")))
			ways := []string{steadily, steadily, atEdge, silently}
			if w.faultless && w.wants { // what is granted of the limit is checked
				ways = ways[:1]
			}
			way := rapid.SampledFrom(ways).Draw(r, "asks")
			w.reach(way)
			w.actors.Go(func() { w.calls(p, random, way, max(time.Duration(each), 100*time.Microsecond), burst) })
		}
	}
	w.pass(2 * w.pace()) // until demand is known
	began, total := time.Now(), w.granted0()
	for range rapid.IntRange(2, 6).Draw(r, "events") {
		w.pass(duration(r, 3*time.Second))
		w.disturb(r)
	}
	if w.faultless && w.wants && w.limit >= 60 && w.window >= time.Second && w.window == w.pace() {
		w.pass(3 * w.window)
		took := time.Since(began)
		got := float64(w.granted0()-total) / (float64(w.limit) * took.Seconds() / w.window.Seconds())
		w.reach("the limit is wanted all the time")
		if got < 0.8 {
			w.breaks(blocksProgress, "%.2f of the limit were granted to callers who wanted more", got)
		}
	}
	w.conclude(time.Minute, w.window, w.pass, blocksProgress, func(ctx context.Context, p *process) error {
		if w.window > w.pace() {
			return nil // what was taken does not return
		}
		return w.limiters[p.id].Wait(ctx)
	})
}

func (w *blocksWorld) granted0() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// TestBlocksSimulation runs processes that use one rate limit, most of which take permits ahead, with faults.
func TestBlocksSimulation(t *testing.T) {
	simulatePrograms(t, 1, few, func(w *world) {
		b := &blocksWorld{world: w, takenAt: map[uint64]time.Time{}}
		var err error
		if b.keys, err = protocol.KeysOf("lock:", name, lua.RateLimit.KeyKind, false); err != nil {
			panic(err)
		}
		w.server.step = b.stepped
		b.schedules(w.r)
	}, "granted inside", "granted by the server", "refused inside", "refused by a full window", "the limit changes", "a pause", "crash",
		"the limit is wanted all the time", "clock back", "server restarts empty", steadily, atEdge, silently,
		"a window of 10ms", "a window of 200ms", "a window of 8760h0m0s")
}
