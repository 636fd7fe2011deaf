package explore

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/lua"
)

var large = flag.Bool("explore", false, "search worlds with larger bounds; takes minutes")

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
)

func readersShare(a, b string) bool { return a == "w" || b == "w" }

// worlds returns what is searched of a primitive.
func worlds(set *lua.Set) []config {
	small := []config{
		{requests: 2, keeperOf: apart, ticks: 2, faults: 1},
		{requests: 2, keeperOf: apart, ticks: 3, slow: 1},
		{requests: 2, keeperOf: apart, ticks: 3, cancels: 1, renewals: 1},
		{requests: 2, keeperOf: apart, ticks: 2, crashes: 1, cancels: 1},
	}
	if *large {
		small = []config{
			{requests: 3, keeperOf: together, ticks: 2, faults: 1},
			{requests: 3, keeperOf: together, ticks: 2, slow: 1, cancels: 1},
			{requests: 3, keeperOf: together, ticks: 2, crashes: 1, renewals: 1},
			{requests: 2, keeperOf: apart, ticks: 3, faults: 1, slow: 1, cancels: 1, renewals: 1},
			{requests: 2, keeperOf: apart, ticks: 3, faults: 1, crashes: 1},
		}
	}
	for i := range small {
		small[i].set, small[i].rules = set, engineRules
		if set == lua.RWLock {
			small[i].flags, small[i].exclude = readWrite, readersShare
		}
	}
	return small
}

// retainingWorlds returns what is searched of read leases that processes retain.
func retainingWorlds() []config {
	list := []config{
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, faults: 1},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, slow: 1, renewals: 1},
		{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, crashes: 1, cancels: 1},
	}
	if *large {
		list = []config{
			{requests: 3, keeperOf: apart, flags: retainTwice, ticks: 1, entries: 1, faults: 1},
			{requests: 3, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, slow: 1},
			{requests: 3, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, crashes: 1},
			{requests: 3, keeperOf: apart, flags: retainTwice, ticks: 1, entries: 1, slow: 1, renewals: 1},
			{requests: 3, keeperOf: together, flags: retainBeside, ticks: 1, entries: 1, faults: 1},
			{requests: 3, keeperOf: around, flags: retainBetween, ticks: 1, entries: 1, faults: 1},
			{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 3, entries: 1, faults: 1, slow: 1},
			{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, faults: 1, slow: 1, cancels: 1, renewals: 1},
			{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, faults: 1, crashes: 1, renewals: 1},
			{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 2, entries: 1, faults: 2},
			{requests: 2, keeperOf: apart, flags: retainTwice, ticks: 3, entries: 1, slow: 1, renewals: 2},
		}
	}
	for i := range list {
		list[i].set, list[i].rules, list[i].exclude = lua.RWLock, engineRules, readersShare
	}
	return list
}

func TestSmallWorlds(t *testing.T) {
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock} {
		for _, c := range worlds(set) {
			t.Run(set.Kind+"/"+c.String(), func(t *testing.T) { searchAll(t, c) })
		}
	}
	for _, c := range retainingWorlds() {
		t.Run("retain/"+c.String(), func(t *testing.T) { searchAll(t, c) })
	}
}

// searchAll fails the test if a state of a world breaks a promise.
func searchAll(t *testing.T, c config) {
	t.Parallel()
	began := time.Now()
	r := search(&c, 0)
	t.Logf("%d states, %d runs of scripts, up to %d steps, %.0f states a second", r.states, r.runs, r.depth, float64(r.states)/time.Since(began).Seconds())
	if r.problem != "" {
		t.Errorf("%s:\n%s", r.problem, strings.Join(r.path, "\n"))
	} else if !r.ended {
		t.Error("the search did not end")
	}
}

// String names the bounds.
func (c *config) String() string {
	text := fmt.Sprintf("%d requests, %d ms", c.requests, int64(c.ticks)*tick)
	switch c.flags {
	case retainBeside:
		text = "an ordinary reader, " + text
	case retainBetween:
		text = "two writers, " + text
	}
	for _, x := range []struct {
		n    int8
		what string
	}{{c.faults, "fault"}, {c.slow, "slow reply"}, {c.cancels, "cancel"}, {c.renewals, "renewal"}, {c.crashes, "crash"}, {c.entries, "local grant"}} {
		if x.n > 0 {
			text += fmt.Sprintf(", %d %s", x.n, x.what)
		}
	}
	return strings.ReplaceAll(text, " ", "_")
}
