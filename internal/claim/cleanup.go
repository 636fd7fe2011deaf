package claim

// release sends a release of what the token may have at the server. It is repeated until it is answered, but not after until. With a
// record, it is replaced by that.
func (c *Claim) release(until, record Instant, out *Effects) {
	c.state, c.until, c.record, c.paused = Releasing, until, record, false
	out.Release = true
}

// permitted handles an event of a request whose permits return by the clock alone.
func (c *Claim) permitted(r *Rules, now Instant, e *Event, out *Effects) {
	if e.Kind == Released {
		c.unused, c.tombstone = e.Unused, c.tombstone || c.copies.needTombstone()
		if c.until == 0 {
			c.until = now.Add(Duration(r.TTL) + r.HeartbeatTimeout)
		}
		c.release(c.until, 0, out)
	}
}

// lost handles an event of a lease that was lost.
func (c *Claim) lost(e *Event, out *Effects) {
	if e.Kind == Released || e.Kind == Closed {
		// The holder has now stopped as well. Should the server still know the token, others need not wait.
		c.tombstone = c.InDoubt()
		c.release(c.deadline, e.Until, out)
	}
}

// releasing handles an event of a claim whose release is under way.
func (c *Claim) releasing(now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case ReleaseReplied:
		switch {
		case e.Code == Present && c.convert && e.OriginOver:
			c.convert, out.Release = false, true // its holder has released or lost it meanwhile
		case e.Code == Present && c.convert:
			c.state, out.Check = Checking, true
		case e.Fast && !e.QueueEmpty:
			c.general, out.Release = true, true
		case e.Code == Denied && c.explain && !c.doubt:
			c.ended, out.AskBreaker = Denied, true
		default:
			c.done(e.Code, out)
		}
	case Broken, NotBroken:
		if c.ended == Denied {
			out.Explained = e.Kind == Broken
			c.done(Denied, out)
		}
	case ReleaseFailed:
		c.again(now, e, out)
	case Timer:
		out.Release = true
	}
}

// checking handles an event of a claim of which a renewal finds out whether it holds the lease.
func (c *Claim) checking(r *Rules, now Instant, e *Event, out *Effects) {
	switch e.Kind {
	case Checked:
		deadline := leaseUntil(e.Sent, r.TTL)
		switch {
		case e.Code != Granted:
			c.reason = ByConversion
			if !c.tombstone {
				c.done(None, out)
				return
			}
			// A copy of the request may run later. The release that has kept the lease has left no tombstone.
			c.convert = false
			c.release(c.until, 0, out)
		case now >= deadline:
			out.Check = true // the answer took longer than the lease lasts
		default:
			c.reason = NoReason
			c.hold(r, e.Fence, deadline, now)
			c.begin(r, Held, now, out)
			out.Found = true
		}
	case ReleaseFailed:
		c.again(now, e, out)
	case Timer:
		out.Check = true
	}
}

// again sends the release, or the check, again after a pause, unless that makes no sense.
func (c *Claim) again(now Instant, e *Event, out *Effects) {
	c.doubt = c.doubt || e.Outcome == InDoubt
	at := now.Add(e.Pause)
	if !e.Retryable || e.Last || at > c.until {
		if c.convert {
			c.reason = ByDoubt
		}
		c.done(None, out)
		return
	}
	c.paused, out.Timer = true, at
}

// done ends the release, with what it was answered.
func (c *Claim) done(answer Code, out *Effects) {
	c.state, c.ended, c.paused = Over, answer, false
	out.StopTimer = true
}
