package explore

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/lua"
)

var large = flag.Bool("explore", false, "search all worlds, also those with larger bounds; takes minutes")

// together, apart and around say which keeper each request is in.
var (
	together = [maxRequests]int{0, 0, 1}
	apart    = [maxRequests]int{0, 1, 1}
	around   = [maxRequests]int{0, 1, 0}
)

// readWrite is two readers, of which one shares its keeper with a writer.
var readWrite = [maxRequests]string{"r", "w", "r"}

// Worlds of retained leases: two processes that retain and a writer in one of them; or one that retains, with an ordinary reader
// beside, and a writer in the other; or one that retains between two writers in the other.
var (
	retainTwice   = [maxRequests]string{retained, "w", retained}
	retainBeside  = [maxRequests]string{retained, "r", "w"}
	retainBetween = [maxRequests]string{"w", retained, "w"}
	retainTurns   = [maxRequests]string{turns, "", ""}
	turnsTwice    = [maxRequests]string{turns, turns, ""}
	heldPermits   = [maxRequests]string{"h", "h", "h"}
	poolOfOne     = [maxRequests]string{pooled, "h", "h"}
	poolsOfBoth   = [maxRequests]string{pooled, pooled, pooled}
)

// Worlds with a conversion: the second request replaces the lease of the first one, beside a third one in another process.
var (
	upgrades    = [maxRequests]string{"r", "u", "w"}
	upgradesTwo = [maxRequests]string{"r", "u", "r"}
	downgrades  = [maxRequests]string{"w", "d", "r"}
	replaces    = [maxRequests]int{0, 1, 0}
	second      = [maxRequests]bool{false, true, false}
)

func (c *config) isConversion() bool {
	return c.flags == upgrades || c.flags == upgradesTwo || c.flags == downgrades
}

func readersShare(a, b string) bool { return a == "w" || b == "w" }

// withDefaults returns a world with two requests, in two keepers, unless it says more. A conversion is in the keeper of its lease.
func (c config) withDefaults() config {
	if c.requests == 0 {
		c.requests = 2
	}
	switch {
	case c.isConversion():
		c.origin, c.keeperOf = replaces, together
	case c.keeperOf == [maxRequests]int{}:
		c.keeperOf = apart
	}
	if c.set == lua.RWLock {
		c.exclude = readersShare
	}
	return c
}

// ordinaryWorlds are searched of each primitive.
var ordinaryWorlds = []config{
	{ticks: 2, faults: 1},
	{ticks: 3, slow: 1},
	{ticks: 3, cancels: 1, renewals: 1},
	{ticks: 2, crashes: 1, cancels: 1},
	{requests: 3, keeperOf: together, ticks: 1, faults: 1},
	{requests: 3, keeperOf: together, ticks: 2, slow: 1},
	{requests: 3, keeperOf: together, ticks: 2, crashes: 1, renewals: 1},
	{ticks: 3, faults: 1, slow: 1},
	{ticks: 2, faults: 1, cancels: 1, renewals: 1},
	{ticks: 2, faults: 1, crashes: 1},
}

