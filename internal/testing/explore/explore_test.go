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

// some returns the first n worlds of a group or, with -explore, all of them and the larger ones.
func some(n int, list, larger []config) []config {
	if *large {
		return slices.Concat(list, larger)
	}
	return list[:n]
}

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

func readersShare(a, b string) bool { return a == "w" || b == "w" }

// ordinaryWorlds returns what is searched of a primitive.
func ordinaryWorlds(set *lua.Set) []config {
	list := some(1, []config{
		{requests: 2, keeperOf: apart, ticks: 2, faults: 1},
		{requests: 2, keeperOf: apart, ticks: 3, slow: 1},
		{requests: 2, keeperOf: apart, ticks: 3, cancels: 1, renewals: 1},
		{requests: 2, keeperOf: apart, ticks: 2, crashes: 1, cancels: 1},
	}, []config{
		{requests: 3, keeperOf: together, ticks: 1, faults: 1},
		{requests: 3, keeperOf: together, ticks: 2, slow: 1},
		{requests: 3, keeperOf: together, ticks: 2, crashes: 1, renewals: 1},
		{requests: 2, keeperOf: apart, ticks: 3, faults: 1, slow: 1},
		{requests: 2, keeperOf: apart, ticks: 2, faults: 1, cancels: 1, renewals: 1},
		{requests: 2, keeperOf: apart, ticks: 2, faults: 1, crashes: 1},
	})
	if *large && set == lua.Fair {
		list = append(list, config{requests: 3, keeperOf: together, ticks: 2, faults: 1})
	}
	for i := range list {
		list[i].set = set
		if set == lua.RWLock {
			list[i].flags, list[i].exclude = readWrite, readersShare
		}
	}
	return list
}

// otherWorlds returns what is searched with fair alone: tries, Close, Extend and Break, which are the same for all primitives.
func otherWorlds() []config {
	list := some(1, []config{
		{requests: 2, keeperOf: apart, tries: second, ticks: 2, faults: 1},
		{requests: 2, keeperOf: apart, ticks: 2, closes: 1, slow: 1},
		{requests: 2, keeperOf: apart, ticks: 1, extends: 1, extendTo: 1000, faults: 1},
		{requests: 2, keeperOf: apart, ticks: 2, extends: 1, extendTo: 3000, slow: 1, renewals: 1},
		{requests: 2, keeperOf: apart, ticks: 1, breaks: 1, faults: 1},
	}, []config{
		{requests: 3, keeperOf: together, tries: second, ticks: 1, faults: 1},
		{requests: 2, keeperOf: apart, tries: second, ticks: 3, faults: 1, cancels: 1},
		{requests: 3, keeperOf: together, ticks: 1, closes: 1, slow: 1},
		{requests: 2, keeperOf: apart, ticks: 2, closes: 1, faults: 1},
		{requests: 2, keeperOf: apart, ticks: 2, extends: 1, extendTo: 1000, faults: 1},
		{requests: 2, keeperOf: apart, ticks: 3, extends: 1, extendTo: 1000, slow: 1, renewals: 1},
		{requests: 2, keeperOf: apart, ticks: 3, extends: 1, extendTo: 3000, slow: 1, renewals: 1},
		{requests: 2, keeperOf: apart, ticks: 2, breaks: 1, faults: 1},
		{requests: 2, keeperOf: apart, ticks: 3, breaks: 1, slow: 1},
	})
	for i := range list {
		list[i].set = lua.Fair
	}
	return list
}

// convertingWorlds returns what is searched of conversions.
func convertingWorlds() []config {
	list := some(2, []config{
		{requests: 3, keeperOf: together, flags: upgrades, ticks: 1, cancels: 1},
		{requests: 3, keeperOf: together, flags: upgradesTwo, ticks: 1, cancels: 1},
		{requests: 2, keeperOf: together, flags: upgradesTwo, ticks: 2, faults: 1, cancels: 1},
		{requests: 2, keeperOf: together, flags: downgrades, ticks: 2, faults: 1, cancels: 1},
	}, []config{
		{requests: 3, keeperOf: together, flags: upgrades, ticks: 2, cancels: 1, slow: 1},
		{requests: 3, keeperOf: together, flags: upgradesTwo, ticks: 1, faults: 1, cancels: 1},
		{requests: 3, keeperOf: together, flags: downgrades, ticks: 1, faults: 1, cancels: 1},
		{requests: 2, keeperOf: together, flags: upgradesTwo, ticks: 3, faults: 1, slow: 1, cancels: 1, renewals: 1},
	})
	for i := range list {
		list[i].set, list[i].exclude, list[i].origin = lua.RWLock, readersShare, replaces
	}
	return list
}

