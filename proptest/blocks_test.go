package proptest

import (
	"context"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"pgregory.net/rapid"
)

// The promises about a rate limit of which processes take permits ahead; see ratelimit.Options.Retain.
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
	// After all processes are closed nothing remains but metadata.
	blocksNothing = "nothing remains"
)

// blocksWorld is a server, the processes that use one rate limit on it, and what they were granted.
type blocksWorld struct {
	r         *rapid.T
	server    *redisServer
	keys      protocol.Keys
	limit     int
	window    time.Duration
	faultless bool
	stop      chan struct{}
	actors    sync.WaitGroup
	processes []*blocksProcess
	setBack   time.Duration

	mu      sync.Mutex // guards the fields below
	takenAt map[uint64]time.Time
	grants  []permitGrant // of the last window, and a little more
	total   int
	asked   time.Time // when the server last ran a script
	since   time.Time // when the server last forgot what was taken
	paused  [2]time.Time
	pauses  *blocksProcess // that has called Pause
	wants   bool           // callers want more than the limit
	limits  []limitSince
	tally   map[string]int
	log     []string
	broken  string
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

type blocksProcess struct {
	*lockkeeper.Keeper
	*ratelimit.Limiter
	link    *link
	rdb     *redis.Client
	crashed bool
}

// decided is what the hooks say of a call.
type decided struct{ inside bool }

type decidedKey struct{}

func (w *blocksWorld) breaks(promise, format string, args ...any) {
	if w.broken == "" {
		w.broken = promise + ": " + fmt.Sprintf(format, args...)
		w.log = append(w.log, fmt.Sprintf("%v BROKEN %s", time.Now().Format("05.000000"), w.broken))
	}
}

func (w *blocksWorld) note(format string, args ...any) {
	w.log = append(w.log, time.Now().Format("05.000000")+" "+fmt.Sprintf(format, args...))
}

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

// granted notes a grant of n permits to a caller of a process, with that fence, and checks the window that ends with it.
func (w *blocksWorld) granted(p *blocksProcess, fence uint64, n int, inside bool) {
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
		begun = begun.Add(retain.Ahead(w.window))
	}
	if at.After(begun) && at.Before(w.paused[1]) {
		w.breaks(blocksPause, "%v after it began, fence %d", at.Sub(w.paused[0]), fence)
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
	for i, l := range w.limits {
		if i+1 == len(w.limits) || w.limits[i+1].at.After(begin.Add(-retain.Ahead(w.window))) {
			most = max(most, l.limit)
		}
	}
	if n > most {
		w.breaks(blocksWindow, "%d in the %v before %s, the limit is %d", n, w.window, end.Format("05.000000"), most)
	}
	if len(w.grants) > 500 {
		w.grants = kept
	}
}

// calls asks for permits until the end of the schedule.
func (w *blocksWorld) calls(p *blocksProcess, random *rand.Rand, pause time.Duration, burst int) {
	for {
		for range 1 + random.Intn(burst) {
			select {
			case <-w.stop:
				return
			default:
			}
			w.call(p, random)
		}
		select {
		case <-w.stop:
			return
		case <-time.After(pause/2 + time.Duration(random.Int63n(int64(pause)))):
		}
	}
}

func (w *blocksWorld) call(p *blocksProcess, random *rand.Rand) {
	var d decided
	ctx := context.WithValue(context.Background(), decidedKey{}, &d)
	n := 1
	if random.Intn(8) == 0 {
		n = 1 + random.Intn(min(w.limit, 4))
	}
	timeout := time.Duration(1+random.Intn(100)) * 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if random.Intn(20) == 0 {
		_ = p.DoN(ctx, n, func(_ context.Context, fence uint64) error {
			w.granted(p, fence, n, d.inside)
			return nil
		})
		return
	}
	r, err := p.AllowN(ctx, n)
	switch {
	case err != nil:
	case r.Allowed:
		w.granted(p, r.Fence, n, d.inside)
	default:
		w.mu.Lock()
		if w.tally["refused"]++; d.inside {
			w.tally["refused inside"]++
		}
		if r.RetryAfter < 0 || r.Remaining < 0 {
			w.breaks(blocksProgress, "refused with %+v", r)
		}
		if unasked := time.Since(w.asked); d.inside && w.faultless && unasked > p.link.lag+retain.Ahead(w.window) {
			w.breaks(blocksProgress, "refused inside with %+v, though the server was not asked for %v", r, unasked)
		}
		w.mu.Unlock()
	}
}

func (w *blocksWorld) join(lag time.Duration) {
	p := &blocksProcess{link: newLink(faultnet.Buffer(w.server.dial), lag, int64(len(w.processes)))}
	p.rdb = redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Dialer: p.link.Dial, DialerRetries: 1, ReadTimeout: usual.timeout, PoolSize: 100,
		MaxRetries: -1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, DisableIdentity: true,
	})
	var err error
	p.Keeper, err = lockkeeper.New(p.rdb, &lockkeeper.Options{
		NoOwner: true, MetadataTTL: idle, Retry: lockkeeper.RetryPolicy{MaxElapsed: -1}, Logger: silent,
		Hooks: lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
			if d, is := e.Context.Value(decidedKey{}).(*decided); is {
				d.inside = e.Local
			}
		}},
	})
	if err == nil {
		p.Limiter, err = ratelimit.New(p.Keeper, name, w.limit, w.window, &ratelimit.Options{Retain: true})
	}
	if err != nil {
		panic(err)
	}
	w.processes = append(w.processes, p)
}