// groups are the worlds that are searched, by what they have in common. go test searches the first ones of each group.
var groups = []struct {
	name   string
	set    *lua.Set
	flags  [maxRequests]string // unless a world has its own
	quick  int                 // how many go test searches
	worlds []config
}{
	{name: "mutex", set: lua.Mutex, quick: 1, worlds: ordinaryWorlds},
	{name: "fair", set: lua.Fair, quick: 1, worlds: append(slices.Clone(ordinaryWorlds),
		config{requests: 3, keeperOf: together, ticks: 2, faults: 1},
	)},
	{name: "rwlock", set: lua.RWLock, flags: readWrite, quick: 1, worlds: ordinaryWorlds},
	// Tries, Close, Extend and Break are the same for all primitives.
	{name: "fair", set: lua.Fair, quick: 1, worlds: []config{
		{tries: second, ticks: 2, faults: 1},
		{ticks: 2, closes: 1, slow: 1},
		{ticks: 1, extends: 1, extendTo: 1000, faults: 1},
		{ticks: 2, extends: 1, extendTo: 3000, slow: 1, renewals: 1},
		{ticks: 1, breaks: 1, faults: 1},
		{requests: 3, keeperOf: together, tries: second, ticks: 1, faults: 1},
		{tries: second, ticks: 3, faults: 1, cancels: 1},
		{requests: 3, keeperOf: together, ticks: 1, closes: 1, slow: 1},
		{ticks: 2, closes: 1, faults: 1},
		{ticks: 2, extends: 1, extendTo: 1000, faults: 1},
		{ticks: 3, extends: 1, extendTo: 1000, slow: 1, renewals: 1},
		{ticks: 3, extends: 1, extendTo: 3000, slow: 1, renewals: 1},
		{ticks: 2, breaks: 1, faults: 1},
		{ticks: 3, breaks: 1, slow: 1},
	}},
	{name: "convert", set: lua.RWLock, quick: 2, worlds: []config{
		{requests: 3, flags: upgrades, ticks: 1, cancels: 1},
		{requests: 3, flags: upgradesTwo, ticks: 1, cancels: 1},
		{flags: upgradesTwo, ticks: 2, faults: 1, cancels: 1},
		{flags: downgrades, ticks: 2, faults: 1, cancels: 1},
		{requests: 3, flags: upgrades, ticks: 2, cancels: 1, slow: 1},
		{requests: 3, flags: upgradesTwo, ticks: 1, faults: 1, cancels: 1},
		{requests: 3, flags: downgrades, ticks: 1, faults: 1, cancels: 1},
		{flags: upgradesTwo, ticks: 3, faults: 1, slow: 1, cancels: 1, renewals: 1},
	}},
	// A mutex that a process retains, beside another process, which may retain it as well.
	{name: "retain", set: lua.Mutex, quick: 1, worlds: []config{
		{flags: retainTurns, ticks: 1, entries: 1, faults: 1},
		{flags: retainTurns, ticks: 2, entries: 1, faults: 1},
		{flags: turnsTwice, ticks: 2, entries: 1, slow: 1, cancels: 1},
		{flags: turnsTwice, ticks: 2, entries: 2, faults: 1, cancels: 1},
		{flags: turnsTwice, ticks: 2, entries: 2, slow: 1, cancels: 1, renewals: 1},
		{flags: retainTurns, ticks: 1, entries: 1, faults: 1, slow: 1, renewals: 1},
		{requests: 3, flags: retainTurns, ticks: 1, entries: 1, faults: 1},
	}},
	// A semaphore of two permits, which one or both processes may retain.
	{name: "semaphore", set: lua.Semaphore, quick: 2, worlds: []config{
		{flags: heldPermits, permits: [maxRequests]int64{1, 2}, ticks: 2, faults: 1},
		{flags: poolOfOne, permits: [maxRequests]int64{1, 2}, ticks: 2, entries: 1, faults: 1},
		{flags: poolsOfBoth, permits: [maxRequests]int64{2, 1}, ticks: 2, entries: 1, slow: 1, cancels: 1},
		{flags: poolsOfBoth, permits: [maxRequests]int64{2, 1}, ticks: 2, entries: 1, crashes: 1},
		{requests: 3, flags: poolOfOne, permits: [maxRequests]int64{1, 2, 1}, ticks: 1, entries: 1, faults: 1},
		{requests: 3, flags: poolsOfBoth, permits: [maxRequests]int64{1, 2, 1}, ticks: 1, entries: 1, slow: 1, renewals: 1},
		{requests: 3, keeperOf: together, flags: heldPermits, permits: [maxRequests]int64{1, 1, 2}, ticks: 1, faults: 1},
		{flags: poolsOfBoth, permits: [maxRequests]int64{2, 1}, ticks: 1, entries: 1, faults: 1, slow: 1, renewals: 1},
	}},
	// Read leases that processes retain.
	{name: "retain", set: lua.RWLock, flags: retainTwice, quick: 1, worlds: []config{
		{ticks: 2, entries: 1, faults: 1},
		{ticks: 2, entries: 1, slow: 1, renewals: 1},
		{ticks: 2, entries: 1, crashes: 1, cancels: 1},
		{requests: 3, ticks: 1, entries: 1, faults: 1},
		{requests: 3, ticks: 1, entries: 1, slow: 1, renewals: 1},
		{requests: 3, ticks: 1, entries: 1, crashes: 1},
		{requests: 3, keeperOf: together, flags: retainBeside, ticks: 1, entries: 1, faults: 1},
		{requests: 3, keeperOf: around, flags: retainBetween, ticks: 1, entries: 1, faults: 1},
		{ticks: 2, entries: 1, faults: 1, slow: 1, renewals: 1},
		{ticks: 2, entries: 1, faults: 1, crashes: 1},
		{ticks: 1, entries: 1, faults: 2},
		{ticks: 3, entries: 1, slow: 1, renewals: 2},
	}},
}

