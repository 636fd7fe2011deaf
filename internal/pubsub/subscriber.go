// Package pubsub hears the messages that tell a waiter it holds its lock.
//
// An Ear keeps one subscription connection per server: one in all on a single server, one per primary that is waited
// on in a cluster. A message is never needed for safety, and a lost one costs a heartbeat at the most, so the Ear's
// duty is to say truthfully whether the server has acknowledged a channel, and to get it back when it is gone.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/redis/go-redis/v9"
)

// ErrDenied is what Listen returns when the server refuses the subscription: the user has no right to the channel, or
// the server does not know the command.
var ErrDenied = errors.New("subscription refused")

// ErrClosed is what Listen returns when the Ear has been closed.
var ErrClosed = errors.New("closed")

const (
	ackTimeout         = 5 * time.Second // a connection that has not acknowledged by then is given up
	denialTTL          = time.Minute     // how long a refusal is believed before it is tried again
	channelIdleTimeout = time.Minute     // how long a channel that nobody waits on is kept
)

// Config is what an Ear needs. All fields but Denied are required.
type Config struct {
	Client     *client.Client
	Received   func(payload string)            // a message; called from one goroutine per connection, must not block
	Subscribed func(channel string)            // the server has acknowledged a channel, at first or again
	Denied     func(channel string, err error) // the server refuses a channel; told once per refusal
}

// Subscriber is safe for concurrent use.
type Subscriber struct {
	cfg     Config
	backoff *backoff.ExponentialBackOff // between attempts that fail; used by mend alone

	mu           sync.Mutex // guards what follows; no command runs under it
	channels     map[string]*channel
	conns        map[*conn]struct{}
	failures     int  // connections given up since the server acknowledged something
	reconnecting bool // a goroutine is in mend
	closed       bool
	closing      context.Context
	close        context.CancelFunc
	wg           sync.WaitGroup
}

// channel is one that is wanted.
type channel struct {
	name         string
	conn         *conn         // the connection it is or will be heard on; nil while it has none
	subscribed   bool          // the server has acknowledged it on link
	subscribedAt time.Time     // when it did
	denied       error         // why the server refused it
	deniedUntil  time.Time     // how long the refusal is believed
	settled      chan struct{} // closed as long as it is heard or denied
	refs         int           // lines of waiters that need it
	idleSince    time.Time     // since when there are none
}

// conn is one subscription connection.
type conn struct {
	subscriber *Subscriber
	node       *redis.Client // of a cluster; nil on a single server
	sub        *redis.PubSub
}

// New returns an Ear that listens to nothing. It does no I/O and starts no goroutine.
func New(cfg Config) *Subscriber {
	e := &Subscriber{cfg: cfg, channels: map[string]*channel{}, conns: map[*conn]struct{}{}}
	e.backoff = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(0))
	e.closing, e.close = context.WithCancel(context.Background())
	return e
}

// Sharded says whether messages must be sent by SPUBLISH.
func (e *Subscriber) Sharded() bool { return e.cfg.Client.IsCluster() }

// IsSubscribed says whether the server has acknowledged the channel and the connection still stands, as far as is known.
func (e *Subscriber) IsSubscribed(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.channels[name]
	return c != nil && c.subscribed
}

// SubscribedSince is when the server last acknowledged the channel; the zero time if it is not heard now.
func (e *Subscriber) SubscribedSince(name string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil && c.subscribed {
		return c.subscribedAt
	}
	return time.Time{}
}

// Subscribe returns once the server has acknowledged the channel. It blocks until then, until the server refuses it
// (ErrDenied), until ctx ends, or until the Ear is closed.
func (e *Subscriber) Subscribe(ctx context.Context, name string) error {
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return ErrClosed
		}
		c := e.channels[name]
		if c == nil {
			c = &channel{name: name, settled: make(chan struct{}), idleSince: time.Now()}
			e.channels[name] = c
			e.sweepLocked()
		}
		if c.subscribed {
			e.mu.Unlock()
			return nil
		}
		if c.denied != nil {
			if err := c.denied; time.Now().Before(c.deniedUntil) {
				e.mu.Unlock()
				return fmt.Errorf("%w: %w", ErrDenied, err)
			}
			c.denied, c.settled = nil, make(chan struct{})
		}
		settled := c.settled
		e.reconnectLocked()
		e.mu.Unlock()

		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.closing.Done():
			return ErrClosed
		}
	}
}

