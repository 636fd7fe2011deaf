package proptest

import (
	"flag"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// primitives are the simulated primitives. seeds are those of schedules that found a failure once.
var primitives = []struct {
	name  string
	kind  func() primitive
	seeds []uint64
	reach []string // what many schedules should reach besides
	lacks []string // the features that it does not have
}{
	{"mutex", func() primitive { return &mutexLock{} }, nil, []string{"the key is left free", "a key that was left free is granted to a waiter"}, withoutPermits},
	{"fair", func() primitive { return fairLock{} }, nil, nil, withoutPermits},
	{"rwlock", func() primitive { return &readWriteLock{} }, nil, []string{
		"a lease is converted", "a downgrade is in doubt", "an upgrade is given up that was granted", "upgrades conflict",
		"readers go before the next writer",
	}, []string{sets, halts}},
	{"semaphore", func() primitive { return &permits{} }, []uint64{2}, []string{"the limit changes", "the limit is paused", "at its bound: the shortest window", "at its bound: the longest window"}, []string{converts}},
}

// reached is what many schedules of any primitive should reach.
var reached = []string{
	"granted at once", "granted by a message", "granted by an answer to a heartbeat",
	"several waiters arrive at once", "many waiters arrive", "a wait is cancelled", "a cancellation meets the grant",
	"a try is granted", "a try is refused", "a lease is lost",
	"a frozen process is granted a lease", "a waiter rejoins at its old position", "a lease is extended", "a lease is adopted",
	"a process is slow", "a single reply is lost", "the server freezes", "a grant arrives too late and is requested again",
	"a message is lost and a heartbeat finds the grant", "a grant cannot be confirmed", "a process is lossy", "duplicates arrive late",
	"the server forgets its scripts", "the server restarts empty", "the server fails over",
	"the clock is set back", "the clock is set forward",
	"the server says " + string(full), "the server says " + string(replica), "the server says " + string(loading),
	"all waiters are served at the end", "nothing is left without faults",
}

// few is the default number of schedules of each primitive.
var few = 10

const (
	many     = 300  // which should reach everything
	pairsToo = 1000 // which should reach all pairs of features
)

var (
	acquisitions   = flag.Int("acquisitions", 0, "simulate each primitive until there have been so many, and a virtual day")
	delayedEffects = flag.Bool("delayed-effects", false, "this binary was built by TestDelayedEffects: no world is without a lag")
	within         = flag.Duration("within", 24*time.Hour, "but stop after this time for each, and say what was reached")
)

// TestSimulation checks that the promises in invariants_test.go hold, whatever happens to processes, network and
// server.
func TestSimulation(t *testing.T) {
	for _, p := range primitives {
		t.Run(p.name, func(t *testing.T) {
			run := newRun(t)
			run.features = featuresOf(p.lacks...)
			began := time.Now()
			schedules := 0
			check := func(n int) {
				defer setFlag("rapid.checks", setFlag("rapid.checks", strconv.Itoa(n)))
				rapid.Check(t, func(r *rapid.T) {
					schedules++
					run.simulate(r, p.kind(), func(w *world) { w.schedule(r) })
				})
			}
			asked := setFlag("rapid.seed", "0")
			for _, seed := range p.seeds {
				setFlag("rapid.seed", strconv.FormatUint(seed, 10))
				check(1)
			}
			defer setFlag("rapid.seed", asked)
			seed, _ := strconv.ParseUint(asked, 10, 64)
			if seed == 0 && !checksSet && *acquisitions == 0 {
				seed = 1 // a default run shows whether a change has broken something; others search
			}
			setFlag("rapid.seed", strconv.FormatUint(seed, 10))
			n := few
			if checksSet {
				n, _ = strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
			}
			for {
				check(n)
				if run.tally["acquisitions"] >= *acquisitions && (*acquisitions == 0 || run.took >= 24*time.Hour) || time.Since(began) > *within {
					break
				}
				if seed > 0 { // the next schedules, not the same again
					seed += 1 << 32
					setFlag("rapid.seed", strconv.FormatUint(seed, 10))
				}
			}
			var want []string
			if schedules >= many {
				want = append(p.reach, reached...)
				for _, b := range bounds {
					want = append(want, "at its bound: "+b.name)
				}
			}
			if schedules >= pairsToo {
				want = append(want, pairsOf(run.features)...)
			}
			run.report(want...)
			took := time.Since(began)
			t.Logf("%s: %d acquisitions in %d schedules, %.1f hours of virtual time, in %v: %.0f acquisitions a second",
				p.name, run.tally["acquisitions"], schedules, run.took.Hours(), took.Round(time.Second),
				float64(run.tally["acquisitions"])/took.Seconds())
		})
	}
}
