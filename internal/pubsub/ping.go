package pubsub

import (
	"strings"
	"time"
)

// A connection may be dead though nobody has closed it: a firewall has forgotten it, or a proxy has lost what is behind it. Its waiters
// would miss their wake-ups until TCP notices. So a connection that waiters use is sent a PING when nothing has come on it for
// pingInterval, and is replaced if the PING is not answered within ackTimeout.
//
// A server sends its answers and messages in order. So when a PING is answered, a message that the server published before the PING was sent
// has come, or never will. Check uses this.

const pingInterval = 5 * time.Second // the silence after which a connection that waiters use is sent a PING

// Check sends a PING, and calls settled once, in the background. known is set if the PING was answered or its time is over: a message that the
// server published on the channel before the call has come by then, or never will. settled then reports whether it was lost; if so, the
// connection is replaced. known is false if the connection was lost for another reason, or if there was none.
func (s *Subscriber) Check(name string, settled func(known bool) (lost bool)) {
	s.mu.Lock()
	ch := s.channels[name]
	if ch == nil || !ch.subscribed {
		s.mu.Unlock()
		settled(false)
		return
	}
	if ch.conn.checks = append(ch.conn.checks, settled); ch.conn.pinged.IsZero() {
		ch.conn.pingLocked()
	}
	s.mu.Unlock()
}

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

// watchLocked schedules watch for the time when the connection may have been silent for pingInterval, unless it is scheduled.
func (c *conn) watchLocked() {
	if !c.watched {
		c.watched = true
		time.AfterFunc(max(pingInterval-c.silence(), 0), c.watch)
	}
}

// watch sends a PING if the connection has been silent for pingInterval, and schedules itself while waiters use the connection.
func (c *conn) watch() {
	s := c.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c.watched = false; {
	case !c.openLocked() || !c.inUseLocked():
	case !c.pinged.IsZero(): // ponged schedules watch, or the connection is replaced
	case c.silence() >= pingInterval:
		c.pingLocked()
	default:
		c.watchLocked()
	}
}

// pingLocked sends a PING, which settles the checks so far. If it is not answered in time, the connection is discarded.
func (c *conn) pingLocked() {
	s, now := c.subscriber, time.Now()
	c.pinged, c.settles, c.checks = now, c.checks, nil
	s.wg.Go(func() { _ = c.sub.Ping(s.closing) }) // after an error no answer comes
	afterAckTimeout(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.openLocked() && c.pinged.Equal(now) {
			c.settleLocked(append(c.settles, c.checks...), true)
			c.checks = nil
			s.discardLocked(c)
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
	c.settleLocked(c.settles, true)
	if len(c.checks) > 0 {
		c.pingLocked()
	} else {
		c.watchLocked()
	}
}

// settleLocked calls the functions given to Check, in the background, and replaces the connection if a message was lost.
func (c *conn) settleLocked(checks []func(bool) bool, known bool) {
	if c.settles = nil; len(checks) == 0 {
		return
	}
	s := c.subscriber
	s.wg.Go(func() {
		anyLost := false
		for _, settled := range checks {
			anyLost = settled(known) || anyLost
		}
		if anyLost {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.discardLocked(c)
		}
	})
}

// refusesPing reports whether err says that the user may not send PING. That is an answer, too: the connection is alive.
func refusesPing(err error) bool { return strings.Contains(strings.ToLower(err.Error()), "'ping'") }
