package pubsub

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/redis/go-redis/v9"
)

// conn is one subscription connection.
type conn struct {
	subscriber *Subscriber
	node       client.Node // the node of a cluster; nil on a single server
	sub        client.Subscription
	since      time.Time
	heard      atomic.Int64 // when something last came, measured from since
	receiving  bool         // set by the goroutine that subscribes

	// Guarded by subscriber.mu.
	unsent      []*channel        // channels to subscribe to
	subscribing bool              // a goroutine is in sendUnsent, which closes the connection if it is discarded
	watched     bool              // watch is scheduled
	pinged      time.Time         // when the PING under way was sent; zero: none is
	settles     []func(bool) bool // the functions given to Check before it was sent: its answer settles them
	checks      []func(bool) bool // those given to Check since: the next PING settles them
}

// connTo returns the connection to the node and opens one if there is none. It returns nil after Close.
func (s *Subscriber) connTo(node client.Node) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for c := range s.conns {
		if c.node == node {
			return c
		}
	}
	c := &conn{subscriber: s, node: node, sub: s.cfg.Client.Subscribe(s.closing, node), since: time.Now()}
	s.conns[c] = struct{}{}
	return c
}

// openLocked reports whether the connection has not been discarded.
func (c *conn) openLocked() bool { _, open := c.subscriber.conns[c]; return open }

// discardLocked closes a connection. Its channels are subscribed again on a new one.
func (s *Subscriber) discardLocked(c *conn) {
	if !c.openLocked() {
		return
	}
	delete(s.conns, c)
	c.settleLocked(append(c.settles, c.checks...), false)
	if s.shortLived++; time.Since(c.since) >= time.Second {
		s.shortLived = 0
	}
	s.failures = max(s.failures+1, s.shortLived)
	s.cfg.Client.Reload(s.closing)
	if !c.subscribing { // else sendUnsent closes it
		s.wg.Go(func() { _ = c.sub.Close() }) // may block while go-redis is reconnecting
	}
	s.drawnAt = time.Time{}
	for _, ch := range s.channels {
		if ch.conn == c {
			s.detachLocked(ch)
		}
	}
	s.reconnectLocked()
}

// sendUnsent subscribes to the channels in unsent, until there are none.
func (c *conn) sendUnsent() {
	s := c.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	for c.openLocked() && len(c.unsent) > 0 {
		channels := c.unsent
		c.unsent = nil
		var names []string
		for _, ch := range channels {
			names = append(names, ch.allNames()...)
		}
		timeout, stop := context.WithTimeout(s.closing, ackTimeout) // go-redis does not limit this dial
		afterAckTimeout(func() {                                    // even while subscribe waits for a dial that Receive makes
			stop()
			s.checkAck(c, channels)
		})
		s.mu.Unlock()
		err := c.subscribe(timeout, names)
		s.mu.Lock()
		if err != nil {
			s.discardLocked(c)
		} else if c.openLocked() {
			c.startReceiving()
		}
	}
	if c.subscribing = false; !c.openLocked() {
		s.wg.Go(func() { _ = c.sub.Close() })
	}
}

// subscribe sends a command for each name, because all names in a command must be in one slot.
func (c *conn) subscribe(ctx context.Context, names []string) (err error) {
	send := c.sub.Subscribe
	if c.subscriber.Sharded() {
		send = c.sub.SSubscribe
	}
	for i := 0; i < len(names) && err == nil; i++ {
		err = send(ctx, names[i])
	}
	return err
}

// unsubscribe sends the command for names of one channel, which are in one slot.
func (c *conn) unsubscribe(names []string) {
	s := c.subscriber
	if s.Sharded() {
		_ = c.sub.SUnsubscribe(s.closing, names...)
	} else {
		_ = c.sub.Unsubscribe(s.closing, names...)
	}
}

// startReceiving starts receive, once. The connection must be established, because go-redis holds a mutex while it dials that Receive needs.
func (c *conn) startReceiving() {
	if !c.receiving {
		c.receiving = true
		c.subscriber.wg.Go(c.receive)
	}
}

// receive handles what the connection receives until the connection is closed.
func (c *conn) receive() {
	for {
		msg, err := c.sub.Receive(c.subscriber.closing)
		if err != nil {
			if c.handleError(err) {
				return
			}
			continue
		}
		c.heardNow()
		switch msg := msg.(type) {
		case *redis.Message:
			c.subscriber.cfg.Received(msg.Payload)
		case *redis.Pong:
			c.ponged()
		case *redis.Subscription:
			c.handleSubscription(msg)
		}
	}
}

func (c *conn) handleSubscription(msg *redis.Subscription) {
	s := c.subscriber
	s.mu.Lock()
	ch := s.names[msg.Channel]
	if ch == nil || ch.conn != c {
		s.mu.Unlock()
		return
	}
	switch msg.Kind {
	case "subscribe", "ssubscribe":
		if ch.subscribed { // go-redis has connected again by itself; in between there was no subscription
			s.detachLocked(ch)
			ch.conn, ch.pending = c, ch.allNames()
		}
		s.failures = 0
		if ch.pending = slices.DeleteFunc(ch.pending, func(name string) bool { return name == msg.Channel }); len(ch.pending) > 0 {
			break
		}
		ch.subscribed, ch.acknowledged, ch.subscribedAt = true, true, time.Now()
		close(ch.settled)
		if len(ch.ids) > 1 {
			s.trim(ch)
		}
		if ch.refs > 0 {
			c.watchLocked()
		}
		s.mu.Unlock()
		s.cfg.Subscribed(ch.prefix)
		return
	case "sunsubscribe": // the slot has moved; go-redis does not follow it (issues 3099, 3133)
		s.detachLocked(ch)
		s.cfg.Client.Reload(s.closing)
		s.reconnectLocked()
	}
	s.mu.Unlock()
}

// handleError handles an error from the connection and reports whether the connection is closed.
func (c *conn) handleError(err error) (closed bool) {
	s := c.subscriber
	if refusesPing(err) {
		c.heardNow()
		c.ponged()
		return false
	}
	s.mu.Lock()
	if !c.openLocked() {
		s.mu.Unlock()
		return true
	}
	if transport.OutcomeOf(err) != claim.Answered || transport.Retryable(err) {
		// This includes MOVED: the reply does not name the channel, so all channels of the connection are subscribed again.
		s.discardLocked(c)
		s.mu.Unlock()
		return true
	}
	var denied []string
	for name, ch := range s.channels {
		if ch.conn == c && !ch.subscribed {
			ch.conn, ch.denied, ch.deniedUntil = nil, err, time.Now().Add(denialTTL)
			close(ch.settled)
			denied = append(denied, name)
		}
	}
	s.mu.Unlock()
	for _, name := range denied {
		s.cfg.Denied(name, err)
	}
	return false
}