// forgotten notes that the server has forgotten what was taken until now.
func (w *blocksWorld) forgotten() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.grants, w.paused = time.Now(), nil, [2]time.Time{}
}

// disturb injects a fault, or changes the limit, or pauses.
func (w *blocksWorld) disturb(r *rapid.T) {
	p := w.processes[rapid.IntRange(0, len(w.processes)-1).Draw(r, "process")]
	d := duration(r, 4*time.Second)
	all := []string{"the limit changes", "a pause"}
	if !w.faultless {
		all = append(all, "replies lost", "duplicates", "cut off", "frozen", "slow", "disconnected", "crash",
			"server frozen", "server restarts empty", "clock forward", "clock back")
	} else if w.wants {
		return
	}
	what := rapid.SampledFrom(all).Draw(r, "fault")
	w.mu.Lock()
	w.note("%s, %v", what, d)
	w.tally[what]++
	w.mu.Unlock()
	after := func(f func()) { time.AfterFunc(d, f) }
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
		err := p.SetLimit(ctx, limit)
		w.mu.Lock()
		if w.limits = append(w.limits, limitSince{time.Now(), limit}); err != nil {
			w.limits = append(w.limits, limitSince{time.Now(), w.limit}) // it may have been changed or not
		}
		w.mu.Unlock()
	case "a pause":
		called := time.Now()
		if err := p.Pause(ctx, d); err == nil && w.faultless {
			w.mu.Lock()
			w.paused, w.pauses = [2]time.Time{time.Now(), called.Add(d)}, p
			w.mu.Unlock()
		}
	case "crash":
		if p != w.processes[0] {
			p.crashed = true
			p.link.Kill()
		}
	case "server frozen":
		synctest.Wait()
		w.server.freeze()
		after(w.server.thaw)
	case "server restarts empty":
		w.server.thaw()
		w.server.stop()
		for _, p := range w.processes {
			p.link.Cut()
		}
		synctest.Wait()
		w.forgotten()
		w.mu.Lock()
		w.limits = append(w.limits, limitSince{time.Now(), w.limit}) // that of the processes
		w.mu.Unlock()
		w.server.start(nil)
	case "clock forward":
		w.server.jump(d * 10)
		w.forgotten()
	case "clock back":
		w.server.jump(-d * 10)
		w.setBack += d * 10
	default:
		p.link.fault(r, what, d)
	}
}

// advance lets time pass.
func (w *blocksWorld) advance(d time.Duration) {
	time.Sleep(d)
	w.fail()
}

