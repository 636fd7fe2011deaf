package retain

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// State is the state of a retained lease.
type State uint8

// The states.
const (
	Asking   State = iota // the lease was not granted yet
	Shared                // callers may be inside
	Detached              // the lease belongs to the caller of an upgrade alone
	Over                  // the lease was given back, or was never granted
	states
)

// Kind is what callers are granted by a retained lease.
type Kind uint8

// The kinds. Of all but Reads, one caller is inside at a time.
const (
	Reads   Kind = iota
	Turns        // of a lock with one holder; the metadata know of a recall
	Permits      // of a semaphore: the same number to one caller after the other
)

// turn is what became of a caller that waits for the one inside to leave. One waits at most: the local queue of the name is behind it.
type turn uint8

const (
	noTurn  turn = iota // none waits
	waits               // it waits
	passed              // it is inside, in place of the one that has left, and does not know yet
	refused             // the lease is given back instead, and it does not know yet
)

// upgrade is what became of a caller inside that wants the lease for its own.
type upgrade uint8

const (
	noUpgrade upgrade = iota
	amongAll          // others are inside
	alone             // it was told that they have left
)

// Lease is one lease that the process retains, from the request for it to its end: what is granted by it, reads or the turns of one holder
// at a time. Who is inside is in a Gate. A Lease is a value without pointers, which the search in internal/testing/explore copies and
// compares. It is not safe for concurrent use.
//
// The claim of the lease is another machine, of package claim; the driver tells each of what the other says.
type Lease struct {
	state     State
	kind      Kind
	closing   bool // it admits nobody any more, and ends when nobody is inside
	recalled  bool // because somebody waits whom it excludes
	contended bool // others may have waited already when it was granted, and nobody recalls it for them
	forgotten bool // another lease of the name may be retained
	turn      turn
	upgrade   upgrade

	usedAt     claim.Instant // when it was last seen in use; 0: not yet
	recalledAt claim.Instant
}

// Gate is who is inside: a Hold, or in a test one that others leave meanwhile.
type Gate interface {
	Open(closed bool)
	Close() bool
	Inside() int
	Leave() (settle bool)
	LeaveAlone() (left, settle bool)
	Want() bool
	Unwant()
	Pass() bool
	Confirm(epoch uint64)
	Current() uint64
	TakeUses() int64
}

// Effects are what is to be done after an event.
type Effects struct {
	Release      bool          // release the lease at the server
	GaveBack     bool          // the name's Name is to note that the lease was given back; see Name.GaveBack
	Recalled     bool          // of Release: report that it was released because it was recalled
	Took         time.Duration // of Recalled: since the recall
	Forget       bool          // the process does not retain the name any more, and no recall of this lease matters
	TurnEnded    bool          // wake the caller that waits for a turn; it calls EndTurn
	Alone        bool          // wake the caller of the upgrade; it calls Detach
	Used         bool          // the name counts as used
	Uses         int64         // so many have come since the last renewal was due
	ExpectRecall bool          // a message about the recall must come, if the process was subscribed (see queue.RecallExpected)
}

// NewLease returns a lease whose request is about to be sent.
func NewLease(kind Kind) Lease { return Lease{kind: kind} }

// State returns the state.
func (l *Lease) State() State { return l.state }

// Closing reports whether nobody is admitted any more.
func (l *Lease) Closing() bool { return l.closing }

// Contended reports whether that is because others wait at the server.
func (l *Lease) Contended() bool { return l.recalled || l.contended }

// Bare returns the lease without what only the policy depends on.
func (l Lease) Bare() Lease {
	l.recalledAt = 0
	return l
}

// Granted handles that the lease was granted. The caller whose request brought it is inside. It reports whether others are admitted: not
// if the lease was recalled, or has ended, before its grant was known here. A lease for one caller at a time admits nobody else if it was
// granted by way of the queue: the server does not recall it for those who were queued behind it.
func (l *Lease) Granted(g Gate, queued bool) (admits bool) {
	l.state = Shared
	if l.kind != Reads && queued {
		l.contended, l.closing = true, true
	}
	g.Open(l.closing)
	return !l.closing
}

