//go:debug randseednop=0
package proptest

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"pgregory.net/rapid"
)

// Options of keepers. Others are drawn for each world.
const (
	idle             = time.Hour       // MetadataTTL
	heartbeatTimeout = 6 * time.Second // HeartbeatTimeout, unless leases are short
	tombstoneTTL     = time.Minute     // see TombstoneTTL in internal/server
	closing          = 3 * time.Second // how long Close retries releases: see CloseTimeout in internal/server
)

// usual are the times of most worlds. Worlds with shorter leases scale them.
var usual = times{
	ttl: 3 * time.Second, period: heartbeatTimeout / 3, timeout: 470 * time.Millisecond, periods: 3, idle: idle, acknowledged: 5 * time.Millisecond,
	retry: lockkeeper.RetryPolicy{MinBackoff: 10 * time.Millisecond, MaxBackoff: time.Second, MaxElapsed: -1},
}

const (
	slack = 250 * time.Millisecond // the margin of a lease of ten seconds, and whole milliseconds
	grace = 50 * time.Millisecond  // in which a call returns after its context has ended
)

// times are the durations of a world. No two of them end a read and a heartbeat at the same instant.
type times struct {
	ttl     time.Duration // requests have this ttl plus their number in ms, so that a token identifies its request
	period  time.Duration // HeartbeatInterval
	timeout time.Duration // of a command
	bound   string        // the name of one of bounds, if it is set
	periods int           // HeartbeatTimeout, in periods
	idle    time.Duration // MetadataTTL
	// ReplicaAck.Timeout
	acknowledged time.Duration
	retry        lockkeeper.RetryPolicy
}

// heartbeatTimeout returns the HeartbeatTimeout.
func (t times) heartbeatTimeout() time.Duration { return time.Duration(t.periods) * t.period }

// pause returns the maximum backoff: Retry.MaxBackoff plus half of it as jitter.
func (t times) pause() time.Duration { return t.retry.MaxBackoff * 3 / 2 }

// settling returns how long a process takes at most, after its network has recovered, until it is connected and has
// sent a heartbeat: the maximum backoff, a timeout, and a heartbeat interval. Once as many dials have failed as the client has connections,
// it dials once a second.
func (t times) settling() time.Duration { return max(t.pause(), time.Second) + t.timeout + t.period }

// quick reports whether leases are so short that a brief fault can cost a process its lease.
func (t times) quick() bool { return t.ttl < usual.ttl }

// scaled scales a duration that fits usual leases to the leases of this world.
func (t times) scaled(d time.Duration) time.Duration {
	if !t.quick() {
		return d
	}
	return d * (t.ttl / time.Millisecond) / (usual.ttl / time.Millisecond)
}

// choose draws the times. With short leases, heartbeats are as short or as usual. A reply can take longer than
// leases last.
func (t *times) choose(r *rapid.T) {
	*t = usual
	t.ttl = rapid.SampledFrom([]time.Duration{
		3 * time.Second, 10 * time.Second, 3 * time.Second, 500 * time.Millisecond, 100 * time.Millisecond, 10 * time.Millisecond,
	}).Draw(r, "ttl")
	if t.quick() && rapid.Bool().Draw(r, "quick heartbeats") {
		t.period = max(t.scaled(t.period), 20*time.Millisecond)
	}
	if rapid.Bool().Draw(r, "patient client") {
		t.timeout = 3*t.ttl + 170*time.Millisecond
	}
	if rapid.IntRange(0, 3).Draw(r, "at a bound") == 0 {
		b := rapid.SampledFrom(bounds).Draw(r, "bound")
		b.set(t)
		t.bound = b.name
	}
}

// bounds are the least and the greatest durations that the options allow, each in worlds of its own.
var bounds = []bound{
	{"the shortest pauses", func(t *times) { t.retry.MinBackoff, t.retry.MaxBackoff = time.Millisecond, time.Millisecond }},
	{"the longest pauses", func(t *times) { t.retry.MinBackoff, t.retry.MaxBackoff = time.Hour, time.Hour }},
	{"the shortest heartbeats", func(t *times) { t.ttl, t.period, t.periods = 10*time.Millisecond, 10*time.Millisecond, 2 }},
	{"the longest heartbeats", func(t *times) { t.period, t.periods = time.Hour, 24 }},
	{"the longest ttl", func(t *times) { *t = usual; t.ttl = 365*24*time.Hour - time.Second }},
	{"the shortest memory", func(t *times) { t.idle = time.Minute }},
	{"the longest memory", func(t *times) { t.idle = 365 * 24 * time.Hour }},
	{"the shortest wait for replicas", func(t *times) { t.acknowledged = time.Millisecond }},
	{"the longest wait for replicas", func(t *times) { t.acknowledged = t.ttl - time.Millisecond }},
}