// Retain says that a line of waiters needs the channel from now on, Drop that it needs it no longer.
func (e *Subscriber) Retain(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil {
		c.refs++
	}
}

// Release undoes a Use. The channel is kept a while, because who waited once will wait again.
func (e *Subscriber) Release(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil && c.refs > 0 {
		c.refs--
		c.idleSince = time.Now()
	}
}

// Replace gives up the connection that the channel is on: messages were sent to it and not heard.
func (e *Subscriber) Replace(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil && c.conn != nil {
		e.discardLocked(c.conn)
	}
}

// Close ends all subscriptions and waits for the goroutines.
func (e *Subscriber) Close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		e.close()
		for l := range e.conns {
			e.discardLocked(l)
		}
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// sweepLocked drops channels that nobody has waited on for a while; on a single server there is but one.
func (e *Subscriber) sweepLocked() {
	if !e.Sharded() {
		return
	}
	for name, c := range e.channels {
		if c.refs > 0 || time.Since(c.idleSince) < channelIdleTimeout {
			continue
		}
		delete(e.channels, name)
		if l := c.conn; l != nil {
			e.wg.Go(func() { _ = l.sub.SUnsubscribe(e.closing, name) })
		}
	}
}

// discardLocked gives up a connection; its channels are looked for anew.
func (e *Subscriber) discardLocked(l *conn) {
	if _, lives := e.conns[l]; !lives {
		return
	}
	delete(e.conns, l)
	e.failures++
	e.cfg.Client.Reload(e.closing)
	e.wg.Go(func() { _ = l.sub.Close() }) // it may block for as long as go-redis is reconnecting
	for _, c := range e.channels {
		if c.conn == l {
			e.detachLocked(c)
		}
	}
	e.reconnectLocked()
}

// detachLocked takes a channel off its connection.
func (e *Subscriber) detachLocked(c *channel) {
	c.conn = nil
	if c.subscribed {
		c.subscribed, c.settled = false, make(chan struct{})
	}
}

// reconnectLocked sees to it that every channel gets a connection.
func (e *Subscriber) reconnectLocked() {
	if e.reconnecting || e.closed {
		return
	}
	e.reconnecting = true
	e.wg.Go(e.reconnect)
}

// reconnect connects until every channel has a connection. The first loss is mended at once; when losses follow each other
// and the server acknowledges nothing in between, it takes its time.
func (e *Subscriber) reconnect() {
	for {
		loose, failures := e.unassigned()
		switch {
		case len(loose) == 0:
			return
		case failures <= 1:
			e.backoff.Reset()
		default:
			t := time.NewTimer(e.backoff.NextBackOff())
			select {
			case <-t.C:
			case <-e.closing.Done():
				t.Stop()
				continue
			}
		}
		e.connect(loose)
	}
}

// unassigned is the channels that have no connection, and how often connecting has failed. None ends mending.
func (e *Subscriber) unassigned() ([]*channel, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*channel
	for _, c := range e.channels {
		if c.conn == nil && c.denied == nil && !e.closed {
			list = append(list, c)
		}
	}
	e.reconnecting = len(list) > 0
	return list, e.failures
}

// connect asks for the channels, each where it belongs.
func (e *Subscriber) connect(loose []*channel) {
	byNode := map[*redis.Client][]*channel{}
	for _, c := range loose {
		node, err := e.cfg.Client.Primary(e.closing, c.name)
		if err != nil {
			e.mu.Lock()
			e.failures++
			e.mu.Unlock()
			continue
		}
		byNode[node] = append(byNode[node], c)
	}
	for node, list := range byNode {
		e.subscribeOn(node, list)
	}
}

