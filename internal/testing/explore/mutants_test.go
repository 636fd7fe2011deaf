package explore

import (
	"flag"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/mutation"
	"github.com/lockkeeper/lockkeeper/lua"
)

// replace returns a change of scripts that replaces a text which occurs in at least one of them.
func replace(t *testing.T, set *lua.Set, old, new string) func(string) string {
	t.Helper()
	found := false
	for _, s := range set.Scripts() {
		found = found || strings.Contains(s.Text, old)
	}
	must.That(t, found, "no script of %s has %q", set.Kind, old)
	return func(text string) string { return strings.ReplaceAll(text, old, new) }
}

// What most deliberate bugs break.
const (
	twoRely    = "both rely on a lease"
	notServed  = "not served in time"
	leftBehind = "the server has a lease or a place of it"
)

var mutated = flag.Bool("mutated", false, "this binary was built with a deliberate bug; see TestSearchFindsDeliberateBugs")

// TestSearchFindsDeliberateBugs: each bug, in a decision or in a script, breaks a promise in a small world. The path is the shortest. A bug
// in a decision is built into the sources of another binary, which then runs this test; without -explore only the sources are checked.
func TestSearchFindsDeliberateBugs(t *testing.T) {
	for bug, x := range map[string]struct {
		config  config
		file    string // with a bug in a decision; "": the bug is in a script
		old     string
		new     string
		problem string
		large   bool // found by make explore only, since it takes many steps
	}{
		"a deadline counts from the reply": {
			config: config{set: lua.Mutex, ticks: 2, slow: 1}, problem: "request 1 and request 2 both rely on a lease",
			file: "internal/claim/request.go",
			old:  "c.grant(r, now, Held, e.Fence, e.Sent, r.TTL, out)",
			new:  "c.grant(r, now, Held, e.Fence, now, r.TTL, out)",
		},
		"a lease that the server does not have stays as it is": {
			config: config{set: lua.Mutex, ticks: 2, renewals: 1}, problem: "is Held, in which NotBroken cannot come",
			file: "internal/claim/lease.go",
			old:  "c.state, c.renewAt = Gone, 0",
			new:  "c.renewAt = 0",
		},
		"a message about an earlier grant counts": {
			config: config{set: lua.Fair, requests: 3, ticks: 3}, problem: twoRely,
			file:  "internal/claim/time.go",
			old:   "return fence > floor && fence <=",
			new:   "return fence <=",
			large: true,
		},
		"the grant to a waiter that does not count on its subscription is undone": {
			config:  config{set: lua.Fair, requests: 3, keeperOf: around, unseen: [maxKeepers]bool{true, false}, ticks: 1},
			problem: notServed, old: "elseif counts then", new: "elseif true then",
		},
		"a waiter that does not count on its subscription is passed over": {
			config:  config{set: lua.Fair, requests: 3, keeperOf: apart, ticks: 1, faults: 1},
			problem: "is passed over", old: "lapse[i] = lapse[i] - UNSUBSCRIBED end",
			new: "lapse[i] = call('ZCARD', queue) > 2 and 0 or lapse[i] - UNSUBSCRIBED end", // if another one waits behind it
		},
		"a renewal counts from its reply": {
			config: config{set: lua.Mutex, tries: two, ticks: 4, extends: 1, extendTo: 3000, slow: 1, renewals: 1}, problem: twoRely,
			file:  "internal/claim/lease.go",
			old:   "		c.prolong(r, e)\n		c.renewAt = 0\n",
			new:   "		e.Sent = now\n		c.prolong(r, e)\n		c.renewAt = 0\n",
			large: true,
		},
		"a heartbeat's grant lasts for a whole ttl": {
			config: config{set: lua.Fair, requests: 3, ticks: 3, slow: 1}, problem: twoRely,
			file:  "internal/claim/request.go",
			old:   "c.grant(r, now, Unconfirmed, e.Fence, e.Sent, e.TTL, out)",
			new:   "c.grant(r, now, Unconfirmed, e.Fence, e.Sent, r.TTL, out)",
			large: true,
		},
		"a reply that comes too late ends the request's efforts": {
			config: config{set: lua.Mutex, ticks: 2, slow: 1}, problem: notServed,
			file: "internal/claim/request.go",
			old:  "		} else {\n			c.ask(true, out)\n		}\n	case Queued:",
			new:  "		}\n	case Queued:",
		},
		"a token is not tombstoned though a copy is under way": {
			config: config{set: lua.Fair, ticks: 1, cancels: 1}, problem: leftBehind,
			file: "internal/claim/copies.go",
			old:  "return t.presence() == inDoubt",
			new:  "return false",
		},
		"a call under way leaves nothing": {
			config: config{set: lua.Fair, ticks: 1, cancels: 1}, problem: leftBehind,
			file: "internal/claim/copies.go",
			old:  "if t.inFlight > 0 {",
			new:  "if t.inFlight > 1 {",
		},
		"tombstones are ignored": {
			config: config{set: lua.Fair, ticks: 1, cancels: 1}, problem: leftBehind,
			old: "if is_tombstoned(run, token) then\ncall('ZREM', queue, '')",
			new: "if false then",
		},
		"a release does not check the owner": {
			config: config{set: lua.Mutex, requests: 3, ticks: 2}, problem: twoRely,
			old: "if owner == token then\ncall('DEL', lock)",
			new: "if owner then\ncall('DEL', lock)",
		},
		"a renewal restores a lease that has ended": {
			config: config{set: lua.Mutex, ticks: 3, renewals: 1, slow: 1}, problem: leftBehind,
			old: "if owner ~= ARGV[1] then",
			new: "if owner ~= ARGV[1] and not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) then",
		},
		"a waiter is removed without being told": {
			config: config{set: lua.Fair, ticks: 3}, problem: notServed,
			old: "report(index, UNKNOWN, 0, 0)",
			new: "",
		},
		"a heartbeat admits nobody": {
			config: config{set: lua.Fair, ticks: 1, crashes: 1}, problem: notServed,
			old: "reply[5] = admit(run)",
			new: "",
		},
		"a claim is shorter than its message says": {
			config: config{set: lua.Fair, ticks: 3, slow: 1}, problem: twoRely,
			old: "local fence = write_grant(run, token, ms, flags, number)",
			new: "local fence = write_grant(run, token, ms / 2, flags, number)",
		},
		"a writer is granted beside readers": {
			config: config{set: lua.RWLock, ticks: 1, flags: readWrite}, problem: twoRely,
			old: "string.sub(flags, 1, 1), not run.holder\n",
			new: "string.sub(flags, 1, 1), not run.writer_holds\n",
		},
		"an upgrade is granted beside another reader": {
			config: config{set: lua.RWLock, requests: 3, flags: upgradesTwo, ticks: 1}, problem: twoRely,
			old: "if not run.sole then return nil end\n",
			new: "",
		},
		"an earlier attempt to upgrade is granted": {
			config: config{set: lua.RWLock, requests: 4, flags: attempts, ticks: 1, cancels: 1}, problem: twoRely,
			old: "(tonumber(later) or 0) > (tonumber(number) or 0)",
			new: "false",
		},
		"an earlier attempt that was given up makes the lease read": {
			config: config{set: lua.RWLock, requests: 4, flags: attempts, ticks: 1, cancels: 1}, problem: twoRely,
			old: "if last == token and writes(origin, at)",
			new: "if last and writes(origin, at)",
		},
		"an upgrade that was given up leaves its lease writing": {
			config: config{set: lua.RWLock, flags: upgradesTwo, ticks: 1, cancels: 1}, problem: leftBehind,
			old: "if origin then mark(run, origin, ends, false) end",
			new: "",
		},
		"an upgrade that was granted and is given up is not tombstoned": {
			config: config{set: lua.RWLock, flags: upgradesTwo, ticks: 1, faults: 1, cancels: 1}, problem: leftBehind,
			file: "internal/claim/lease.go",
			old:  "c.release(e.Unused, c.copies.needTombstone(), until",
			new:  "c.release(e.Unused, false, until",
		},
		"a renewal makes a lease read that was upgraded": {
			config: config{set: lua.RWLock, requests: 3, flags: upgradesTwo, ticks: 1, renewals: 1}, problem: twoRely,
			old: "now + ttl - at % 1, token)",
			new: "now + ttl, token)",
		},
		"a renewal that is answered too late prolongs the lease": {
			config: config{set: lua.RWLock, requests: 3, flags: upgradesTwo, ticks: 2, faults: 1, renewals: 1}, problem: twoRely,
			file:  "internal/claim/lease.go",
			old:   "e.Code == Granted && now >= c.deadline: // the",
			new:   "e.Code == Granted && now < 0: // the",
			large: true,
		},
		"a break makes a lease read that was upgraded": {
			config: config{set: lua.RWLock, requests: 3, flags: upgradesTwo, ticks: 1, breaks: 1}, problem: twoRely,
			old: "if cancel == '1' then origin",
			new: "if true then origin",
		},
		"a late downgrade is not refused": {
			config: config{set: lua.RWLock, requests: 3, flags: downgrades, ticks: 1, downgrades: 1, faults: 1}, problem: twoRely,
			old: "if not at or writes(token, at) and (lease_fence(token) or 0) > fence then",
			new: "if not at then",
		},
		"an upgrade of a lease that writes still leaves its fence": {
			config: config{set: lua.RWLock, requests: 3, flags: downgrades, ticks: 1, downgrades: 1, faults: 1}, problem: twoRely,
			old: "return GRANTED, convert(run, origin, at, true)",
			new: "return GRANTED, writes(origin, at) and lease_fence(origin) or convert(run, origin, at, true)",
		},
		"a downgrade does not tombstone the upgrade": {
			config: config{set: lua.RWLock, flags: upgradesTwo, ticks: 1, downgrades: 1, faults: 1}, problem: leftBehind,
			old: "if upgrade ~= '' then write_tombstone(run, upgrade, tonumber(tombstone)) end",
			new: "",
		},
		"a holder relies on writing after its downgrade was sent": {
			config: config{set: lua.RWLock, requests: 3, flags: downgrades, ticks: 1, downgrades: 1}, problem: twoRely,
			file: "internal/testing/explore/convert.go",
			old:  "	q.converted = !q.converted\n	q.downgrade",
			new:  "	q.downgrade",
		},
		"an Extend to less shortens the lease": {
			config: config{set: lua.Fair, ticks: 2, extends: 1, extendTo: 1000, slow: 1}, problem: twoRely,
			old: "extend_expiry(lock, ttl)", new: "call('PEXPIRE', lock, ttl)",
		},
		"an Extend counts from its reply": {
			config: config{set: lua.Fair, ticks: 3, extends: 1, extendTo: 3000, slow: 1}, problem: twoRely,
			file: "internal/claim/lease.go",
			old:  "		c.prolong(r, e)\n		c.scheduleRenewal",
			new:  "		e.Sent = now\n		c.prolong(r, e)\n		c.scheduleRenewal",
		},
		"a closed keeper leaves who waits in the queue": {
			config: config{set: lua.Fair, ticks: 1, closes: 1}, problem: notServed,
			file: "internal/claim/request.go",
			old:  "	case Closed:\n		c.fail(r, now, ByClose, out)\n",
			new:  "	case Closed:\n",
		},
		"a request that was broken is not tombstoned": {
			config: config{set: lua.Fair, ticks: 1, breaks: 1, faults: 1}, problem: "was broken, but",
			old: "write_tombstone(run, token, tombstone)\ncall('ZADD', tombstones, now + tombstone, token .. ' ' .. notice)",
			new: "",
		},
		"a waiter that joins the queue sends no heartbeat": {
			config: config{set: lua.Fair, ticks: 2, faults: 1}, problem: notServed,
			file: "internal/queue/queue.go",
			old:  "	q.waiters++\n	q.wake(next(r, now, retryIn, more), out)\n",
			new:  "	q.waiters++\n",
		},
		"a heartbeat that was answered is taken for one under way": {
			config: config{set: lua.Fair, ticks: 2, faults: 1}, problem: notServed,
			file: "internal/queue/queue.go",
			old:  "	q.inFlight--\n	switch {\n",
			new:  "	switch {\n",
		},
		"a heartbeat that failed is taken for one under way": {
			config: config{set: lua.Fair, ticks: 2, faults: 1}, problem: notServed,
			file: "internal/queue/queue.go",
			old:  "	q.inFlight--\n	if !q.failing {\n",
			new:  "	if !q.failing {\n",
		},
	} {
		if x.large && !*large && !*mutated {
			continue
		}
		name := strings.ReplaceAll(bug, " ", "_")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if x.file != "" && !*mutated {
				mutant := mutation.Mutant{File: x.file, Old: x.old, New: x.new}
				if mutant.Source(t, "../../.."); *large {
					findInBinary(t, mutant.Build(t, "../../.."), name)
				}
				return
			}
			c := x.config.withDefaults()
			if x.file == "" {
				c.change = replace(t, c.set, x.old, x.new)
			}
			limit := 500_000
			if x.large {
				limit *= 10
			}
			r := searched(t, &c, limit)
			must.That(t, strings.Contains(r.problem, x.problem) && r.problem != "",
				"%d states, ended: %v, problem: %q", r.states, r.ended, r.problem)
			t.Logf("after %d states: %s\n%s", r.states, r.problem, strings.Join(r.path, "\n"))
		})
	}
}

// findInBinary runs the test of that name in a binary that was built with its bug.
func findInBinary(t *testing.T, binary, name string) {
	t.Helper()
	out, err := exec.Command(binary, "-test.run=^TestSearchFindsDeliberateBugs$/^"+regexp.QuoteMeta(name)+"$", "-test.v", "-mutated").CombinedOutput()
	must.That(t, err == nil, "%v:\n%s", err, out)
	t.Logf("%s", out)
}
