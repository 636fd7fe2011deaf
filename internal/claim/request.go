package claim

import "time"

// request is what a claim knows of its request. asked is when the last call that the server answered with "waiting" was sent, and floor is the last
// fence that the server had drawn by that answer. A message with a larger fence is about a grant after the answer, so its lease is counted
// from asked: no clocks need to be compared. Before any answer, asked is when the first call was sent.
type request struct {
	asked Instant
	floor int64
	clock int64   // the server's clock in that answer, in ms; 0: there was none yet
	early int64   // the fence of a message that has overtaken the answer; 0: none
	due   Instant // when to send a heartbeat, if a message that has overtaken the answer asked for one; else 0
	place int64   // in the server's queue; 0: it was not queued

	tries   int8 // attempts that have brought nothing, in a mode that bounds them
	late    bool // a grant came when nothing was left of its lease
	upgrade bool // it asks that the lease of another token writes
}

// asking handles an event of a request that no reply has decided yet.
func (c *Claim) asking(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case Called:
		c.asked = now
		c.ask(false, out)
	case Timer: // the pause is over
		c.ask(true, out)
	case Replied:
		c.replied(r, now, e, out)
	case AskFailed:
		last := c.failedTry() || !e.Retryable
		switch {
		case last || e.Exhausted && c.mode != Part || c.mode == Part && e.Outcome != InDoubt:
			c.fail(r, now, ByError, out)
		case c.mode == Part:
			c.ask(true, out)
		default:
			out.Pause = true
		}
	case Woken: // it has overtaken the reply, by which it will be checked
		c.early = max(c.early, e.Fence)
	case RetryAt:
		if c.due == 0 || e.At < c.due {
			c.due = e.At
		}
	default:
		c.pending(r, now, e, out)
	}
}

// pending handles the events that end a request in each of its states.
func (c *Claim) pending(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case Cancelled:
		c.fail(r, now, ByCaller, out)
	case Closed:
		c.fail(r, now, ByClose, out)
	case Broken:
		c.fail(r, now, ByBreak, out)
	default:
		c.ignore(e, out)
	}
}

// ask sends the request. When it is sent again, only the general script will do, because a fast one may not look whether the token has
// what it asks for already.
func (c *Claim) ask(again bool, out *Effects) {
	c.copies.sent()
	out.Ask, out.AskGeneral = true, again
}

// failedTry counts an attempt that has brought nothing, and reports whether it was the last one that the mode allows.
func (c *Claim) failedTry() (last bool) {
	switch c.mode {
	case Try:
		c.tries++
		return c.tries >= MaxTries
	case Part:
		c.tries++
		return c.tries >= maxPartTries
	}
	return false
}

// replied handles a reply to the request.
func (c *Claim) replied(r *Rules, now Instant, e *Event, out *Effects) {
	if e.Code == Undecided && !e.Fast || c.mode == Part && e.Code != Granted && e.Code != Denied && e.Code != Tombstoned {
		c.copies.atServer = inDoubt // no script sends this reply
		c.fail(r, now, ByError, out)
		return
	}
	switch e.Code {
	case Undecided:
		c.ask(true, out)
	case Granted:
		if c.grant(r, now, Held, e.Fence, e.Sent, r.TTL, out) {
			return
		}
		// The lease has ended already. The request is sent again, as after a reply that does not come, but at once.
		c.late = true
		if c.failedTry() || e.Exhausted || c.mode == Part {
			c.fail(r, now, ByLateness, out)
		} else {
			c.ask(true, out)
		}
	case Queued:
		c.wait(r, now, e, out)
	case Denied:
		if c.mode == Wait && e.Fast || c.mode != Part && e.More {
			c.ask(true, out)
			return
		}
		c.copies.refused()
		c.fail(r, now, ByDenial, out)
	case Tombstoned:
		if c.mode == Part {
			c.fail(r, now, ByTombstone, out)
		} else {
			c.bar(out)
		}
	case Conflict:
		c.fail(r, now, ByConflict, out)
	case AboveLimit:
		c.fail(r, now, ByLimit, out)
	}
}

