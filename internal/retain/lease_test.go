package retain

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

const (
	ms                   = time.Millisecond
	start  claim.Instant = 1e12
	leased               = 5 * time.Second // the ttl
)

// world is a lease and who is inside, at some time.
type world struct {
	Lease
	hold  *Hold
	now   claim.Instant
	epoch atomic.Uint64
	sent  Renewal // the last renewal
	ok    bool    // what the last step has returned
}

func newWorld(kind Kind) *world {
	w := &world{Lease: NewLease(kind), now: start}
	w.epoch.Store(1)
	w.hold = New(time.Now().Add(-time.Duration(start)), &w.epoch)
	return w
}

func (w *world) certain() { w.hold.SetDeadline(w.hold.base.Add(time.Duration(w.now.Add(leased)))) }

// step is something that happens.
type step func(w *world, out *Effects)

var (
	granted = func(w *world, _ *Effects) {
		w.certain()
		w.ok = w.Granted(w.hold, false)
	}
	grantedLate = func(w *world, _ *Effects) { w.ok = w.Granted(w.hold, true) } // by way of the queue
	notGranted  = func(w *world, out *Effects) { w.NotGranted(out) }
	recall      = func(w *world, out *Effects) { w.Lease.GiveBack(w.hold, w.now, true, out) }
	giveBack    = func(w *world, out *Effects) { w.Lease.GiveBack(w.hold, w.now, false, out) }
	lost        = func(w *world, out *Effects) { w.hold.End(); w.Ended(w.hold, w.now, out) }
	enter       = func(w *world, out *Effects) {
		settle := false
		if w.kind != Reads {
			entry := w.hold.EnterAlone()
			if w.ok = entry == Entered; entry != Closed {
				return
			}
		} else if w.ok, settle = w.hold.Enter(); w.ok {
			return
		}
		w.TurnedAway(w.hold, w.now, settle, out)
	}
	leave      = func(w *world, out *Effects) { w.Leave(w.hold, w.now, out) }
	stays      = func(w *world, _ *Effects) { w.ok, _ = w.hold.LeaveAlone() }
	pass       = func(w *world, out *Effects) { w.Left(w.hold, w.now, false, out) }
	await      = func(w *world, _ *Effects) { w.ok = w.AwaitTurn(w.hold) }
	cancel     = func(w *world, out *Effects) { w.ok = w.EndTurn(w.hold, w.now, false, out) }
	take       = func(w *world, out *Effects) { w.ok = w.EndTurn(w.hold, w.now, true, out) }
	upgrading  = func(w *world, out *Effects) { w.ok = w.Upgrade(w.hold, w.now, out) }
	isAlone    = func(w *world, out *Effects) { w.ok = w.Alone(w.hold, w.now, out) }
	detach     = func(w *world, out *Effects) { w.Detach(out) }
	noUpgrades = func(w *world, _ *Effects) { w.EndUpgrade() }
	due        = func(w *world, out *Effects) { w.ok = w.Due(w.hold, w.now, leased, out) }
	renew      = func(w *world, _ *Effects) { w.sent = w.Renewal(w.hold, false); w.ok = w.sent.Ask }
	renewed    = func(w *world, out *Effects) {
		w.certain()
		w.Renewed(w.hold, w.now, w.sent, false, out)
	}
	recallFound = func(w *world, out *Effects) { w.Renewed(w.hold, w.now, w.sent, true, out) }
	refusedKeys = func(w *world, out *Effects) { w.RenewalRefused(w.hold, w.now, w.sent, out) }
	subscribed  = func(w *world, _ *Effects) { w.epoch.Add(1) }
	comer       = func(w *world, _ *Effects) { w.hold.word.Store(uint64(word(w.hold.word.Load()).enter())) } // is about to find the gate closed
	turnedAway  = func(w *world, out *Effects) { w.ok = false; w.TurnedAway(w.hold, w.now, w.hold.Leave(), out) }
)

