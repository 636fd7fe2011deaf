package pubsub

import (
	"strings"
	"time"
)

// A connection may be dead though nobody has closed it: a firewall has forgotten it, or a proxy has lost what is behind it. Its waiters
// would miss their wake-ups until TCP notices. So a connection that waiters use is sent a PING when nothing has come on it for
// pingInterval, and is replaced if the PING is not answered within ackTimeout.
//
// A server sends its answers and messages in order. When a PING is answered, a message that had been published before it was sent has
// come too, or never will; see Check.

const pingInterval = 5 * time.Second // how long nothing comes on a connection that waiters use before it is sent a PING

// Check has lost called when it is certain whether a message on the channel that the server had published before the call has come: when
// a PING to the connection is answered, or is not answered in time. lost is called in a goroutine of its own, and reports whether the message
// has not come; if so, the connection is replaced. It is not called if the connection is lost before that, or the Subscriber is closed.
func (s *Subscriber) Check(name string, lost func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channels[name]
	if ch == nil || !ch.subscribed {
		return
	}
	if ch.conn.checks = append(ch.conn.checks, lost); ch.conn.pinged.IsZero() {
		ch.conn.pingLocked()
	}
}

// heardNow notes that something has come.
func (c *conn) heardNow() { c.heard.Store(int64(time.Since(c.since))) }

// silence returns for how long nothing has come.
func (c *conn) silence() time.Duration { return time.Since(c.since) - time.Duration(c.heard.Load()) }

// inUseLocked reports whether there are waiters for messages on the connection.
func (c *conn) inUseLocked() bool {
	for _, ch := range c.subscriber.channels {
		if ch.conn == c && ch.refs > 0 {
			return true
		}
	}
	return false
}

// watchLocked makes watch run when the connection can have been silent for too long, unless it is to run already.
func (c *conn) watchLocked() {
	if !c.watched {
		c.watched = true
		time.AfterFunc(max(pingInterval-c.silence(), 0), c.watch)
	}
}

// watch sends a PING if the connection has been silent for too long, and comes back while waiters use it.
func (c *conn) watch() {
	s := c.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c.watched = false; {
	case !c.openLocked() || !c.inUseLocked():
	case !c.pinged.IsZero(): // ponged comes back, or the connection is replaced
	case c.silence() >= pingInterval:
		c.pingLocked()
	default:
		c.watchLocked()
	}
}

// pingLocked sends a PING, which settles what is to be checked. If it is not answered in time, the connection is closed.
func (c *conn) pingLocked() {
	s, now := c.subscriber, time.Now()
	c.pinged, c.settles, c.checks = now, c.checks, nil
	s.wg.Go(func() { _ = c.sub.Ping(s.closing) }) // after an error no answer comes
	afterAckTimeout(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.openLocked() && c.pinged.Equal(now) {
			s.discardLocked(c)
			c.settleLocked(append(c.settles, c.checks...))
		}
	})
}

// ponged handles the answer to a PING.
func (c *conn) ponged() {
	s := c.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.pinged.IsZero() || !c.openLocked() {
		return
	}
	c.pinged = time.Time{}
	c.settleLocked(c.settles)
	if len(c.checks) > 0 {
		c.pingLocked()
	} else {
		c.watchLocked()
	}
}

// settleLocked calls the functions given to Check, in the background, and replaces the connection if a message was lost.
func (c *conn) settleLocked(checks []func() bool) {
	if c.settles = nil; len(checks) == 0 {
		return
	}
	s := c.subscriber
	s.wg.Go(func() {
		anyLost := false
		for _, lost := range checks {
			anyLost = lost() || anyLost
		}
		if anyLost {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.discardLocked(c)
		}
	})
}

// refusesPing reports whether an error is the answer to a PING, to which the user has no right: then the connection is alive as well.
func refusesPing(err error) bool { return strings.Contains(strings.ToLower(err.Error()), "'ping'") }