// wait handles the answer that the server has queued the request. Messages that have overtaken it are handled now.
func (c *Claim) wait(r *Rules, now Instant, e *Event, out *Effects) {
	early, due := c.early, c.due
	c.state, c.early, c.due = Waiting, 0, 0
	out.Queue, out.HeartbeatBy = true, due
	c.stillQueued(e)
	if early > 0 {
		c.woken(r, now, early, out)
	}
}

// waiting handles an event of a request that the server has queued.
func (c *Claim) waiting(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case StillQueued:
		c.stillQueued(e)
	case Woken:
		c.woken(r, now, e.Fence, out)
	case RetryAt:
		out.FirstBeatBy = e.At
	case Admitted:
		if !c.grant(r, now, Unconfirmed, e.Fence, e.Sent, e.TTL, out) {
			out.HeartbeatBy = e.Sent.Add(Duration(e.TTL) + time.Millisecond) // when the lease has ended
		}
	case Rejoining:
		c.copies.sent()
		out.Joins, out.Place = true, rejoinPlace(c.place, c.asked, now, r.HeartbeatTimeout)
	case Refused:
		switch e.Code {
		case Tombstoned:
			c.bar(out)
		case Conflict:
			c.fail(r, now, ByConflict, out)
		case AboveLimit:
			c.fail(r, now, ByLimit, out)
		default:
			c.fail(r, now, ByDenial, out)
		}
	case GaveUp:
		c.fail(r, now, ByError, out)
	default:
		c.pending(r, now, e, out)
	}
}

// bar asks who has broken the request: the server grants its token nothing any more.
func (c *Claim) bar(out *Effects) {
	c.state = Barred
	out.AskBreaker = true
}

// barred handles an event of a request whose token the server grants nothing any more.
func (c *Claim) barred(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case NotBroken:
		c.fail(r, now, ByTombstone, out)
	default:
		c.pending(r, now, e, out)
	}
}

// stillQueued notes that the server has answered "waiting".
func (c *Claim) stillQueued(e *Event) {
	if e.Sent > c.asked || c.place == 0 {
		c.asked, c.clock, c.floor = e.Sent, e.Clock, e.Fence
	}
	if e.Place > 0 {
		c.place = e.Place
	}
}

// woken handles the message about a grant. The lease lasts for the claim ttl. The server counts from the last heartbeat that it has received, and
// the claim from the last one that was answered, which is never later; so the lease is never relied on too long. Because others may be able to
// publish as well, a message counts only if it fits what the server has answered. If it does not, a heartbeat asks the server.
func (c *Claim) woken(r *Rules, now Instant, fence int64, out *Effects) {
	if wakeupCounts(fence, c.floor, c.clock, c.asked, now, r.ClaimTTL) && c.grant(r, now, Unconfirmed, fence, c.asked, r.ClaimTTL, out) {
		out.WakeupHeard = true
		return
	}
	out.HeartbeatBy = now
}

// grant ends the request as granted, for ms from when the call was sent. It reports false if nothing is left of the lease.
func (c *Claim) grant(r *Rules, now Instant, state State, fence int64, sent Instant, ms int64, out *Effects) bool {
	deadline := leaseUntil(sent, ms)
	if now >= deadline && !c.upgrade { // the lease that an upgrade changes has a claim of its own
		return false
	}
	out.Deliver = true
	if r.ByClock || c.upgrade {
		c.permit(fence, 0)
		out.StopTimer = true
		return true
	}
	c.hold(r, state, fence, deadline, now, out)
	return true
}

// permit makes the claim one without a lease. Its release is repeated until that time at the latest; 0: the time depends on when it begins.
func (c *Claim) permit(fence int64, until Instant) {
	c.state, c.fence, c.until = Permitted, fence, until
}

// fail ends the request without a lease, and releases what it may have at the server.
func (c *Claim) fail(r *Rules, now Instant, reason Reason, out *Effects) {
	c.reason = reason
	out.Deliver, out.StopTimer = true, true
	if !c.copies.needCleanup() || c.mode == Part && reason != ByClose { // what a part may have left is released with the whole
		c.done(None, out)
		return
	}
	c.release(true, c.copies.needTombstone(), now.Add(Duration(r.TTL)+r.HeartbeatTimeout), 0, out)
}
