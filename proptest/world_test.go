//go:debug randseednop=0
package proptest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/faultnet"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// checks is how many schedules a run tries that does not say how many.
const checks = 400

func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1) // what happens at one instant mostly happens in the same order then, and no slower
	redis.SetLogger(quiet{})
	if _, set := os.LookupEnv("RAPID_CHECKS"); !set {
		if err := flag.Set("rapid.checks", strconv.Itoa(checks)); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// quiet keeps go-redis from logging every connection that was broken on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// Keepers run with these. No two of them end a read and a heartbeat at the same instant.
const (
	period  = 2 * time.Second
	life    = 6 * time.Second
	idle    = time.Hour
	timeout = 470 * time.Millisecond // for the answer to a command
	grave   = time.Minute            // see graveTime in internal/engine
)

// settling is how long a process whose network is whole again may take until it is connected and has beaten: the
// longest pause between two attempts (Retry.Max, and half as much at random), an answer that does not come, and a
// heartbeat.
const settling = 1500*time.Millisecond + timeout + period

// state is how a process fares.
type state string

const (
	running state = "running"
	lossy   state = "lossy"   // some of its requests or answers are lost
	muted   state = "muted"   // it is not subscribed and cannot be
	away    state = "away"    // it has no connection and gets none
	frozen  state = "frozen"  // it does not run; the server sees open connections
	crashed state = "crashed" // for good
)

// world is one server, processes that use it, and what happens to them. Everything is started from one goroutine,
// which draws from rapid; the processes' own goroutines report to it.
type world struct {
	run   *run
	r     *rapid.T
	mini  *miniredis.Miniredis
	start time.Time
	due   []event // what will happen, by the driver's hand

	mu        sync.Mutex // guards what follows, and what processes say is guarded by it
	processes []*process
	tally     map[string]int // how often something was reached
	serious   time.Time      // when a process was last hurt, or came back, in a way that can leave a lease behind
	wrong     string         // the first promise that was broken
	log       []string
	logged    int // so many lines of it are shown
}

type event struct {
	at time.Time
	do func()
}

// process is a keeper with a client and a network of its own.
type process struct {
	*lockkeeper.Keeper
	w    *world
	id   int
	rdb  *redis.Client
	link *link

	// Guarded by world.mu.
	state  state
	steady time.Time // from when on it is whole and has settled, if it is running
	hurt   time.Time // when it was last whole before that; zero: it always was
	back   time.Time // when it came back
	// deafened is when its subscription was last deafened
	deafened time.Time
	thawed   chan struct{} // closed when a frozen one runs again, or never will
}

// run is all schedules of a test.
type run struct {
	t     *testing.T
	tally map[string]int
	first []string // what happened in the first that failed
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
func (u *run) simulate(r *rapid.T, schedule func(*world)) {
	var out any
	mine := map[string]int{}
	//lint:ignore SA1019 it makes the pauses between attempts, random by themselves, part of the schedule
	rand.Seed(1)
	synctest.Test(u.t, func(*testing.T) {
		w := &world{run: u, r: r, start: time.Now(), tally: mine, mini: miniredis.NewMiniRedis()}
		w.mini.ClockTTL(true)
		defer w.end()
		defer func() { out = recover() }()
		schedule(w)
	})
	if promise, is := out.(broken); is {
		r.Fatal(promise)
	}
	if out != nil {
		panic(out)
	}
	for what, n := range mine {
		u.tally[what] += n
	}
}

// leave closes all processes. Those that crashed stay cut off.
func (w *world) leave() {
	var wg sync.WaitGroup
	for _, p := range w.processes {
		if p.state != running && p.state != crashed {
			p.recover(p.state)
		}
		wg.Go(func() { _ = p.Close() })
	}
	wg.Wait()
}

// end takes the world down.
func (w *world) end() {
	for _, p := range w.processes {
		_ = p.rdb.Close()
	}
	w.mini.Close()
	time.Sleep(time.Minute) // go-redis ends its goroutines by the clock
}

// logLocked notes what happens, to be shown if the schedule fails. The caller has the lock.
func (w *world) logLocked(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%12v  ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

// breaks notes that a promise was broken. The promise is always in the same words, because rapid compares them when it
// shortens a schedule; the rest goes to the log. The caller has the lock.
func (w *world) breaks(promise, format string, args ...any) {
	w.logLocked("BROKEN: "+promise+": "+format, args...)
	if w.wrong == "" {
		w.wrong = promise
	}
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
	w.due = append(w.due, event{time.Now().Add(d), do})
}

// advance lets time pass, and what is due happen. look is called whenever something may have changed.
func (w *world) advance(d time.Duration, look func()) {
	const slice = 500 * time.Millisecond
	for end := time.Now().Add(d); ; {
		next := end
		var do func()
		i := -1
		for k, e := range w.due {
			if !e.at.After(next) {
				next, do, i = e.at, e.do, k
			}
		}
		if step := time.Until(next); step > slice {
			time.Sleep(slice)
			look()
			continue
		} else if step > 0 {
			time.Sleep(step)
		}
		if do != nil {
			look()
			w.due = slices.Delete(w.due, i, i+1)
			do()
		}
		look()
		if do == nil {
			return
		}
	}
}

// process starts one more process.
func (w *world) process(hooks lockkeeper.Hooks) *process {
	l := newLink(faultnet.Buffer(func(context.Context, string, string) (net.Conn, error) { return w.mini.Dial() }))
	p := &process{w: w, link: l, state: running, steady: time.Now(), rdb: redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Dialer: l.Dial, DialerRetries: 1, ReadTimeout: timeout, PoolSize: 100,
	})}
	var err error
	p.Keeper, err = lockkeeper.New(p.rdb, &lockkeeper.Options{
		Heartbeat: period, HeartbeatLifetime: life, Idle: idle, Hooks: hooks,
		Retry:  lockkeeper.RetryPolicy{GiveUp: -1},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		w.r.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.id = len(w.processes)
	w.processes = append(w.processes, p)
	return p
}

// in is all processes in one of the states.
func (w *world) in(states ...state) []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*process
	for _, p := range w.processes {
		if slices.Contains(states, p.state) {
			list = append(list, p)
		}
	}
	return list
}

// isSteady says whether the process is whole and has had the time to settle. The caller has the lock.
func (p *process) isSteady() bool { return p.state == running && !time.Now().Before(p.steady) }

// neverHurt says whether nothing was ever done to the process. The caller has the lock.
func (p *process) neverHurt() bool { return p.state == running && p.hurt.IsZero() }

// unclear says whether a process in this state can be granted a lock that it does not use. One that the server sees to be
// gone cannot.
func (s state) unclear() bool { return s == frozen || s == lossy }

// holds says whether a lease of the process lies at the server.
func (p *process) holds() bool {
	for _, k := range p.w.mini.Keys() {
		if strings.HasSuffix(k, ":holders") {
			if owner, err := p.w.mini.Get(k); err == nil && strings.HasPrefix(owner, p.ID()) {
				return true
			}
		}
	}
	return false
}

// harm brings a process that is running into another state, which lasts for d.
func (p *process) harm(s state, d time.Duration) {
	w := p.w
	holds := p.holds()
	w.mu.Lock()
	now := time.Now()
	w.logLocked("process %d is %s for %v", p.id, s, d)
	if p.isSteady() {
		p.hurt = now
	}
	p.state = s
	if s == frozen {
		p.thawed = make(chan struct{})
	}
	if holds || s.unclear() {
		w.serious = now
	}
	w.mu.Unlock()
	w.reach("a process is " + string(s))
	switch s {
	case muted:
		p.link.Refuse(true)
		p.link.CutSubscriptions()
	case away:
		p.link.Down()
	case frozen:
		p.link.Freeze()
	}
	w.after(d, func() { p.recover(s) })
}

// recover ends a state.
func (p *process) recover(s state) {
	w := p.w
	w.mu.Lock()
	if p.state != s { // it has crashed meanwhile
		w.mu.Unlock()
		return
	}
	now := time.Now()
	w.logLocked("process %d runs again", p.id)
	p.back, p.steady = now, now.Add(settling)
	if s.unclear() {
		w.serious = now
	}
	w.mu.Unlock()
	p.link.Refuse(false)
	p.link.Mend()
	p.link.Thaw()
	p.wake(running)
}

// wake brings a process into a state in which its goroutines do not stand still.
func (p *process) wake(s state) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.state = s
	if p.thawed != nil {
		close(p.thawed)
		p.thawed = nil
	}
}

// crash ends a process: nothing that it does reaches the server any more, and nobody looks at its results.
func (p *process) crash() {
	w := p.w
	holds := p.holds()
	w.mu.Lock()
	if holds {
		w.serious = time.Now()
	}
	w.logLocked("process %d crashes", p.id)
	w.mu.Unlock()
	w.reach("a process is crashed")
	p.link.Down()
	p.wake(crashed)
	p.link.Thaw()
	go func() { _ = p.Close() }() // so that it keeps nobody busy
}

// awake returns when the process runs; it says whether it will.
func (p *process) awake() bool {
	for {
		p.w.mu.Lock()
		s, thawed := p.state, p.thawed
		p.w.mu.Unlock()
		switch s {
		case frozen:
			<-thawed
		case crashed:
			return false
		default:
			return true
		}
	}
}

// keys is what lies at the server but the facts of names.
func (w *world) keys() []string {
	return slices.DeleteFunc(w.mini.Keys(), func(k string) bool { return strings.HasSuffix(k, ":meta") })
}

// report shows what a run has reached, and fails it if it should have reached more. A run that is short, or that
// repeats a schedule, need not.
func (u *run) report(want ...string) {
	u.t.Helper()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(u.tally)) {
		fmt.Fprintf(&b, "%7d %s\n", u.tally[what], what)
	}
	u.t.Logf("reached:\n%s", b.String())
	n, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	if err != nil || n < checks || testing.Short() || flag.Lookup("rapid.failfile").Value.String() != "" {
		return
	}
	for _, what := range want {
		if u.tally[what] == 0 {
			u.t.Errorf("never reached: %s", what)
		}
	}
}
