package claim

import "time"

// lease is what a claim knows of its lease.
type lease struct {
	fence      int64
	since      Instant // when it was granted, or for a part, when the whole lease began
	ttl        int64   // ms that a renewal asks for
	longest    int64   // ms: the most that a call has asked for, because the server may run this call last
	deadline   Instant // until when it is relied on, if it is not renewed
	renewAt    Instant // 0: no renewal is due
	metadataAt Instant // when a renewal last extended the metadata of the name
	renewals   int16   // under way
}

// cleanup is what a claim knows of its release.
type cleanup struct {
	until     Instant // when the lease or the queue entry must have ended
	record    Instant // until when a record lasts that replaces the lease; 0: none
	unused    bool    // nobody had the lease, so nothing was done under it
	tombstone bool
	doubt     bool // the outcome of an attempt is unknown, so the server may have run it
	paused    bool // the timer is set for the next attempt; if not, a timer that fires was set for the lease
	answer    Code // to the release; None: there was none
}

// hold makes the claim hold a lease that is granted now, and sets its timer. The state is Held or Unconfirmed.
func (c *Claim) hold(r *Rules, state State, fence int64, deadline, now Instant, out *Effects) {
	c.state, c.fence, c.deadline = state, fence, deadline
	c.ttl, c.longest, c.metadataAt = r.TTL, r.TTL, now
	if c.since == 0 {
		c.since = now
	}
	c.scheduleRenewal(r, now, Duration(c.ttl))
	if r.NoRenewal && state == Unconfirmed {
		c.renewAt = now // one renewal confirms it, for the rest of its ttl
	}
	c.arm(out)
}

// scheduleRenewal sets when the lease is renewed next: after a third of ttl, or of the time to the deadline if that is less.
func (c *Claim) scheduleRenewal(r *Rules, now Instant, ttl time.Duration) {
	if !r.NoRenewal {
		c.renewAt = renewalTime(now, min(ttl, c.deadline.Sub(now))/3)
	}
}

// arm sets the timer.
func (c *Claim) arm(out *Effects) {
	out.Timer = c.deadline
	if c.renewAt > 0 && c.renewAt < c.deadline {
		out.Timer = c.renewAt
	}
}

// held handles an event of a lease that its holder has.
func (c *Claim) held(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case Timer, ExtendBegan, Released, Closed:
		if now >= c.deadline {
			c.lose(c.expiry(r, now), out)
			c.lost(now, e, out)
			return
		}
	}
	switch e.Kind {
	case Timer:
		c.timer(r, now, out)
	case Renewed:
		c.renewed(r, now, e, out)
	case RenewFailed:
		c.renewFailed(now, e, out)
	case ExtendBegan:
		c.longest = max(c.longest, e.TTL) // the server may run it long before its answer arrives
	case Extended:
		c.extended(r, now, e, out)
	case TTLSet:
		c.ttl, c.longest, c.renewAt, c.metadataAt = max(c.ttl, e.TTL), max(c.longest, e.TTL), now, now.Add(-r.MetadataTTL) // metadata notes a long ttl
		c.arm(out)
	case Refused:
		c.refuse(now, out)
	case Broken:
		c.lose(ByBreak, out)
	case Failed:
		c.lose(ByDriver, out)
	case Released, Closed:
		c.end(ByRelease, out)
		c.release(e.Unused, c.InDoubt(), now.Add(Duration(c.longest)), e.Until, out)
	case Forgotten:
		c.end(ByForgetting, out)
		c.done(None, out)
	default:
		c.ignore(e, out)
	}
}

// gone handles an event of a lease that the server does not have any more. Its holder has it until the server has said who has broken it.
func (c *Claim) gone(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case NotBroken:
		c.lose(ByServer, out)
	case Renewed, RenewFailed, Extended, TTLSet, Refused: // the server has said already that it does not have the lease
	default:
		c.held(r, now, e, out)
	}
}

// end ends the lease for its holder.
func (c *Claim) end(reason Reason, out *Effects) {
	c.reason = reason
	out.End, out.StopTimer = true, true
}

// lose ends the lease as lost.
func (c *Claim) lose(reason Reason, out *Effects) {
	c.state = Lost
	c.end(reason, out)
}

// expiry returns why a lease is lost when its deadline has passed.
func (c *Claim) expiry(r *Rules, now Instant) Reason {
	switch {
	case c.state == Gone:
		return ByServer
	case r.NoRenewal:
		return ByFixedTTL
	case r.MaxLifetime > 0 && now.Sub(c.since) >= r.MaxLifetime-Margin(r.MaxLifetime)-ShortestTTL:
		return ByLifetime
	}
	return ByDeadline
}

// timer renews the lease, if that is due.
func (c *Claim) timer(r *Rules, now Instant, out *Effects) {
	defer c.arm(out)
	if c.renewAt == 0 || now < c.renewAt {
		return
	}
	c.renewAt = 0
	ttl := c.nextTTL(r, now)
	if ttl == 0 {
		return
	}
	// If this renewal is not answered, others follow before the deadline, but never more than a few at once.
	if c.renewals++; c.renewals < maxRenewals {
		c.renewAt = now.Add(max(c.deadline.Sub(now)/3, Duration(c.ttl)/30))
	}
	out.RenewFor, out.Metadata = ttl, now.Sub(c.metadataAt) > r.MetadataTTL/4
}

