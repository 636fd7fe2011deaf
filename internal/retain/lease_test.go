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
	ok    bool    // the last step was not refused
}

func newWorld(kind Kind) *world {
	w := &world{Lease: NewLease(kind), now: start}
	w.epoch.Store(1)
	w.hold = New(time.Now().Add(-time.Duration(start)), &w.epoch)
	return w
}

func (w *world) certain() { w.hold.SetDeadline(w.hold.base.Add(time.Duration(w.now.Add(leased)))) }

// step is something that happens, and what comes of it.
type step struct {
	name  string
	does  func(w *world, out *Effects)
	wants Effects
	not   bool // what it wants is refused
}

func (s step) gives(e Effects) step {
	s.wants = e
	return s
}

func (s step) fails() step {
	s.not = true
	return s
}

func stepOf(name string, does func(w *world, out *Effects)) step { return step{name: name, does: does} }

var (
	granted = stepOf("granted", func(w *world, _ *Effects) {
		w.certain()
		w.ok = w.Granted(w.hold, false)
	})
	grantedLate = stepOf("granted by way of the queue", func(w *world, _ *Effects) { w.ok = w.Granted(w.hold, true) })
	notGranted  = stepOf("not granted", func(w *world, out *Effects) { w.NotGranted(out) })
	recall      = stepOf("recall", func(w *world, out *Effects) { w.Lease.GiveBack(w.hold, w.now, true, out) })
	giveBack    = stepOf("give back", func(w *world, out *Effects) { w.Lease.GiveBack(w.hold, w.now, false, out) })
	lost        = stepOf("lost", func(w *world, out *Effects) { w.hold.End(); w.Ended(w.hold, w.now, out) })
	enter       = stepOf("enter", func(w *world, out *Effects) {
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
	})
	leave = stepOf("leave", func(w *world, out *Effects) { w.Leave(w.hold, w.now, out) })
	stays = stepOf("leave without the mutex, which another wants", func(w *world, _ *Effects) {
		left, _ := w.hold.LeaveAlone()
		w.ok = !left
	})
	pass       = stepOf("leave with the mutex", func(w *world, out *Effects) { w.Left(w.hold, w.now, false, out) })
	await      = stepOf("await a turn", func(w *world, _ *Effects) { w.ok = w.AwaitTurn(w.hold) })
	cancel     = stepOf("give up the turn", func(w *world, out *Effects) { w.ok = !w.EndTurn(w.hold, w.now, false, out) })
	take       = stepOf("take the turn", func(w *world, out *Effects) { w.ok = w.EndTurn(w.hold, w.now, true, out) })
	upgrading  = stepOf("upgrade", func(w *world, out *Effects) { w.ok = w.Upgrade(w.hold, w.now, out) })
	isAlone    = stepOf("alone", func(w *world, out *Effects) { w.ok = w.Alone(w.hold, w.now, out) })
	detach     = stepOf("detach", func(w *world, out *Effects) { w.Detach(out) })
	noUpgrades = stepOf("upgrade given up", func(w *world, _ *Effects) { w.EndUpgrade() })
	due        = stepOf("due, and used", func(w *world, out *Effects) { w.ok = !w.Due(w.hold, w.now, leased, out) })
	renew      = stepOf("renewal that asks for a recall", func(w *world, _ *Effects) {
		w.sent = w.Renewal(w.hold, false)
		w.ok = w.sent.Ask
	})
	renewed = stepOf("renewed", func(w *world, out *Effects) {
		w.certain()
		w.Renewed(w.hold, w.now, w.sent, false, out)
	})
	recallFound = stepOf("renewed, recalled", func(w *world, out *Effects) { w.Renewed(w.hold, w.now, w.sent, true, out) })
	refusedKeys = stepOf("two keys refused", func(w *world, out *Effects) { w.RenewalRefused(w.hold, w.now, w.sent, out) })
	subscribed  = stepOf("subscription lost, or another one", func(w *world, _ *Effects) { w.epoch.Add(1) })
	comer       = stepOf("another is about to find the gate closed", func(w *world, _ *Effects) {
		w.hold.word.Store(w.hold.word.Load() + uint64(use+1))
	})
	turnedAway = stepOf("it is turned away", func(w *world, out *Effects) { w.TurnedAway(w.hold, w.now, w.hold.Leave(), out) })
)

func wait(d time.Duration) step {
	return stepOf("pause", func(w *world, _ *Effects) { w.now, w.hold.base = w.now.Add(d), w.hold.base.Add(-d) })
}