func (e *Subscriber) subscribeOn(node *redis.Client, list []*channel) {
	l := e.connFor(node)
	if l == nil {
		return
	}
	names := make([]string, len(list))
	e.mu.Lock()
	if _, lives := e.conns[l]; !lives {
		e.mu.Unlock()
		return
	}
	for i, c := range list {
		c.conn = l
		names[i] = c.name
	}
	e.mu.Unlock()
	if err := e.sendSubscribe(l, names); err != nil {
		e.discard(l)
		return
	}
	time.AfterFunc(ackTimeout, func() { e.checkAck(l, list) })
}

// sendSubscribe asks for channels. Sharded ones go one by one: a command may not name two slots.
func (e *Subscriber) sendSubscribe(l *conn, names []string) error {
	if !e.Sharded() {
		return l.sub.Subscribe(e.closing, names...)
	}
	for _, name := range names {
		if err := l.sub.SSubscribe(e.closing, name); err != nil {
			return err
		}
	}
	return nil
}

// connFor is the connection to the node, a new one if there is none; nil after Close.
func (e *Subscriber) connFor(node *redis.Client) *conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	for l := range e.conns {
		if l.node == node {
			return l
		}
	}
	l := &conn{subscriber: e, node: node}
	if node != nil {
		l.sub = node.SSubscribe(e.closing)
	} else {
		l.sub = e.cfg.Client.Subscribe(e.closing)
	}
	e.conns[l] = struct{}{}
	e.wg.Go(l.receive)
	return l
}

// checkAck gives up a connection that has not acknowledged what was asked of it.
func (e *Subscriber) checkAck(l *conn, list []*channel) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range list {
		if c.conn == l && !c.subscribed && c.denied == nil && !e.closed {
			e.discardLocked(l)
			return
		}
	}
}

func (e *Subscriber) discard(l *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.discardLocked(l)
}

// receive hears one connection to its end.
func (l *conn) receive() {
	for {
		msg, err := l.sub.Receive(context.Background())
		if err != nil {
			if l.handleError(err) {
				return
			}
			continue
		}
		switch msg := msg.(type) {
		case *redis.Message:
			l.subscriber.cfg.Received(msg.Payload)
		case *redis.Subscription:
			l.handleSubscription(msg)
		}
	}
}

func (l *conn) handleSubscription(s *redis.Subscription) {
	e := l.subscriber
	e.mu.Lock()
	c := e.channels[s.Channel]
	if c == nil || c.conn != l {
		e.mu.Unlock()
		return
	}
	switch s.Kind {
	case "subscribe", "ssubscribe":
		if !c.subscribed {
			c.subscribed, c.subscribedAt = true, time.Now()
			close(c.settled)
		}
		e.failures = 0
		e.mu.Unlock()
		e.cfg.Subscribed(s.Channel)
		return
	case "sunsubscribe": // the slot has moved; go-redis does not follow it (issues 3099, 3133)
		e.detachLocked(c)
		e.cfg.Client.Reload(e.closing)
		e.reconnectLocked()
	}
	e.mu.Unlock()
}

// handleError deals with an error from the connection; it says whether that was its end.
func (l *conn) handleError(err error) bool {
	e := l.subscriber
	e.mu.Lock()
	if _, lives := e.conns[l]; !lives {
		e.mu.Unlock()
		return true
	}
	if transport.OutcomeOf(err) != transport.Answered || transport.Retryable(err) {
		// Also when a slot is elsewhere (MOVED): the reply does not say which, so all are looked for anew.
		e.discardLocked(l)
		e.mu.Unlock()
		return true
	}
	var denied []string
	for name, c := range e.channels {
		if c.conn == l && !c.subscribed {
			c.conn, c.denied, c.deniedUntil = nil, err, time.Now().Add(denialTTL)
			close(c.settled)
			denied = append(denied, name)
		}
	}
	e.mu.Unlock()
	for _, name := range denied {
		e.cfg.Denied(name, err)
	}
	return false
}
