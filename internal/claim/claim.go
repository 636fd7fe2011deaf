package claim

import "time"

// State is the state of a claim. README.md has the transitions.
type State uint8

// The states.
const (
	Asking      State = iota // no reply has decided yet whether the request waits
	Waiting                  // the server has queued the request
	Barred                   // the server refuses the token for good, and is asked who has broken the request
	Permitted                // granted without a lease: the permits return by the clock alone, or an upgrade has changed a lease of another token
	Held                     // granted, with a lease
	Unconfirmed              // granted to a waiter, with a lease for the claim ttl at most, until the first renewal confirms it
	Gone                     // still held, for ReasonTimeout at most: the server does not have the lease any more, and is asked who has broken it
	Lost                     // the lease has ended before its holder released it
	Releasing                // ended; a release removes what may be left at the server
	Inquiring                // ended; the server did not have the lease when it was released, and is asked who has broken it
	Over                     // nothing is left to be done
	states
)

// Mode says what happens to a request that cannot be granted at once, and how often it is sent while it is not answered.
type Mode uint8

// The modes.
const (
	Try  Mode = iota // refused; sent MaxTries times at most
	Wait             // queued; sent for as long as the retry policy allows
	Part             // of a majority: refused; sent twice at most. What it leaves is released with the whole, or by Close
)

// MaxTries bounds how often a request that does not wait is sent, if its replies fail or come too late.
const MaxTries = 3

const (
	// maxPartTries bounds how often a request for a part is sent. The second call follows only if the first may have run.
	maxPartTries = 2
	// ReasonTimeout bounds how long a lease that the server does not have any more is still held, while the server is asked why.
	ReasonTimeout = 200 * time.Millisecond
	// maxRenewals is the maximum number of renewals of a lease under way, while none is answered.
	maxRenewals = 4
)

// Rules are what the claims of a lock have in common. They do not change.
type Rules struct {
	TTL              int64 // ms: of a lease
	ClaimTTL         int64 // ms: of a lease that a message has granted, until it is confirmed
	HeartbeatTimeout time.Duration
	MetadataTTL      time.Duration
	MaxLifetime      time.Duration // after which a lease is no longer renewed; 0: no bound
	NoRenewal        bool
	ByClock          bool // permits return by the clock alone, and are granted without a lease
}

// Claim is one token in this process, and what the server may have of it. It is a value without pointers: the search in
// internal/testing/explore copies and compares it. It is not safe for concurrent use.
type Claim struct {
	state   State
	mode    Mode
	reason  Reason // why the request has failed or the lease has ended
	copies  copies // the calls that asked for the lease
	general bool   // the fast script has not decided the release; not a state, because it would double Releasing

	request
	lease
	cleanup
}

// New returns the claim of a request that was not sent yet. doubt says that an earlier request with the token may still reach the server.
func New(mode Mode, upgrade, doubt bool) Claim {
	c := Claim{mode: mode}
	c.upgrade = upgrade
	if doubt {
		c.copies.atServer = inDoubt
	}
	return c
}

// Adopt returns the claim of a lease that was granted to another process, or to this one before a restart. A call sent at sent has renewed the
// lease for the whole ttl. The driver drops the claim if its deadline has passed, because the answer took too long.
func Adopt(r *Rules, fence int64, sent, now Instant, out *Effects) Claim {
	c := Claim{}
	c.copies.atServer = inDoubt // nothing is known of its request
	c.hold(r, Held, fence, leaseUntil(sent, r.TTL), now, out)
	return c
}

// Clean returns the claim of a token that is only to be cleaned up: the server may have a lease of it, or a copy of its request may still run.
// Released begins the release, which is repeated until that time at the latest.
func Clean(until Instant) Claim {
	c := Claim{}
	c.copies.atServer = inDoubt
	c.permit(0, until)
	return c
}

// String returns the name of the state.
func (s State) String() string {
	return [...]string{
		"Asking", "Waiting", "Barred", "Permitted", "Held", "Unconfirmed", "Gone", "Lost", "Releasing", "Inquiring", "Over",
	}[s]
}