type bound struct {
	name string
	set  func(*times)
}

// brief returns the ttl, but what faults may last for if that is very long.
func (t times) brief() time.Duration { return min(t.ttl, 10*time.Second) }

// ages reports whether something lasts for so long that nobody waits for its end.
func (w *world) ages() bool { return max(w.ttl, w.kind.lingers()) > 30*24*time.Hour }

// most returns the maximum number of requests in a world, so that their numbers, which are added to the ttl, hardly
// change it.
func (t times) most() int { return int(min(900, 4*t.ttl/time.Millisecond)) }

// late draws an excessive delay: from nothing to several ttls.
func (w *world) late(r *rapid.T) time.Duration {
	return duration(r, 4*w.brief()+time.Duration(len(w.requests))*time.Millisecond)
}

// world is a server, the processes that use one lock on it, and the faults. One goroutine, which draws from rapid,
// starts everything; the goroutines of processes report to it.
type world struct {
	run    *run
	r      *rapid.T
	kind   primitive
	server *redisServer
	start  time.Time
	due    []event // what the driver will do
	actors sync.WaitGroup
	times
	focus    []string      // features that are used often
	longest  time.Duration // the longest lease requested, without those ms; guarded by mu
	lag      time.Duration // the maximum one-way latency
	noFaults bool          // no faults are injected
	replicas bool          // grants wait for a replica to acknowledge them
	elapsed  time.Duration // until all processes were closed

	mu          sync.Mutex // guards the fields below, and those of processes and requests that say so
	processes   []*process
	requests    []*request
	tally       map[string]int // how often each event was reached
	closing     bool           // processes are being closed
	degradedAt  time.Time      // when the server was last degraded; zero: never
	healthyFrom time.Time      // from when on the server is healthy and all processes have noticed
	setBack     time.Duration  // by how much its clock was set back in total
	ahead       time.Time      // when its clock was last set forward
	used        []string       // features that were used for all
	lowered     bool           // the limit was changed, perhaps below what a request asks for
	saved       [][]record     // snapshots of its data, which a failover restores
	history     history
	firstBroken string // the first broken promise
	log         []string
	logged      int // number of lines already shown
}

type event struct {
	at time.Time
	do func()
}

// run is all schedules of a test.
type run struct {
	t     *testing.T
	tally map[string]int
	// features are those that the schedules of a primitive draw from.
	features []string
	took     time.Duration // in virtual time, without waiting for keys to expire after the end
	first    []string      // the log of the first failed schedule
}

// newRun begins a run. Events of one instant are not always in the same order, so a failed schedule may not fail
// again. Therefore the first failure is always shown.
func newRun(t *testing.T) *run {
	u := &run{t: t, tally: map[string]int{}}
	t.Cleanup(func() {
		if u.first != nil {
			t.Logf("the first schedule that failed:\n%s", strings.Join(u.first, "\n"))
		}
	})
	return u
}

// broken is the panic value of a schedule that broke a promise.
type broken string

func (u *run) keep(log []string) {
	if u.first == nil {
		u.first = slices.Clone(log)
	}
}

// simulate runs a schedule in a bubble of its own. A panic must not end the bubble but the iteration. Rapid
// distinguishes failures by where they come from, so a broken promise must not come from the same line as rapid's
// own message that a shortened schedule is too short.
func (u *run) simulate(r *rapid.T, kind primitive, schedule func(*world)) {
	var out any
	var took time.Duration
	mine := map[string]int{}
	// Backoff jitter and the names of keepers are random; this makes them part of the schedule.
	//lint:ignore SA1019 there is no other way to seed what the libraries use
	rand.Seed(1)
	cryptotest.SetGlobalRandom(u.t, 1)
	synctest.Test(u.t, func(*testing.T) {
		w := &world{run: u, r: r, kind: kind, start: time.Now(), tally: mine}
		w.server = newServer(w.stepped)
		defer w.end()
		defer func() { took, out = w.elapsed, recover() }()
		schedule(w)
	})
	if promise, is := out.(broken); is {
		r.Fatal(promise)
	}
	if out != nil {
		panic(out)
	}
	u.took += took
	for what, n := range mine {
		u.tally[what] += n
	}
}

// tail returns for how long data that was sent until now is under way.
func (w *world) tail() (longest time.Duration) {
	for _, p := range w.processes {
		longest = max(longest, p.link.tail())
	}
	return longest
}

// closeProcesses closes all processes. Crashed ones stay disconnected.
func (w *world) closeProcesses() {
	var wg sync.WaitGroup
	for _, p := range w.processes {
		if p.state != running && p.state != crashed {
			p.recover(p.state)
		}
		wg.Go(func() {
			began := time.Now()
			_ = p.Close()
			if took := time.Since(began); p.state != crashed && took > closing+w.pause()+w.timeout {
				w.breaks(live, "closing process %d took %v", p.id, took)
			}
		})
	}
	wg.Wait()
}

