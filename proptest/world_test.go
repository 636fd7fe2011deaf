//go:debug randseednop=0
package proptest

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// Keepers run with these. What else they run with is drawn for each world.
const (
	idle    = time.Hour
	life    = 6 * time.Second         // how long a heartbeat counts, unless leases are short
	grave   = time.Minute             // see graveTime in internal/engine
	pause   = 1500 * time.Millisecond // the longest between two attempts: Retry.MaxBackoff, and half as much at random
	closing = 3 * time.Second         // how long Close goes on giving things back: see closeTime in internal/engine
)

// usual is what most worlds have. Those in which leases are shorter are scaled by it.
var usual = times{ttl: 3 * time.Second, period: life / 3, timeout: 470 * time.Millisecond}

const (
	slack = 250 * time.Millisecond // the margin of a lease of ten seconds, and whole milliseconds
	grace = 50 * time.Millisecond  // in which a call returns whose context has ended
)

// times is how long what matters takes in a world. No two of them end a read and a heartbeat at the same instant.
type times struct {
	ttl     time.Duration // requests ask for this and their number in ms, so that a token tells its request
	period  time.Duration // of heartbeats
	timeout time.Duration // for the answer to a command
}

// life is how long a heartbeat counts.
func (t times) life() time.Duration { return 3 * t.period }

// settling is how long a process whose network is whole again may take until it is connected and has beaten: the
// longest pause between two attempts, an answer that does not come, and a heartbeat.
func (t times) settling() time.Duration { return pause + t.timeout + t.period }

// quick says whether leases are so short that what happens to a process for a moment can cost it one.
func (t times) quick() bool { return t.ttl < usual.ttl }

// scaled is a time that befits leases of the usual length, for leases of this one.
func (t times) scaled(d time.Duration) time.Duration {
	if !t.quick() {
		return d
	}
	return d * (t.ttl / time.Millisecond) / (usual.ttl / time.Millisecond)
}

// choose draws them. In some of those that are quick heartbeats are as short as leases, in others as they usually are. An
// answer can take longer than leases last.
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
}

// most is how many requests there may be in a world, so that their numbers, which are added to the ttl, leave it what it is.
func (t times) most() int { return int(min(900, 4*t.ttl/time.Millisecond)) }

// late is how long something takes that takes too long: from nothing to several ttls.
func (w *world) late(r *rapid.T) time.Duration {
	return duration(r, 4*w.ttl+time.Duration(len(w.requests))*time.Millisecond)
}

// world is one server, processes that use one lock on it, and what happens to them. Everything is started from one
// goroutine, which draws from rapid; the processes' own goroutines report to it.
type world struct {
	run    *run
	r      *rapid.T
	kind   primitive
	server *redisServer
	start  time.Time
	due    []event // what will happen, by the driver's hand
	actors sync.WaitGroup
	times
	longest time.Duration // that a lease was asked for, but for those ms; guarded by mu
	lag     time.Duration // the longest that a message takes one way
	calm    bool          // nothing is broken
	lasted  time.Duration // until all had gone home

	mu        sync.Mutex // guards what follows, and what processes and requests say is guarded by it
	processes []*process
	requests  []*request
	tally     map[string]int // how often something was reached
	closing   bool           // the end has begun
	ill       time.Time      // when the server was last hurt; zero: it never was
	sound     time.Time      // from when on it is whole and all have had the time to notice
	setBack   time.Duration  // how far its clock was set back, in all
	ahead     time.Time      // when its clock was last set forward
	lowered   bool           // the limit was set, perhaps below what somebody asks for
	saved     [][]record     // its data at some moments, which a failover brings back
	history   history
	wrong     string // the first promise that was broken
	log       []string
	logged    int // so many lines of it are shown
}

type event struct {
	at time.Time
	do func()
}

// run is all schedules of a test.
type run struct {
	t     *testing.T
	tally map[string]int
	took  time.Duration // of virtual time, without waiting for keys to expire after all have gone
	first []string      // what happened in the first that failed
}

// newRun begins a run. What happens at one instant is not always in the same order, so a schedule that failed may not
// fail again; therefore the first failure is shown whatever becomes of it.
func newRun(t *testing.T) *run {
	u := &run{t: t, tally: map[string]int{}}
	t.Cleanup(func() {
		if u.first != nil {
			t.Logf("the first schedule that failed:\n%s", strings.Join(u.first, "\n"))
		}
	})
	return u
}

