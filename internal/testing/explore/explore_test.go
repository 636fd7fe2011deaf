package explore

import (
	"flag"
	"fmt"
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

// second and two say which requests something is true of.
var (
	second = [maxRequests]bool{false, true}
	two    = [maxRequests]bool{true, true}
)

// readWrite is two readers and a writer.
var readWrite = [maxRequests]string{"r", "w", "r"}

// heldPermits is permits of a semaphore.
var heldPermits = [maxRequests]string{"h", "h", "h", "h"}

// Worlds with conversions.
var (
	upgrades    = [maxRequests]string{"r", "u", "w"}
	upgradesTwo = [maxRequests]string{"r", "u", "r"}
	downgrades  = [maxRequests]string{"w", "u", "r"}
	attempts    = [maxRequests]string{"r", "u", "u", "r"}
	rivals      = [maxRequests]string{"r", "u", "r", "u"}
)

// conversions says what these worlds are, which leases the requests make write, and in which keepers they are.
var conversions = map[[maxRequests]string]struct {
	name             string
	origin, keeperOf [maxRequests]int
}{
	upgrades:    {"an upgrade beside a writer", [maxRequests]int{0, 1}, together},
	upgradesTwo: {"an upgrade beside a reader", [maxRequests]int{0, 1}, together},
	downgrades:  {"a write lease beside a reader", [maxRequests]int{0, 1}, together},
	attempts:    {"two upgrades of a lease beside a reader", [maxRequests]int{0, 1, 1}, [maxRequests]int{0, 0, 0, 1}},
	rivals:      {"upgrades of two leases", [maxRequests]int{0, 1, 0, 3}, [maxRequests]int{0, 0, 1, 1}},
}

// withDefaults returns a world with two requests, in two keepers, unless it says more. A conversion is in the keeper of its lease.
func (c config) withDefaults() config {
	if c.requests == 0 {
		c.requests = 2
	}
	if x, found := conversions[c.flags]; found {
		c.origin, c.keeperOf = x.origin, x.keeperOf
	} else if c.keeperOf == [maxRequests]int{} {
		c.keeperOf = apart
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

// unseenWorlds are worlds in which the server does not count subscriptions that it, or a proxy before it, has acknowledged.
var unseenWorlds = []config{
	{requests: 3, keeperOf: around, unseen: [maxKeepers]bool{true, false}, ticks: 1},
	{requests: 3, keeperOf: around, unseen: [maxKeepers]bool{true, false}, ticks: 2},
	{requests: 3, keeperOf: together, unseen: [maxKeepers]bool{true, true}, ticks: 2},
	{requests: 3, keeperOf: together, unseen: [maxKeepers]bool{true, false}, ticks: 2},
	{requests: 3, keeperOf: around, unseen: [maxKeepers]bool{true, true}, ticks: 2, slow: 1},
	{unseen: [maxKeepers]bool{true, false}, ticks: 3, faults: 1, cancels: 1},
}

var permitsUnseen = []config{
	{requests: 3, permits: [maxRequests]int64{2, 2, 1}, keeperOf: around, unseen: [maxKeepers]bool{true, false}, ticks: 2},
	{requests: 3, permits: [maxRequests]int64{1, 2, 1}, keeperOf: together, unseen: [maxKeepers]bool{true, true}, ticks: 2},
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
	{name: "fair", set: lua.Fair, quick: 1, worlds: ordinaryWorlds},
	// Messages do not come: to one of two keepers, and to both.
	{name: "mutex", set: lua.Mutex, worlds: unseenWorlds},
	{name: "fair", set: lua.Fair, quick: 1, worlds: unseenWorlds},
	{name: "rwlock", set: lua.RWLock, flags: readWrite, worlds: unseenWorlds},
	{name: "semaphore", set: lua.Semaphore, flags: heldPermits, worlds: permitsUnseen},
	{name: "rwlock", set: lua.RWLock, flags: readWrite, quick: 1, worlds: ordinaryWorlds},
	// Tries, Close, Extend and Break are the same for all primitives.
	{name: "fair", set: lua.Fair, quick: 1, worlds: []config{
		{tries: second, ticks: 2, faults: 1},
		{ticks: 2, closes: 1, slow: 1},
		{ticks: 1, extends: 1, extendTo: 3000, faults: 1},
		{ticks: 2, extends: 1, extendTo: 3000, slow: 1, renewals: 1},
		{ticks: 1, breaks: 1, faults: 1},
		{requests: 3, keeperOf: together, tries: second, ticks: 1, faults: 1},
		{tries: second, ticks: 3, faults: 1, cancels: 1},
		{requests: 3, keeperOf: together, ticks: 1, closes: 1, slow: 1},
		{ticks: 2, closes: 1, faults: 1},
		{ticks: 2, extends: 1, extendTo: 1000, faults: 1},
		{ticks: 3, extends: 1, extendTo: 3000, slow: 1, renewals: 1},
		{ticks: 2, breaks: 1, faults: 1},
		{ticks: 3, breaks: 1, slow: 1},
	}},
	{name: "convert", set: lua.RWLock, quick: 3, worlds: []config{
		{requests: 3, flags: upgrades, ticks: 1, cancels: 1},
		{requests: 3, flags: upgradesTwo, ticks: 1, cancels: 1},
		{flags: downgrades, ticks: 2, downgrades: 1, faults: 1, cancels: 1},
		{flags: upgradesTwo, ticks: 2, faults: 1, cancels: 1},
		{requests: 3, flags: upgrades, ticks: 2, cancels: 1, slow: 1},
		{requests: 3, flags: upgradesTwo, ticks: 1, faults: 1, cancels: 1},
		{requests: 3, flags: upgradesTwo, ticks: 2, faults: 1, renewals: 1},
		{requests: 3, flags: upgradesTwo, ticks: 2, crashes: 1},
		{requests: 3, flags: upgradesTwo, ticks: 1, closes: 1, slow: 1},
		{requests: 3, flags: upgradesTwo, ticks: 1, breaks: 1},
		{requests: 3, flags: upgradesTwo, unseen: [maxKeepers]bool{true, false}, ticks: 2},
		{flags: upgradesTwo, ticks: 3, faults: 1, slow: 1, cancels: 1, renewals: 1},
		{requests: 3, flags: downgrades, ticks: 1, downgrades: 1, faults: 1},
		{requests: 3, flags: downgrades, ticks: 2, downgrades: 1, slow: 1},
		{flags: downgrades, ticks: 3, downgrades: 1, faults: 1, slow: 1, cancels: 1, renewals: 1},
		{requests: 4, flags: attempts, ticks: 1, cancels: 1},
		{requests: 4, flags: attempts, ticks: 1, downgrades: 1, faults: 1},
		{requests: 4, flags: rivals, ticks: 1, cancels: 1},
	}},
	{name: "semaphore", set: lua.Semaphore, flags: heldPermits, quick: 1, worlds: []config{
		{permits: [maxRequests]int64{1, 2}, ticks: 2, faults: 1},
		{requests: 3, keeperOf: together, permits: [maxRequests]int64{1, 1, 2}, ticks: 1, faults: 1},
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

// String names the bounds.
func (c *config) String() string {
	text := fmt.Sprintf("%d requests, %d ms", c.requests, int64(c.ticks)*tick)
	switch c.unseen {
	case [maxKeepers]bool{true, false}:
		text += ", 1 unseen keeper"
	case [maxKeepers]bool{true, true}:
		text += ", 2 unseen keepers"
	}
	if x, found := conversions[c.flags]; found {
		text = x.name + ", " + text
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
	}{
		{c.faults, "fault"}, {c.slow, "slow reply"}, {c.cancels, "cancel"}, {c.renewals, "renewal"}, {c.crashes, "crash"}, {c.closes, "close"},
		{c.downgrades, "downgrade"}, {c.breaks, "break"},
	} {
		if x.n > 0 {
			text += fmt.Sprintf(", %d %s", x.n, x.what)
		}
	}
	return strings.ReplaceAll(text, " ", "_")
}