// NotGranted handles that the request has failed.
func (l *Lease) NotGranted(out *Effects) {
	l.state, l.closing = Over, true
	l.forget(out)
}

// GiveBack admits nobody any more, and releases the lease when nobody is inside. Recalled says that somebody waits whom the lease
// excludes: in another process, as a message says, or here.
func (l *Lease) GiveBack(g Gate, now claim.Instant, recalled bool, out *Effects) {
	if recalled && !l.recalled && l.state < Detached {
		l.recalled, l.recalledAt = true, now
	}
	l.closing = true
	g.Close()
	if l.turn == waits {
		l.turn, out.TurnEnded = refused, true
	}
	l.settle(g, now, out)
}

// Ended handles that the lease has ended, as its claim says. The driver ends the leases that were granted by it before it does what is
// to be done.
func (l *Lease) Ended(g Gate, now claim.Instant, out *Effects) {
	if l.upgrade == amongAll {
		l.upgrade, out.Alone = alone, true
	}
	l.forget(out)
	l.GiveBack(g, now, false, out) // with nobody inside, nobody else releases what the server may still have
}

// TurnedAway handles that Enter or EnterAlone of the Gate has not admitted a caller, who asks the server now. Settle is what Enter has said.
func (l *Lease) TurnedAway(g Gate, now claim.Instant, settle bool, out *Effects) {
	switch {
	case l.kind != Reads:
		l.GiveBack(g, now, false, out) // the request would have to wait for it
	case settle:
		l.settle(g, now, out)
	}
}

// Left handles that a caller is outside, as LeaveAlone or Leave of the Gate has said of a closed one; or, if left is not set, that it is
// to leave but another one waits.
func (l *Lease) Left(g Gate, now claim.Instant, left bool, out *Effects) {
	if left {
		l.settle(g, now, out)
	} else if !l.pass(g, now, out) {
		l.Leave(g, now, out)
	}
}

// Leave lets a caller leave. The next one that waits takes its place.
func (l *Lease) Leave(g Gate, now claim.Instant, out *Effects) {
	if l.kind == Reads {
		g.Leave()
		l.settle(g, now, out)
		return
	}
	left, _ := g.LeaveAlone()
	l.Left(g, now, left, out)
}

// pass makes the caller that waits the one inside, in place of another. If that is not possible, the lease is given back.
func (l *Lease) pass(g Gate, now claim.Instant, out *Effects) bool {
	if l.turn != waits { // it has given up
		return false
	}
	if g.Pass() {
		l.turn, out.TurnEnded = passed, true
		return true
	}
	l.GiveBack(g, now, false, out)
	return false
}

// settle looks at who is inside, after somebody has left or nobody is admitted any more.
func (l *Lease) settle(g Gate, now claim.Instant, out *Effects) {
	inside := g.Inside()
	if l.upgrade == amongAll && inside <= 1 {
		l.upgrade, out.Alone = alone, true
	}
	if l.state != Shared || !l.closing || inside > 0 {
		return
	}
	l.state = Over
	out.Release, out.GaveBack, out.Recalled = true, true, l.recalled
	if l.recalled {
		out.Took = now.Sub(l.recalledAt)
	}
	l.forget(out)
}

// forget makes room for another lease of the name.
func (l *Lease) forget(out *Effects) {
	out.Forget = out.Forget || !l.forgotten
	l.forgotten = true
}

// AwaitTurn begins the wait of a caller, the first one in the local queue, for the one inside to leave. It reports false if nobody is
// inside, or nobody is admitted any more.
func (l *Lease) AwaitTurn(g Gate) bool {
	if !g.Want() {
		return false
	}
	l.turn = waits
	return true
}