func wait(d time.Duration) step {
	return func(w *world, _ *Effects) { w.now, w.hold.base = w.now.Add(d), w.hold.base.Add(-d) }
}

type expected struct {
	name string
	does step
	ok   bool // what it returns; of others, that of the step before
	want Effects
}

func TestLease(t *testing.T) {
	var (
		released = Effects{Release: true, GaveBack: true, Forget: true}
		recalled = Effects{Release: true, GaveBack: true, Forget: true, Recalled: true}
		after    = func(d time.Duration) Effects { e := recalled; e.Took = d; return e }
		none     Effects
	)
	for _, c := range []struct {
		name   string
		kind   Kind
		steps  []expected
		state  State
		inside int
	}{
		{"readers share it until a recall", Reads, []expected{
			{"granted", granted, true, none},
			{"enter", enter, true, none},
			{"leave", leave, true, none},
			{"leave", leave, true, none},
			{"enter", enter, true, none},
			{"recall", recall, true, none},
			{"enter", enter, false, none},
			{"pause", wait(7 * ms), false, none},
			{"recall again", recall, false, none},
			{"leave", leave, false, after(7 * ms)},
			{"recall again", recall, false, none},
		}, Over, 0},
		{"recalled with nobody inside", Reads, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"recall", recall, true, recalled},
		}, Over, 0},
		{"given back, and then recalled", Reads, []expected{
			{"granted", granted, true, none},
			{"give back", giveBack, true, none},
			{"pause", wait(ms), true, none},
			{"recall", recall, true, none},
			{"pause", wait(ms), true, none},
			{"leave", leave, true, after(ms)},
		}, Over, 0},
		{"given back for another reason", Reads, []expected{
			{"granted", granted, true, none},
			{"give back", giveBack, true, none},
			{"leave", leave, true, released},
		}, Over, 0},
		{"recalled before its grant is known", Reads, []expected{
			{"recall", recall, false, none},
			{"pause", wait(ms), false, none},
			{"granted", granted, false, none},
			{"enter", enter, false, none},
			{"leave", leave, false, after(ms)},
		}, Over, 0},
		{"lost before its grant is known", Reads, []expected{
			{"lost", lost, false, Effects{Forget: true}},
			{"granted", granted, false, none},
			{"leave", leave, false, Effects{Release: true, GaveBack: true}},
		}, Over, 0},
		{"not granted", Reads, []expected{
			{"not granted", notGranted, false, Effects{Forget: true}},
			{"recall", recall, false, none},
			{"give back", giveBack, false, none},
		}, Over, 0},
		{"lost with readers inside", Reads, []expected{
			{"granted", granted, true, none},
			{"enter", enter, true, none},
			{"lost", lost, true, Effects{Forget: true}},
			{"leave", leave, true, none},
			{"leave", leave, true, Effects{Release: true, GaveBack: true}},
		}, Over, 0},
		{"lost with nobody inside", Reads, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"lost", lost, true, released},
		}, Over, 0},
		{"the last to leave is one that was turned away", Reads, []expected{
			{"granted", granted, true, none},
			{"another comes", comer, true, none},
			{"recall", recall, true, none},
			{"leave", leave, true, none},
			{"it is turned away", turnedAway, false, recalled},
		}, Over, 0},
		{"no grants after its deadline", Reads, []expected{
			{"granted", granted, true, none},
			{"pause", wait(leased), true, none},
			{"enter", enter, false, none},
		}, Shared, 1},

		{"a renewal confirms the subscription at which it was sent", Reads, []expected{
			{"granted", granted, true, none},
			{"the subscription is lost", subscribed, true, none},
			{"renew", renew, true, none},
			{"there is another one", subscribed, true, none},
			{"renewed", renewed, true, none},
			{"enter", enter, false, none},
			{"renew", renew, true, none},
			{"renewed", renewed, true, none},
			{"enter", enter, true, none},
		}, Shared, 2},
		{"a renewal of another subscription does not confirm the one of now", Reads, []expected{
			{"granted", granted, true, none},
			{"renew", renew, true, none},
			{"the subscription is lost", subscribed, true, none},
			{"there is another one", subscribed, true, none},
			{"renewed", renewed, true, none},
			{"enter", enter, false, none},
		}, Shared, 1},
		{"a recall found by a renewal", Reads, []expected{
			{"granted", granted, true, none},
			{"renew", renew, true, none},
			{"found", recallFound, true, Effects{ExpectRecall: true}},
			{"found again", recallFound, true, none},
			{"leave", leave, true, recalled},
		}, Over, 0},
		{"a recall found with nobody inside", Reads, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"renew", renew, true, none},
			{"found", recallFound, true, Effects{ExpectRecall: true, Release: true, GaveBack: true, Forget: true, Recalled: true}},
		}, Over, 0},
		{"a recall found whose message has come", Reads, []expected{
			{"granted", granted, true, none},
			{"renew", renew, true, none},
			{"recall", recall, true, none},
			{"found", recallFound, true, none},
		}, Shared, 1},
		{"a recall found after the lease is given back", Reads, []expected{
			{"granted", granted, true, none},
			{"renew", renew, true, none},
			{"give back", giveBack, true, none},
			{"found", recallFound, true, none},
			{"leave", leave, true, recalled},
		}, Over, 0},
		{"a recall found after the end", Reads, []expected{
			{"renew", renew, true, none},
			{"not granted", notGranted, true, Effects{Forget: true}},
			{"found", recallFound, true, none},
		}, Over, 0},
		{"unused for its ttl", Reads, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"due", due, false, Effects{Used: true, Uses: 1}},
			{"pause", wait(leased - 1), false, none},
			{"due", due, false, none},
			{"pause", wait(1), false, none},
			{"due", due, true, none},
		}, Shared, 0},
		{"used since", Reads, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"due", due, false, Effects{Used: true, Uses: 1}},
			{"pause", wait(leased - 1), false, none},
			{"enter", enter, true, none},
			{"leave", leave, true, none},
			{"pause", wait(1), true, none},
			{"due", due, false, Effects{Used: true, Uses: 1}},
			{"pause", wait(leased - 1), false, none},
			{"due", due, false, none},
		}, Shared, 0},
		{"a reader inside is a use", Reads, []expected{
			{"granted", granted, true, none},
			{"due", due, false, Effects{Used: true, Uses: 1}},
			{"pause", wait(leased), false, none},
			{"due", due, false, Effects{Used: true}},
		}, Shared, 1},
		{"the first time that it is due is a use", Reads, []expected{
			{"pause", wait(leased), false, none},
			{"due", due, false, Effects{Used: true}},
		}, Asking, 0},
		{"renewals ask although it is closing", Reads, []expected{
			{"granted", granted, true, none},
			{"give back", giveBack, true, none},
			{"renew", renew, true, none},
		}, Shared, 1},

		{"an upgrade waits until the others have left", Reads, []expected{
			{"granted", granted, true, none},
			{"enter", enter, true, none},
			{"enter", enter, true, none},
			{"upgrade", upgrading, true, none},
			{"another upgrade", upgrading, false, none},
			{"enter", enter, false, none},
			{"leave", leave, false, none},
			{"leave", leave, false, Effects{Alone: true}},
			{"alone", isAlone, true, none},
			{"detach", detach, true, Effects{GaveBack: true, Forget: true}},
			{"recall", recall, true, none},
			{"lost", lost, true, none},
			{"leave", leave, true, none},
		}, Detached, 0},
		{"an upgrade alone", Reads, []expected{
			{"granted", granted, true, none},
			{"upgrade", upgrading, true, Effects{Alone: true}},
			{"another upgrade", upgrading, false, none},
			{"alone", isAlone, true, none},
			{"detach", detach, true, Effects{GaveBack: true, Forget: true}},
			{"another upgrade, of one that has left", upgrading, false, none},
		}, Detached, 1},
		{"an upgrade, and one about to be turned away", Reads, []expected{
			{"granted", granted, true, none},
			{"upgrade", upgrading, true, Effects{Alone: true}},
			{"another comes", comer, true, none},
			{"alone", isAlone, false, none},
			{"it is turned away", turnedAway, false, Effects{Alone: true}},
			{"alone", isAlone, true, none},
		}, Shared, 1},
		{"an upgrade is given up", Reads, []expected{
			{"granted", granted, true, none},
			{"enter", enter, true, none},
			{"upgrade", upgrading, true, none},
			{"given up", noUpgrades, true, none},
			{"leave", leave, true, none},
			{"upgrade", upgrading, true, Effects{Alone: true}},
			{"given up", noUpgrades, true, none},
			{"leave", leave, true, released},
		}, Over, 0},
		{"an upgrade whose caller has released", Reads, []expected{
			{"granted", granted, true, none},
			{"enter", enter, true, none},
			{"upgrade", upgrading, true, none},
			{"leave", leave, true, Effects{Alone: true}},
			{"leave", leave, true, released},
		}, Over, 0},
		{"an upgrade of a lease that is lost", Reads, []expected{
			{"granted", granted, true, none},
			{"enter", enter, true, none},
			{"upgrade", upgrading, true, none},
			{"lost", lost, true, Effects{Alone: true, Forget: true}},
		}, Shared, 2},
		{"a detached lease is not unused", Reads, []expected{
			{"granted", granted, true, none},
			{"upgrade", upgrading, true, Effects{Alone: true}},
			{"detach", detach, true, Effects{GaveBack: true, Forget: true}},
			{"leave", leave, true, none},
			{"pause", wait(2 * leased), true, none},
			{"due", due, false, none},
		}, Detached, 0},

		{"a turn is passed on", Turns, []expected{
			{"granted", granted, true, none},
			{"enter", enter, false, none},
			{"due", due, false, Effects{Used: true, Uses: 1}},
			{"await", await, true, none},
			{"leave", leave, true, Effects{TurnEnded: true}},
			{"enter", enter, false, none},
			{"take", take, true, none},
			{"due", due, false, Effects{Used: true, Uses: 1}},
			{"leave", leave, false, none},
			{"enter", enter, true, none},
		}, Shared, 1},
		{"a caller gives up", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"cancel", cancel, false, none},
			{"leave", leave, false, none},
			{"enter", enter, true, none},
			{"recall", recall, true, none}, // it is not told
		}, Shared, 1},
		{"a caller gives up as the one inside is about to pass the turn on", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"leave, without the mutex", stays, false, none},
			{"cancel", cancel, false, none},
			{"leave, with the mutex", pass, false, none},
			{"enter", enter, true, none},
		}, Shared, 1},
		{"a caller gives up as it is granted its turn", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"leave", leave, true, Effects{TurnEnded: true}},
			{"cancel", cancel, false, none},
			{"enter", enter, true, none},
		}, Shared, 1},
		{"a caller gives up as it is granted its turn, which is recalled", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"leave", leave, true, Effects{TurnEnded: true}},
			{"recall", recall, true, none},
			{"cancel", cancel, false, recalled},
		}, Over, 0},
		{"a caller gives up as its turn is refused", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"recall", recall, true, Effects{TurnEnded: true}},
			{"cancel", cancel, false, none},
			{"leave", leave, false, recalled},
		}, Over, 0},
		{"a recall ends the wait for a turn", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"recall", recall, true, Effects{TurnEnded: true}},
			{"recall again", recall, true, none},
			{"take", take, false, none},
			{"await", await, false, none},
			{"leave", leave, false, recalled},
		}, Over, 0},
		{"a loss ends the wait for a turn", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"lost", lost, true, Effects{TurnEnded: true, Forget: true}},
			{"take", take, false, none},
			{"leave", leave, false, Effects{Release: true, GaveBack: true}},
		}, Over, 0},
		{"no turn to wait for", Turns, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"await", await, false, none},
			{"enter", enter, true, none},
		}, Shared, 1},
		{"no turn is passed on after the deadline", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"pause", wait(leased), true, none},
			{"leave", leave, true, Effects{TurnEnded: true, Release: true, GaveBack: true, Forget: true}},
			{"take", take, false, none},
		}, Over, 0},
		{"no turn is passed on without a subscription", Turns, []expected{
			{"granted", granted, true, none},
			{"await", await, true, none},
			{"the subscription is lost", subscribed, true, none},
			{"leave", leave, true, Effects{TurnEnded: true, Release: true, GaveBack: true, Forget: true}},
			{"take", take, false, none},
		}, Over, 0},
		{"who finds it closed to turns gives it back", Turns, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"the subscription is lost", subscribed, true, none},
			{"enter", enter, false, released},
		}, Over, 0},
		{"it is not retained for turns if others may wait", Turns, []expected{
			{"granted by way of the queue", grantedLate, false, none},
			{"enter", enter, false, none},
			{"leave", leave, false, released},
		}, Over, 0},
		{"reads are retained all the same", Reads, []expected{
			{"granted by way of the queue", grantedLate, true, none},
		}, Shared, 1},
		{"renewals for turns ask until it is given back", Turns, []expected{
			{"granted", granted, true, none},
			{"renew", renew, true, none},
			{"give back", giveBack, true, none},
			{"renew", renew, false, none},
			{"found", recallFound, false, none},
			{"leave", leave, false, released},
		}, Over, 0},
		{"two keys are refused", Turns, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"renew", renew, true, none},
			{"refused", refusedKeys, true, released},
		}, Over, 0},
		{"two keys are refused after it is given back", Turns, []expected{
			{"granted", granted, true, none},
			{"give back", giveBack, true, none},
			{"renew", renew, false, none},
			{"refused", refusedKeys, false, none},
		}, Shared, 1},
		{"one key is refused", Reads, []expected{
			{"granted", granted, true, none},
			{"leave", leave, true, none},
			{"renew", renew, true, none},
			{"refused", refusedKeys, true, none},
		}, Shared, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the clock stands still
				w := newWorld(c.kind)
				for i, s := range c.steps {
					var out Effects
					if s.does(w, &out); out != s.want || w.ok != s.ok {
						t.Errorf("%d, %s: %v %+v, want %v %+v", i, s.name, w.ok, out, s.ok, s.want)
					}
				}
				if w.State() != c.state || w.hold.Inside() != c.inside {
					t.Errorf("in the end: state %d with %d inside, want %d with %d", w.State(), w.hold.Inside(), c.state, c.inside)
				}
			})
		})
	}
}