// stop ends all programs.
func (w *world) stop() {
	w.server.thaw()
	w.mu.Lock()
	again := w.closing
	w.closing = true
	w.mu.Unlock()
	if !again {
		w.usesInAll(closes)
		w.closeProcesses()
		w.actors.Wait()
		for _, p := range w.processes {
			if why := p.told.problem(); why != "" && p.state != crashed {
				w.breaks(hooksTell, "process %d: %s", p.id, why)
			}
		}
	}
}

// isClosing reports whether the schedule ends, and with it all programs.
func (w *world) isClosing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closing
}

// end tears the world down. Synctest fails the test if a goroutine is left.
func (w *world) end() {
	for _, p := range w.processes {
		_ = p.rdb.Close()
	}
	w.server.mini.Close()
	time.Sleep(time.Minute) // go-redis ends its goroutines by the clock
}

// note logs an event, to be shown if the schedule fails.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(format, args...)
}

func (w *world) noteLocked(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%12v  ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

// breaksLocked records a broken promise. The name of the promise is constant, because rapid compares it when it
// shortens a schedule; the rest is logged.
func (w *world) breaksLocked(promise, format string, args ...any) {
	w.noteLocked("BROKEN: "+promise+": "+format, args...)
	if w.firstBroken == "" {
		w.firstBroken = promise
	}
}

func (w *world) breaks(promise, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.breaksLocked(promise, format, args...)
}

// reach counts an event that should happen now and then.
func (w *world) reach(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally[what]++
}

// fail ends the iteration if a promise was broken.
func (w *world) fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.log[w.logged:] {
		w.r.Log(line)
	}
	w.logged = len(w.log)
	if w.firstBroken != "" {
		w.run.keep(w.log)
		panic(broken(w.firstBroken))
	}
}

// after schedules a function of the driver.
func (w *world) after(d time.Duration, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = append(w.due, event{time.Now().Add(d), do})
}

// advance advances the time and runs what is due. It checks the state whenever something may have changed.
func (w *world) advance(d time.Duration) {
	slice := max(min(500*time.Millisecond, max(w.period/4, 20*time.Millisecond)), (w.pause()+w.period)/50)
	for end := time.Now().Add(d); ; {
		next := end
		var do func()
		i := -1
		w.mu.Lock()
		for k, e := range w.due {
			if !e.at.After(next) {
				next, do, i = e.at, e.do, k
			}
		}
		step := time.Until(next)
		if do != nil && step <= slice {
			w.due = slices.Delete(w.due, i, i+1)
		}
		w.mu.Unlock()
		if step > slice {
			time.Sleep(slice)
			w.checkState()
			continue
		} else if step > 0 {
			time.Sleep(step)
		}
		if do != nil {
			w.checkState()
			do()
		}
		w.checkState()
		if do == nil {
			return
		}
	}
}

// draw draws an element of a list, or skips if it is empty.
func draw[T any](r *rapid.T, list []T, what string) T {
	if len(list) == 0 {
		r.Skip("none")
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(r, what)]
}

// while is duration for usual leases. With shorter leases it is mostly scaled.
func (w *world) while(r *rapid.T, longest time.Duration) time.Duration {
	if w.quick() && (w.period < usual.period || rapid.Bool().Draw(r, "quickly")) {
		longest = w.scaled(longest)
	}
	return duration(r, longest)
}

// duration draws a duration of some order of magnitude, up to a maximum.
func duration(r *rapid.T, longest time.Duration) time.Duration {
	d := longest / time.Duration(rapid.SampledFrom([]int{100, 30, 10, 3, 1}).Draw(r, "fraction"))
	const unit = 10 * time.Microsecond
	return d - time.Duration(rapid.IntRange(0, int(d/2/unit)).Draw(r, "less by 10 µs"))*unit
}

// report logs what a run has reached, and fails it if something in want is missing.
func (u *run) report(want ...string) {
	u.t.Helper()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(u.tally)) {
		fmt.Fprintf(&b, "%7d %s\n", u.tally[what], what)
	}
	u.t.Logf("reached:\n%s", b.String())
	if !isWhole() {
		return
	}
	for _, what := range want {
		if u.tally[what] == 0 {
			u.t.Errorf("never reached: %s", what)
		}
	}
}

// logger discards the expected warnings of keepers. An error is a broken promise.
func (w *world) logger() *slog.Logger {
	return quiet.Logger(func(bug string) { w.breaks("an event is possible", "%s", bug) })
}