// nextTTL returns the ms that a renewal now should ask for, or 0 if there should be none.
func (c *Claim) nextTTL(r *Rules, now Instant) int64 {
	ttl := c.ttl
	if r.NoRenewal {
		ttl -= now.Sub(c.since).Milliseconds()
	}
	if r.MaxLifetime > 0 {
		ttl = min(ttl, (r.MaxLifetime - now.Sub(c.since)).Milliseconds())
	}
	if Duration(ttl) < ShortestTTL {
		return 0
	}
	return ttl
}

// renewed handles the answer to a renewal.
func (c *Claim) renewed(r *Rules, now Instant, e *Event, out *Effects) {
	switch {
	case e.Code == Granted && now >= c.deadline: // the answer took too long: it may be of another lease, which a late copy of the request got
		c.lose(c.expiry(r, now), out)
	case e.Code == Granted:
		c.prolong(r, e)
		c.renewAt = 0
		if e.Metadata {
			c.metadataAt = now
		}
		c.scheduleRenewal(r, now, Duration(e.TTL))
		c.arm(out)
		out.Confirmed = true
	default:
		c.refuse(now, out)
	}
}

// renewFailed handles a renewal that was answered by an error, or not at all.
func (c *Claim) renewFailed(now Instant, e *Event, out *Effects) {
	if e.Lasting {
		c.lose(ByDriver, out)
		return
	}
	// The lease is valid until its deadline, and is renewed again before.
	if at := now.Add(e.Pause); c.renewAt == 0 || at < c.renewAt {
		c.renewAt = at
	}
	c.arm(out)
}

// prolong notes that the server has renewed the lease.
func (c *Claim) prolong(r *Rules, e *Event) {
	until := leaseUntil(e.Sent, e.TTL)
	if r.MaxLifetime > 0 { // the call may have waited before it was sent
		until = min(until, c.since.Add(r.MaxLifetime))
	}
	c.state, c.deadline = Held, max(c.deadline, until)
}

// refuse handles that the server does not have the lease any more. The lease is lost when the server has said who has broken it, or after
// ReasonTimeout.
func (c *Claim) refuse(now Instant, out *Effects) {
	c.state, c.renewAt = Gone, 0
	c.deadline = min(c.deadline, now.Add(ReasonTimeout))
	c.arm(out)
	out.AskBreaker = true
}

// extended handles the end of an Extend. If its outcome is unknown, the deadline stays: the server may have the lease for longer.
func (c *Claim) extended(r *Rules, now Instant, e *Event, out *Effects) {
	switch {
	case e.Code == Denied:
		c.refuse(now, out)
	case now >= c.deadline: // the answer took too long
		c.lose(c.expiry(r, now), out)
	case e.Code == Granted:
		c.ttl, c.metadataAt = max(c.ttl, e.TTL), now
		c.prolong(r, e)
		c.scheduleRenewal(r, now, Duration(c.ttl))
		c.arm(out)
	}
}

// release begins the release of whatever the token has at the server, which is repeated until it is answered, but not after until. If record is
// set, a record takes the place of the lease until then.
func (c *Claim) release(unused, tombstone bool, until, record Instant, out *Effects) {
	c.state, c.general = Releasing, false
	c.cleanup = cleanup{until: until, record: record, unused: unused, tombstone: tombstone}
	out.Release = true
}

// permitted handles an event of a request that was granted without a lease.
func (c *Claim) permitted(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case Released:
		until := c.until
		if until == 0 {
			until = now.Add(Duration(r.TTL) + r.HeartbeatTimeout)
		}
		c.release(e.Unused, c.copies.needTombstone(), until, 0, out)
	default:
		c.ignore(e, out)
	}
}

// lost handles an event of a lease that was lost.
func (c *Claim) lost(now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case Released, Closed: // the holder has stopped: if the server still has the lease, others need not wait until it expires
		c.release(false, c.InDoubt(), now.Add(Duration(c.longest)), e.Until, out)
	default:
		c.ignore(e, out)
	}
}

// releasing handles an event of a claim whose release is under way.
func (c *Claim) releasing(now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case ReleaseReplied:
		switch {
		case e.Fast && !e.QueueEmpty:
			c.general, out.Release = true, true
		case e.Code == Denied && c.doubt: // an earlier attempt has released it
			c.done(Granted, out)
		case e.Code == Denied && c.reason == ByRelease && !c.unused:
			c.inquire(out)
		default:
			c.done(e.Code, out)
		}
	case ReleaseFailed:
		c.again(now, e, out)
	case Timer:
		if c.paused {
			c.paused, out.Release = false, true
		}
	default:
		c.ignore(e, out)
	}
}

// inquire asks who has broken the lease, because the server did not have it when it was released.
func (c *Claim) inquire(out *Effects) {
	c.state = Inquiring
	out.AskBreaker = true
}

// inquiring handles an event of a claim whose lease the server did not have when it was released.
func (c *Claim) inquiring(e *Event, out *Effects) {
	switch e.Kind {
	case Broken, NotBroken:
		out.Explained = e.Kind == Broken
		c.done(Denied, out)
	default:
		c.ignore(e, out)
	}
}

// again sends the release again after a pause, unless another attempt would be useless or too late.
func (c *Claim) again(now Instant, e *Event, out *Effects) {
	c.doubt = c.doubt || e.Outcome == InDoubt
	at := now.Add(e.Pause)
	if !e.Retryable || e.Last || at > c.until {
		c.done(None, out)
		return
	}
	c.paused, out.Timer = true, at
}

// done ends the claim, with the answer to the release.
func (c *Claim) done(answer Code, out *Effects) {
	c.state, c.answer = Over, answer
	out.StopTimer = true
}