// EndTurn ends that wait, since Effects.TurnEnded was set, or since the caller gives up. It reports whether the caller is inside. If keep
// is not set, it is not in any case: a place that it was given just then is left again.
func (l *Lease) EndTurn(g Gate, now claim.Instant, keep bool, out *Effects) (inside bool) {
	was := l.turn
	l.turn = noTurn
	switch {
	case was == waits:
		g.Unwant()
	case was == passed && keep:
		return true
	case was == passed:
		l.Leave(g, now, out)
	}
	return false
}

// Upgrade lets a caller inside wait until it is the only one, when the lease becomes its own. It reports false if another one waits for
// the same. Nobody is admitted any more.
func (l *Lease) Upgrade(g Gate, now claim.Instant, out *Effects) bool {
	if l.upgrade != noUpgrade || l.state == Detached {
		return false
	}
	l.upgrade = amongAll
	l.GiveBack(g, now, false, out)
	return true
}

// Alone reports, after Effects.Alone, whether the caller of the upgrade is the only one inside. If not, it waits for Effects.Alone again,
// which may be set at once: a caller was counted that was about to find the Gate closed.
func (l *Lease) Alone(g Gate, now claim.Instant, out *Effects) bool {
	if g.Inside() <= 1 {
		return true
	}
	l.upgrade = amongAll
	l.settle(g, now, out)
	return false
}

// Detach makes the lease that of the caller of the upgrade, who is alone inside and has not released.
func (l *Lease) Detach(out *Effects) {
	l.state, l.upgrade = Detached, noUpgrade
	out.GaveBack = true
	l.forget(out)
}

// EndUpgrade ends the wait of the caller of an upgrade that gives up. It is inside as before.
func (l *Lease) EndUpgrade() { l.upgrade = noUpgrade }

// Renewal is what a renewal of the lease does besides, and what is to be known when it is answered.
type Renewal struct {
	Metadata bool   // it includes the metadata
	Ask      bool   // it asks whether the lease was recalled
	epoch    uint64 // of the subscription when it was sent
}

// Due decides, when a renewal of the lease, of that ttl, is due, whether the lease is to be given back instead, since nobody has used it.
func (l *Lease) Due(g Gate, now claim.Instant, ttl time.Duration, out *Effects) (unused bool) {
	if l.state == Detached {
		return false
	}
	n, inside := g.TakeUses(), g.Inside()
	out.Uses = n
	if n > 0 || l.usedAt == 0 || inside > 0 {
		l.usedAt, out.Used = now, true
	}
	return inside == 0 && now.Sub(l.usedAt) >= ttl // for its ttl
}

// Renewal returns what a renewal does that is about to be sent, and would include the metadata or not. Of a turn, only the metadata know of
// the recall.
func (l *Lease) Renewal(g Gate, metadata bool) Renewal {
	x := Renewal{Metadata: metadata, Ask: true, epoch: g.Current()}
	if l.kind == Turns {
		x.Ask = !l.closing
		x.Metadata = metadata || x.Ask
	}
	return x
}

// Renewed handles that the server has renewed the lease, and whether it was recalled, if the renewal asked. If it was not, a recall that
// is published after the renewal was sent comes on the subscription of that time; on a later one it may have been lost.
func (l *Lease) Renewed(g Gate, now claim.Instant, x Renewal, recalled bool, out *Effects) {
	switch {
	case !x.Ask:
	case !recalled:
		g.Confirm(x.epoch)
	default:
		out.ExpectRecall = !l.closing
		l.GiveBack(g, now, true, out)
	}
}

// RenewalRefused handles that the server refuses renewals with two keys while it moves the name to another node. From now on the lease is
// renewed with its own key alone, and so cannot ask whether it was recalled.
func (l *Lease) RenewalRefused(g Gate, now claim.Instant, x Renewal, out *Effects) {
	if x.Metadata {
		l.GiveBack(g, now, false, out)
	}
}