// leaving is a Gate that others leave while it is looked at.
type leaving struct {
	*Hold
	inside int
}

func (g *leaving) Inside() int { g.inside--; return g.inside }

// TestLastLeavesAsTheUpgradeLooks checks that the caller of an upgrade is told to look again if the last of the others leaves between its
// look and its new wait.
func TestLastLeavesAsTheUpgradeLooks(t *testing.T) {
	w := newWorld(Reads)
	for _, s := range []step{granted, enter, upgrading, leave} {
		s(w, &Effects{})
	}
	var out Effects
	if w.Alone(&leaving{w.hold, 3}, w.now, &out) || !out.Alone {
		t.Errorf("the upgrade waits for ever: %+v", out)
	}
}

// TestStatesAndEvents checks for every event, in every state, which state comes next.
func TestStatesAndEvents(t *testing.T) {
	const (
		a = Asking
		s = Shared
		d = Detached
		o = Over
		x = states // cannot happen
	)
	for _, c := range []struct {
		event string
		does  step
		// From Asking, Shared with two inside, Shared with one, Shared with none, Detached and Over.
		next [6]State
	}{
		{"granted", granted, [...]State{s, x, x, x, x, x}},
		{"not granted", notGranted, [...]State{o, x, x, x, x, x}},
		{"recall", recall, [...]State{a, s, s, o, d, o}},
		{"given back", giveBack, [...]State{a, s, s, o, d, o}},
		{"lost", lost, [...]State{a, s, s, o, d, o}},
		{"enter", enter, [...]State{a, s, s, s, d, o}},
		{"leave", leave, [...]State{x, s, s, x, d, x}},
		{"upgrade", upgrading, [...]State{x, s, s, x, d, x}},
		{"renewal due", due, [...]State{a, s, s, s, d, o}},
		{"renewed", renewed, [...]State{a, s, s, s, d, o}},
		{"renewed, recalled", recallFound, [...]State{a, s, s, o, d, o}},
		{"subscription changed", subscribed, [...]State{a, s, s, s, d, o}},
	} {
		for i, from := range []struct {
			name  string
			steps []step
		}{
			{"asking", nil},
			{"shared by two", []step{granted, enter}},
			{"with one inside", []step{granted}},
			{"with none inside", []step{granted, leave}},
			{"detached", []step{granted, upgrading, detach}},
			{"over", []step{granted, giveBack, leave}},
		} {
			if c.next[i] == x {
				continue
			}
			w := newWorld(Reads)
			for _, s := range append(from.steps, renew) {
				s(w, &Effects{})
			}
			was := w.State()
			var out Effects
			if c.does(w, &out); w.State() != c.next[i] {
				t.Errorf("%s, %s: state %d, want %d", from.name, c.event, w.State(), c.next[i])
			}
			if ends := was == Shared && w.State() == Over; out.Release != ends {
				t.Errorf("%s, %s: release %v", from.name, c.event, out.Release)
			}
		}
	}
}