// State returns the state.
func (c Claim) State() State { return c.state }

// Reason returns why the request has failed, or why the lease has ended for its holder.
func (c Claim) Reason() Reason { return c.reason }

// Pending reports whether the request has not ended.
func (c Claim) Pending() bool { return c.state <= Barred }

// Active reports whether there is a lease that is held, as far as is known.
func (c Claim) Active() bool {
	return c.state == Held || c.state == Unconfirmed || c.state == Gone
}

// Fence returns the fence of the grant.
func (c *Claim) Fence() int64 { return c.fence }

// Since returns when the lease was granted, or for a part, when the whole lease began.
func (c Claim) Since() Instant { return c.since }

// Waits reports whether the request is queued if it cannot be granted at once. It never changes.
func (c *Claim) Waits() bool { return c.mode == Wait }

// SetSince sets Since of a part.
func (c *Claim) SetSince(at Instant) { c.since = at }

// Deadline returns until when the lease is believed if it is not renewed.
func (c Claim) Deadline() Instant { return c.deadline }

// TTL returns the ms that a renewal asks for.
func (c Claim) TTL() int64 { return c.ttl }

// Place returns the place of the request in the server's queue; 0: it was not queued.
func (c Claim) Place() int64 { return c.place }

// Asked returns when the last call that was answered with "waiting" was sent; before such an answer, when the first call was sent.
func (c Claim) Asked() Instant { return c.asked }

// CameLate reports whether a grant came when nothing of its lease was left.
func (c Claim) CameLate() bool { return c.late }

// InDoubt reports whether a copy of the request may still run.
func (c Claim) InDoubt() bool { return c.copies.needTombstone() }

// NeedsCleanup reports whether the server may have a lease or a queue entry of the token.
func (c Claim) NeedsCleanup() bool { return c.copies.needCleanup() }

// Cleanup describes the release: whether it leaves a tombstone, whether nobody has used the lease, until when it leaves a record (0: none), and
// until when it is repeated.
func (c Claim) Cleanup() (tombstone, unused bool, record, until Instant) {
	return c.tombstone, c.unused, c.record, c.until
}

// NeedsGeneral reports whether a release must take the general script.
func (c *Claim) NeedsGeneral() bool { return c.general || c.tombstone || c.unused }

// Answer returns the answer to the release: Granted, or Denied if the server did not know the token and no earlier attempt can have removed it;
// None: there was no answer.
func (c *Claim) Answer() Code { return c.answer }

// Step handles an event, and adds to out what is to be done. An event that cannot come in the claim's state changes nothing.
func (c *Claim) Step(r *Rules, now Instant, e *Event, out *Effects) {
	over := c.Quiet()
	c.count(e)
	switch c.state {
	case Asking:
		c.asking(r, now, e, out)
	case Waiting:
		c.waiting(r, now, e, out)
	case Barred:
		c.barred(r, now, e, out)
	case Permitted:
		c.permitted(r, now, e, out)
	case Held, Unconfirmed:
		c.held(r, now, e, out)
	case Gone:
		c.gone(r, now, e, out)
	case Lost:
		c.lost(now, e, out)
	case Releasing:
		c.releasing(now, e, out)
	case Inquiring:
		c.inquiring(e, out)
	case Over:
		c.ignore(e, out)
	}
	if !over && c.Quiet() {
		out.Finished = true
	}
}

// Quiet reports whether nothing is left to be done at the server, and no renewal is under way.
func (c *Claim) Quiet() bool { return c.state == Over && c.renewals == 0 }

// count notes the outcomes of calls in every state. They say what a release has to remove, and may come after the request has ended.
func (c *Claim) count(e *Event) {
	switch e.Kind {
	case CopySent:
		c.copies.sent()
	case CopyEnded, AskFailed:
		c.copies.done(e.Outcome)
	case Replied:
		c.copies.done(Answered)
	case Renewed, RenewFailed:
		c.renewals--
	}
	if e.Withdrawn {
		c.copies.done(NotSent)
	}
}