func (w *blocksWorld) run(r *rapid.T) {
	w.faultless = rapid.IntRange(0, 3).Draw(r, "without faults") == 0
	limits := []int{1, 2, 5, 20, 60}
	if w.faultless { // mostly one that is large enough to check how much of it is granted
		limits = []int{1, 5, 60, 60, 60}
	}
	w.limit = rapid.SampledFrom(limits).Draw(r, "limit")
	w.window = rapid.SampledFrom([]time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second}).Draw(r, "window")
	w.limits = []limitSince{{time.Now(), w.limit}}
	lag := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}).Draw(r, "lag")
	processes := rapid.IntRange(1, 4).Draw(r, "processes")
	for range processes {
		w.join(lag)
	}
	rate := rapid.SampledFrom([]float64{0.3, 1, 4}).Draw(r, "demand")
	w.wants = rate > 1
	burst := rapid.SampledFrom([]int{1, 4}).Draw(r, "burst")
	for _, p := range w.processes {
		callers := rapid.IntRange(1, 3).Draw(r, "callers")
		each := float64(w.window) / (float64(w.limit) * rate) * float64(processes*callers*(burst+1)/2)
		for range callers {
			random := rand.New(rand.NewSource(rapid.Int64().Draw(r, "seed")))
			w.actors.Go(func() { w.calls(p, random, max(time.Duration(each), 100*time.Microsecond), burst) })
		}
	}
	w.advance(2 * w.window) // until demand is known
	began, total := time.Now(), w.granted0()
	for range rapid.IntRange(2, 6).Draw(r, "events") {
		w.advance(duration(r, 3*time.Second))
		w.disturb(r)
	}
	if w.faultless && w.wants && w.limit >= 60 && w.window >= time.Second {
		w.advance(3 * w.window)
		took := time.Since(began)
		got := float64(w.granted0()-total) / (float64(w.limit) * took.Seconds() / w.window.Seconds())
		w.tally["the limit is wanted all the time"]++
		if w.mu.Lock(); got < 0.8 {
			w.breaks(blocksProgress, "%.2f of the limit were granted to callers who wanted more", got)
		}
		w.mu.Unlock()
	}
	w.recover()
}

func (w *blocksWorld) granted0() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// recover ends all faults, and checks that everybody is served then, and that nothing is left.
func (w *blocksWorld) recover() {
	w.server.thaw()
	for _, p := range w.processes {
		if !p.crashed {
			p.link.Thaw()
			p.link.Refuse(false)
			p.link.Slow(0, 0)
			p.link.Restore()
		}
	}
	w.advance(4*time.Second + usual.settling())
	for i, p := range w.processes {
		if p.crashed {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := p.Wait(ctx); err != nil {
			w.mu.Lock()
			w.breaks(blocksProgress, "process %d at the end: %v", i, err)
			w.mu.Unlock()
		}
		cancel()
	}
	w.halt()
	time.Sleep(2*time.Minute + w.setBack)
	if keys := w.server.keys(); len(keys) > 0 {
		w.mu.Lock()
		w.breaks(blocksNothing, "%v", keys)
		w.mu.Unlock()
	}
	w.fail()
}

func (w *blocksWorld) halt() {
	w.server.thaw()
	select {
	case <-w.stop:
		return
	default:
	}
	close(w.stop)
	var all sync.WaitGroup
	for _, p := range w.processes {
		all.Go(func() { _ = p.Keeper.Close() })
	}
	all.Wait()
	w.actors.Wait()
}

func (w *blocksWorld) fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == "" {
		return
	}
	for _, line := range w.log {
		w.r.Log(line)
	}
	panic(broken(w.broken))
}

// TestBlocksSimulation runs processes that take permits of a rate limit ahead, with faults.
func TestBlocksSimulation(t *testing.T) {
	tally := map[string]int{}
	if !checksSet {
		defer setFlag("rapid.checks", setFlag("rapid.checks", strconv.Itoa(few)))
		defer setFlag("rapid.seed", setFlag("rapid.seed", "1"))
	}
	inBubbles(t, tally, func(r *rapid.T) bubbled {
		w := &blocksWorld{r: r, stop: make(chan struct{}), takenAt: map[uint64]time.Time{}, tally: tally}
		var err error
		if w.keys, err = protocol.KeysOf("lock:", name, lua.RateLimit.KeyKind, false); err != nil {
			panic(err)
		}
		w.server = newServer(w.stepped)
		return w
	}, "granted inside", "granted by the server", "refused inside", "the limit changes", "a pause", "crash",
		"the limit is wanted all the time", "clock back", "server restarts empty")
}

// end closes what the schedule has opened.
func (w *blocksWorld) end() {
	w.halt()
	for _, p := range w.processes {
		_ = p.rdb.Close()
	}
	w.server.mini.Close()
}