// TestValue checks that a hold that is made of a value is what that was, and that the number of uses does not make two values differ, which
// would give the search more to do.
func TestValue(t *testing.T) {
	w := newWorld(Reads)
	granted(w, nil)
	once := w.hold.Value()
	for _, s := range []step{enter, leave, enter, leave} {
		s(w, &Effects{})
		v := w.hold.Value()
		if w.hold.Inside() == 1 && v != once {
			t.Errorf("%+v and %+v differ", v, once)
		}
		if again := v.Hold(w.hold.base, &w.epoch).Value(); again != v {
			t.Errorf("%+v became %+v", v, again)
		}
	}
}

func TestName(t *testing.T) {
	const soon, later = start + claim.Instant(21*ms), start + claim.Instant(27*ms)
	for _, c := range []struct {
		name string
		does func(n *Name)
		at   claim.Instant
		want bool
	}{
		{"a name that was never used", func(*Name) {}, start, true},
		{"a lease is retained", (*Name).Held, start, false},
		{"it was given back", func(n *Name) { n.Held(); n.GaveBack(start, &Lease{}, 1, 0.5); n.Free() }, start, true},
		{"another name has taken its place", (*Name).Evict, start, false},
		{"recalled just now", func(n *Name) { n.GaveBack(start, &Lease{recalled: true, recalledAt: start}, 100, 0.5) }, soon, false},
		{"recalled before", func(n *Name) { n.GaveBack(start, &Lease{recalled: true, recalledAt: start}, 100, 0.5) }, later, true},
		{"recalled, and released long after", func(n *Name) {
			n.GaveBack(start, &Lease{recalled: true, recalledAt: start - claim.Instant(10*ms)}, 100, 0.5)
		}, start + claim.Instant(89*ms), false},
		{"recalled with fewer than 20 uses", func(n *Name) { n.GaveBack(start, &Lease{recalled: true, recalledAt: start}, 15, 0.5) }, later, false},
		{"others waited already", func(n *Name) { n.GaveBack(start, &Lease{contended: true}, 100, 0.5) }, soon, false},
		{"others waited before", func(n *Name) { n.GaveBack(start, &Lease{contended: true}, 100, 0.5) }, later, true},
	} {
		var n Name
		c.does(&n)
		if got := n.Wants(c.at); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	var n Name
	n.GaveBack(start, &Lease{recalled: true, recalledAt: start}, 0, 0.5)
	for i := range 20 { // what asks the server counts
		if i > 18 != n.Wants(later) {
			t.Errorf("after %d requests", i)
		}
	}
}