// retainingWorlds returns what is searched of read leases that processes retain.
func retainingWorlds() []config {
	list := some(1, []config{
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, faults: 1},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, slow: 1, renewals: 1},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, crashes: 1, cancels: 1},
	}, []config{
		{requests: 3, keeperOf: apart, flags: retainTwice, ticks: 1, entries: 1, faults: 1},
		{requests: 3, keeperOf: apart, flags: retainTwice, ticks: 1, entries: 1, slow: 1, renewals: 1},
		{requests: 3, keeperOf: apart, flags: retainTwice, ticks: 1, entries: 1, crashes: 1},
		{requests: 3, keeperOf: together, flags: retainBeside, ticks: 1, entries: 1, faults: 1},
		{requests: 3, keeperOf: around, flags: retainBetween, ticks: 1, entries: 1, faults: 1},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, faults: 1, slow: 1, renewals: 1},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, faults: 1, crashes: 1},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 1, entries: 1, faults: 2},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 3, entries: 1, slow: 1, renewals: 2},
	})
	for i := range list {
		list[i].set, list[i].exclude = lua.RWLock, readersShare
	}
	return list
}

// turnWorlds returns what is searched of a mutex that a process retains, beside another process, which may retain it as well.
func turnWorlds() []config {
	list := some(1, []config{
		{requests: 2, keeperOf: apart, flags: retainTurns, ticks: 1, entries: 1, faults: 1},
		{requests: 2, keeperOf: apart, flags: retainTurns, ticks: 2, entries: 1, faults: 1},
		{requests: 2, keeperOf: apart, flags: turnsTwice, ticks: 2, entries: 1, slow: 1, cancels: 1},
	}, []config{
		{requests: 2, keeperOf: apart, flags: turnsTwice, ticks: 2, entries: 2, faults: 1, cancels: 1},
		{requests: 2, keeperOf: apart, flags: turnsTwice, ticks: 2, entries: 2, slow: 1, cancels: 1, renewals: 1},
		{requests: 2, keeperOf: apart, flags: retainTurns, ticks: 1, entries: 1, faults: 1, slow: 1, renewals: 1},
		{requests: 3, keeperOf: apart, flags: retainTurns, ticks: 1, entries: 1, faults: 1},
	})
	for i := range list {
		list[i].set = lua.Mutex
	}
	return list
}

// permitWorlds returns what is searched of a semaphore of two permits, which one or both processes may retain.
func permitWorlds() []config {
	list := some(2, []config{
		{requests: 2, keeperOf: apart, flags: heldPermits, permits: [maxRequests]int64{1, 2}, ticks: 2, faults: 1},
		{requests: 2, keeperOf: apart, flags: poolOfOne, permits: [maxRequests]int64{1, 2}, ticks: 2, entries: 1, faults: 1},
		{requests: 2, keeperOf: apart, flags: poolsOfBoth, permits: [maxRequests]int64{2, 1}, ticks: 2, entries: 1, slow: 1, cancels: 1},
		{requests: 2, keeperOf: apart, flags: poolsOfBoth, permits: [maxRequests]int64{2, 1}, ticks: 2, entries: 1, crashes: 1},
	}, []config{
		{requests: 3, keeperOf: apart, flags: poolOfOne, permits: [maxRequests]int64{1, 2, 1}, ticks: 1, entries: 1, faults: 1},
		{requests: 3, keeperOf: apart, flags: poolsOfBoth, permits: [maxRequests]int64{1, 2, 1}, ticks: 1, entries: 1, slow: 1, renewals: 1},
		{requests: 3, keeperOf: together, flags: heldPermits, permits: [maxRequests]int64{1, 1, 2}, ticks: 1, faults: 1},
		{requests: 2, keeperOf: apart, flags: poolsOfBoth, permits: [maxRequests]int64{2, 1}, ticks: 1, entries: 1, faults: 1, slow: 1, renewals: 1},
	})
	for i := range list {
		list[i].set = lua.Semaphore
	}
	return list
}

func TestSmallWorlds(t *testing.T) {
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock} {
		for _, c := range ordinaryWorlds(set) {
			t.Run(set.Kind+"/"+c.String(), func(t *testing.T) { searchAll(t, c) })
		}
	}
	for _, c := range otherWorlds() {
		t.Run("fair/"+c.String(), func(t *testing.T) { searchAll(t, c) })
	}
	for _, c := range convertingWorlds() {
		t.Run("convert/"+c.String(), func(t *testing.T) { searchAll(t, c) })
	}
	for _, c := range turnWorlds() {
		t.Run("retain/"+c.String(), func(t *testing.T) { searchAll(t, c) })
	}
	for _, c := range permitWorlds() {
		t.Run("semaphore/"+c.String(), func(t *testing.T) { searchAll(t, c) })
	}
	for _, c := range retainingWorlds() {
		t.Run("retain/"+c.String(), func(t *testing.T) { searchAll(t, c) })
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

// String names the bounds.
func (c *config) String() string {
	text := fmt.Sprintf("%d requests, %d ms", c.requests, int64(c.ticks)*tick)
	switch c.flags {
	case retainBeside:
		text = "an ordinary reader, " + text
	case retainBetween:
		text = "two writers, " + text
	case retainTurns:
		text = "a mutex, " + text
	case turnsTwice:
		text = "a mutex in both, " + text
	case poolOfOne:
		text = "permits retained in one, " + text
	case poolsOfBoth:
		text = "permits retained in both, " + text
	case upgrades:
		text = "an upgrade beside a writer, " + text
	case upgradesTwo:
		text = "an upgrade beside a reader, " + text
	case downgrades:
		text = "a downgrade beside a reader, " + text
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
