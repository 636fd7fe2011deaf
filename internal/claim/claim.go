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
	Unconfirmed              // the same, for the claim ttl at most; the first renewal confirms it
	Gone                     // the same, for ReasonTimeout at most: the server does not have the lease any more, and is asked who has broken it
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
	// maxPartTries is the same for each attempt of a part, if the first call may have run.
	maxPartTries = 2
	// ReasonTimeout bounds for how much longer a lease is held that the server does not have any more.
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
	copies  copies // of the calls that asked for the lease
	general bool   // the fast script has not decided the request, or the release. No state, because it would double Asking and Releasing

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

// Adopt returns the claim of a lease that another process, or this one before a restart, was granted. A call sent at that time renewed it
// for the whole ttl. If its deadline has passed, it is not used: the answer has taken too long.
func Adopt(r *Rules, fence int64, sent, now Instant, out *Effects) Claim {
	c := Claim{}
	c.copies.atServer = inDoubt // nothing is known of its request
	c.hold(r, Held, fence, leaseUntil(sent, r.TTL), now, out)
	return c
}

// Clean returns the claim of a token of which nothing is known but that the server may have something of it, or a copy of a call may run
// later. Released makes it release that, and repeat it until that time at the latest.
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

// Since returns when the lease was granted, or the one that it is part of.
func (c Claim) Since() Instant { return c.since }

// SetSince sets what Since returns, of a lease that is part of another one.
func (c *Claim) SetSince(at Instant) { c.since = at }

// Deadline returns until when the lease is believed if it is not renewed.
func (c Claim) Deadline() Instant { return c.deadline }

// TTL returns the ms that a renewal asks for.
func (c Claim) TTL() int64 { return c.ttl }

// Place returns the place of the request in the server's queue; 0: it was not queued.
func (c Claim) Place() int64 { return c.place }

// Asked returns when the last call was sent that was answered with "waiting"; before that, when the first call was sent.
func (c Claim) Asked() Instant { return c.asked }

// CameLate reports whether the request was granted a lease of which nothing was left.
func (c Claim) CameLate() bool { return c.late }

// InDoubt reports whether a copy of the request may still run.
func (c Claim) InDoubt() bool { return c.copies.needTombstone() }

// NeedsCleanup reports whether the server may have a lease or a queue entry of the token.
func (c Claim) NeedsCleanup() bool { return c.copies.needCleanup() }

// Cleanup returns what a release is to do: keep the token from being granted, say that the lease was not used, leave a record until
// then, and until when it is repeated.
func (c Claim) Cleanup() (tombstone, unused bool, record, until Instant) {
	return c.tombstone, c.unused, c.record, c.until
}

// NeedsGeneral reports whether a release must take the general script.
func (c *Claim) NeedsGeneral() bool { return c.general || c.tombstone || c.unused }

// Answer returns what the release was answered: Granted, or Denied if the server did not know the token though no earlier attempt can have
// removed it; None: it was not answered.
func (c *Claim) Answer() Code { return c.answer }

// Step tells the claim of an event, and adds to out what is to be done. An event that cannot come in the claim's state changes nothing.
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

// count keeps account of the calls that name the token, in every state: their outcomes say what a release has to remove, and late ones
// arrive after the request has ended.
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