func TestSmallWorlds(t *testing.T) {
	for _, g := range groups {
		for i, c := range g.worlds {
			if i >= g.quick && !*large {
				break
			}
			c.set = g.set
			if c.flags == [maxRequests]string{} {
				c.flags = g.flags
			}
			c = c.withDefaults()
			t.Run(g.name+"/"+c.String(), func(t *testing.T) { searchAll(t, c) })
		}
	}
}

// searchAll fails the test if a state of a world breaks a promise.
func searchAll(t *testing.T, c config) {
	t.Parallel()
	began := time.Now()
	r := searched(t, &c, 0)
	t.Logf("%d states, %d runs of scripts, up to %d steps, %.0f states a second", r.states, r.runs, r.depth, float64(r.states)/time.Since(began).Seconds())
	if r.problem != "" {
		t.Errorf("%s:\n%s", r.problem, strings.Join(r.path, "\n"))
	} else if !r.ended {
		t.Error("the search did not end")
	}
}

// searched is search in a bubble, in which the clock stands still.
func searched(t *testing.T, c *config, limit int) (r result) {
	synctest.Test(t, func(*testing.T) { r = search(c, limit) })
	return r
}

var flagNames = map[[maxRequests]string]string{
	retainBeside:  "an ordinary reader",
	retainBetween: "two writers",
	retainTurns:   "a mutex",
	turnsTwice:    "a mutex in both",
	poolOfOne:     "permits retained in one",
	poolsOfBoth:   "permits retained in both",
	upgrades:      "an upgrade beside a writer",
	upgradesTwo:   "an upgrade beside a reader",
	downgrades:    "a downgrade beside a reader",
}

// String names the bounds.
func (c *config) String() string {
	text := fmt.Sprintf("%d requests, %d ms", c.requests, int64(c.ticks)*tick)
	if name, found := flagNames[c.flags]; found {
		text = name + ", " + text
	}
	if c.tries == second {
		text += ", 1 try"
	}
	if c.extendTo > 0 {
		text += fmt.Sprintf(", %d extend to %d ms", c.extends, c.extendTo)
	}
	for _, x := range []struct {
		n    int8
		what string
	}{{c.faults, "fault"}, {c.slow, "slow reply"}, {c.cancels, "cancel"}, {c.renewals, "renewal"}, {c.crashes, "crash"}, {c.closes, "close"}, {c.breaks, "break"}, {c.entries, "local grant"}} {
		if x.n > 0 {
			text += fmt.Sprintf(", %d %s", x.n, x.what)
		}
	}
	return strings.ReplaceAll(text, " ", "_")
}