func TestLease(t *testing.T) {
	var (
		released         = Effects{Release: true, GaveBack: true, Forget: true}
		recalled         = Effects{Release: true, GaveBack: true, Forget: true, Recalled: true}
		after            = func(d time.Duration) Effects { e := recalled; e.Took = d; return e }
		releases         = Effects{Release: true, GaveBack: true} // another may be retained already
		forgets          = Effects{Forget: true}
		detaches         = Effects{GaveBack: true, Forget: true}
		tellsAlone       = Effects{Alone: true}
		usedOnce         = Effects{Used: true, Uses: 1}
		endsTurn         = Effects{TurnEnded: true}
		endsTurnAndLease = Effects{TurnEnded: true, Release: true, GaveBack: true, Forget: true}
	)
	for _, c := range []struct {
		name   string
		kind   Kind
		state  State // in the end
		inside int
		steps  []step
	}{
		{"readers share it until a recall", Reads, Over, 0, []step{
			granted, enter, leave, leave, enter, recall, enter.fails(), wait(7 * ms), recall, leave.gives(after(7 * ms)),
			recall,
		}},
		{"recalled with nobody inside", Reads, Over, 0, []step{granted, leave, recall.gives(recalled)}},
		{"given back, and then recalled", Reads, Over, 0, []step{
			granted, giveBack, wait(ms), recall, wait(ms), leave.gives(after(ms)),
		}},
		{"given back for another reason", Reads, Over, 0, []step{granted, giveBack, leave.gives(released)}},
		{"recalled before its grant is known", Reads, Over, 0, []step{
			recall, wait(ms), granted.fails(), enter.fails(), leave.gives(after(ms)),
		}},
		{"lost before its grant is known", Reads, Over, 0, []step{lost.gives(forgets), granted.fails(), leave.gives(releases)}},
		{"not granted", Reads, Over, 0, []step{notGranted.gives(forgets), recall, giveBack}},
		{"lost with readers inside", Reads, Over, 0, []step{granted, enter, lost.gives(forgets), leave, leave.gives(releases)}},
		{"lost with nobody inside", Reads, Over, 0, []step{granted, leave, lost.gives(released)}},
		{"the last to leave is one that was turned away", Reads, Over, 0, []step{
			granted, comer, recall, leave, turnedAway.gives(recalled),
		}},
		{"no grants after its deadline", Reads, Shared, 1, []step{granted, wait(leased), enter.fails()}},

		{"a renewal confirms the subscription at which it was sent", Reads, Shared, 2, []step{
			granted, subscribed, enter.fails(), renew, renewed, enter.fails(), renew, subscribed, renewed, enter.fails(),
			renew, renewed, enter,
		}},
		{"a renewal of another subscription does not confirm the one of now", Reads, Shared, 1, []step{
			granted, renew, subscribed, subscribed, renewed, enter.fails(),
		}},
		{"a recall found by a renewal", Reads, Over, 0, []step{
			granted, renew, recallFound.gives(Effects{ExpectRecall: true}), recallFound, leave.gives(recalled),
		}},
		{"a recall found with nobody inside", Reads, Over, 0, []step{
			granted, leave, renew,
			recallFound.gives(Effects{ExpectRecall: true, Release: true, GaveBack: true, Forget: true, Recalled: true}),
		}},
		{"a recall found whose message has come", Reads, Shared, 1, []step{granted, renew, recall, recallFound}},
		{"a recall found after the lease is given back", Reads, Over, 0, []step{
			granted, renew, giveBack, recallFound, leave.gives(recalled),
		}},
		{"a recall found after the end", Reads, Over, 0, []step{renew, notGranted.gives(forgets), recallFound}},
		{"unused for its ttl", Reads, Shared, 0, []step{
			granted, leave, due.gives(usedOnce), wait(leased - 1), due, wait(1), due.fails(),
		}},
		{"used since", Reads, Shared, 0, []step{
			granted, leave, due.gives(usedOnce), wait(leased - 1), enter, leave, wait(1), due.gives(usedOnce),
			wait(leased - 1), due,
		}},
		{"a reader inside is a use", Reads, Shared, 1, []step{
			granted, due.gives(usedOnce), wait(leased), due.gives(Effects{Used: true}),
		}},
		{"the first time that it is due is a use", Reads, Asking, 0, []step{wait(leased), due.gives(Effects{Used: true})}},
		{"renewals ask although it is closing", Reads, Shared, 1, []step{granted, giveBack, renew}},

		{"an upgrade waits until the others have left", Reads, Detached, 0, []step{
			granted, enter, enter, upgrading, upgrading.fails(), enter.fails(), leave, leave.gives(tellsAlone), isAlone,
			detach.gives(detaches), recall, lost, leave,
		}},
		{"an upgrade alone", Reads, Detached, 1, []step{
			granted, upgrading.gives(tellsAlone), upgrading.fails(), isAlone, detach.gives(detaches), upgrading.fails(),
		}},
		{"an upgrade, and one about to be turned away", Reads, Shared, 1, []step{
			granted, upgrading.gives(tellsAlone), comer, isAlone.fails(), turnedAway.gives(tellsAlone), isAlone,
		}},
		{"an upgrade is given up", Reads, Over, 0, []step{
			granted, enter, upgrading, noUpgrades, leave, upgrading.gives(tellsAlone), noUpgrades, leave.gives(released),
		}},
		{"an upgrade whose caller has released", Reads, Over, 0, []step{
			granted, enter, upgrading, leave.gives(tellsAlone), leave.gives(released),
		}},
		{"an upgrade of a lease that is lost", Reads, Shared, 2, []step{
			granted, enter, upgrading, lost.gives(Effects{Alone: true, Forget: true}),
		}},
		{"a detached lease is not unused", Reads, Detached, 0, []step{
			granted, upgrading.gives(tellsAlone), detach.gives(detaches), leave, wait(2 * leased), due,
		}},

		{"a turn is passed on", Turns, Shared, 1, []step{
			granted, enter.fails(), due.gives(usedOnce), await, leave.gives(endsTurn), enter.fails(), take,
			due.gives(usedOnce), leave, enter,
		}},
		{"a caller gives up, and is not told of a recall", Turns, Shared, 1, []step{granted, await, cancel, leave, enter, recall}},
		{"a caller gives up as the one inside is about to pass the turn on", Turns, Shared, 1, []step{
			granted, await, stays, cancel, pass, enter,
		}},
		{"a caller gives up as it is granted its turn", Turns, Shared, 1, []step{
			granted, await, leave.gives(endsTurn), cancel, enter,
		}},
		{"a caller gives up as it is granted its turn, which is recalled", Turns, Over, 0, []step{
			granted, await, leave.gives(endsTurn), recall, cancel.gives(recalled),
		}},
		{"a caller gives up as its turn is refused", Turns, Over, 0, []step{
			granted, await, recall.gives(endsTurn), cancel, leave.gives(recalled),
		}},
		{"a recall ends the wait for a turn", Turns, Over, 0, []step{
			granted, await, recall.gives(endsTurn), recall, take.fails(), await.fails(), leave.gives(recalled),
		}},
		{"a loss ends the wait for a turn", Turns, Over, 0, []step{
			granted, await, lost.gives(Effects{TurnEnded: true, Forget: true}), take.fails(), leave.gives(releases),
		}},
		{"no turn to wait for", Turns, Shared, 1, []step{granted, leave, await.fails(), enter}},
		{"no turn is passed on after the deadline", Turns, Over, 0, []step{
			granted, await, wait(leased), leave.gives(endsTurnAndLease), take.fails(),
		}},
		{"no turn is passed on without a subscription", Turns, Over, 0, []step{
			granted, await, subscribed, leave.gives(endsTurnAndLease), take.fails(),
		}},
		{"who finds it closed to turns gives it back", Turns, Over, 0, []step{
			granted, leave, subscribed, enter.fails().gives(released),
		}},
		{"it is not retained for turns if others may wait", Turns, Over, 0, []step{
			grantedLate.fails(), enter.fails(), leave.gives(released),
		}},
		{"reads are retained all the same", Reads, Shared, 1, []step{grantedLate}},
		{"renewals for turns ask until it is given back", Turns, Over, 0, []step{
			granted, renew, giveBack, renew.fails(), recallFound, leave.gives(released),
		}},
		{"two keys are refused", Turns, Over, 0, []step{granted, leave, renew, refusedKeys.gives(released)}},
		{"two keys are refused after it is given back", Turns, Shared, 1, []step{granted, giveBack, renew.fails(), refusedKeys}},
		{"one key is refused", Reads, Shared, 0, []step{granted, leave, renew, refusedKeys}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the clock stands still
				w := newWorld(c.kind)
				for i, s := range c.steps {
					var out Effects
					w.ok = true
					if s.does(w, &out); out != s.wants || w.ok == s.not {
						t.Errorf("%d, %s: %v %+v, want %v %+v", i, s.name, w.ok, out, !s.not, s.wants)
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
		s.does(w, &Effects{})
	}
	var out Effects
	if w.Alone(&leaving{w.hold, 3}, w.now, &out) || !out.Alone {
		t.Errorf("the upgrade waits for ever: %+v", out)
	}
}

// TestValue checks that a hold that is made of a value is what that was, and that the number of uses does not make two values differ, which
// would give the search more to do.
func TestValue(t *testing.T) {
	w := newWorld(Reads)
	granted.does(w, nil)
	once := w.hold.Value()
	for _, s := range []step{enter, leave, enter, leave} {
		s.does(w, &Effects{})
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