// broken is what a schedule panics with that has broken a promise.
type broken string

func (u *run) keep(log []string) {
	if u.first == nil {
		u.first = slices.Clone(log)
	}
}

// simulate runs a schedule in a bubble of its own. What is panicked with must not end the bubble but the iteration.
// Rapid tells failures apart by where they come from, so a broken promise must not come from the same line as rapid's
// own word that a shortened schedule is too short.
func (u *run) simulate(r *rapid.T, kind primitive, schedule func(*world)) {
	var out any
	var took time.Duration
	mine := map[string]int{}
	// Pauses between attempts and the names of keepers are random by themselves; this makes them part of the schedule.
	//lint:ignore SA1019 there is no other way to seed what the libraries draw from
	rand.Seed(1)
	uuid.SetRand(rand.New(rand.NewSource(1)))
	defer uuid.SetRand(nil)
	synctest.Test(u.t, func(*testing.T) {
		w := &world{run: u, r: r, kind: kind, start: time.Now(), tally: mine}
		w.server = newServer(w.stepped)
		defer w.end()
		defer func() { took, out = w.lasted, recover() }()
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

// tail is for how long something will be under way that was sent until now.
func (w *world) tail() (longest time.Duration) {
	for _, p := range w.processes {
		longest = max(longest, p.link.tail())
	}
	return longest
}

// closeProcesses closes all processes. Those that crashed stay cut off.
func (w *world) closeProcesses() {
	var wg sync.WaitGroup
	for _, p := range w.processes {
		if p.state != running && p.state != crashed {
			p.recover(p.state)
		}
		wg.Go(func() {
			began := time.Now()
			_ = p.Close()
			if took := time.Since(began); p.state != crashed && took > closing+pause+w.timeout {
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
		w.closeProcesses()
		w.actors.Wait()
	}
}

// end takes the world down. Synctest fails the test if a goroutine is left that does not end.
func (w *world) end() {
	for _, p := range w.processes {
		_ = p.rdb.Close()
	}
	w.server.mini.Close()
	time.Sleep(time.Minute) // go-redis ends its goroutines by the clock
}

// note writes down what happens, to be shown if the schedule fails.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(format, args...)
}

func (w *world) noteLocked(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%12v  ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

// breaksLocked notes that a promise was broken. The promise is always in the same words, because rapid compares them
// when it shortens a schedule; the rest goes to the log.
func (w *world) breaksLocked(promise, format string, args ...any) {
	w.noteLocked("BROKEN: "+promise+": "+format, args...)
	if w.wrong == "" {
		w.wrong = promise
	}
}

func (w *world) breaks(promise, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.breaksLocked(promise, format, args...)
}

// reach counts something that should happen now and then.
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
	if w.wrong != "" {
		w.run.keep(w.log)
		panic(broken(w.wrong))
	}
}

// after lets the driver do something in a while.
func (w *world) after(d time.Duration, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = append(w.due, event{time.Now().Add(d), do})
}

// advance lets time pass, and what is due happen. It looks whenever something may have changed.
func (w *world) advance(d time.Duration) {
	slice := min(500*time.Millisecond, max(w.period/4, 20*time.Millisecond))
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

// draw is one of a list, if there is one.
func draw[T any](r *rapid.T, list []T, what string) T {
	if len(list) == 0 {
		r.Skip("none")
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(r, what)]
}

// while is duration for leases of the usual length; where they are shorter, mostly as much less.
func (w *world) while(r *rapid.T, longest time.Duration) time.Duration {
	if w.quick() && (w.period < usual.period || rapid.Bool().Draw(r, "quickly")) {
		longest = w.scaled(longest)
	}
	return duration(r, longest)
}

// duration is a time of some order of magnitude, up to a longest.
func duration(r *rapid.T, longest time.Duration) time.Duration {
	d := longest / time.Duration(rapid.SampledFrom([]int{100, 30, 10, 3, 1}).Draw(r, "fraction"))
	const unit = 10 * time.Microsecond
	return d - time.Duration(rapid.IntRange(0, int(d/2/unit)).Draw(r, "less by 10 µs"))*unit
}

// report shows what a run has reached, and fails it if it should have reached more.
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

// silent is for keepers whose warnings are no news.
var silent = slog.New(slog.NewTextHandler(io.Discard, nil))
