// Package pubsub receives the messages that notify a waiter of its grant.
//
// A Subscriber keeps one connection per server: a single one for a single server, and in a cluster one to each primary
// that has a channel in use. Safety never depends on a message, and a lost message delays a waiter by one heartbeat at
// most. What matters is that the Subscriber reports correctly whether the server has acknowledged a channel, and that it
// subscribes again after a connection is lost.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/redis/go-redis/v9"
)

// ErrDenied is returned by Subscribe when the server refuses the subscription: the user has no right to the channel, or
// the server does not know the command.
var ErrDenied = errors.New("subscription refused")

// ErrClosed is returned by Subscribe after Close.
var ErrClosed = errors.New("closed")

const (
	ackTimeout         = 5 * time.Second // after which a connection that has not acknowledged a channel is closed
	denialTTL          = time.Minute     // how long a refused channel is not tried again
	channelIdleTimeout = time.Minute     // how long an unused channel stays subscribed
	sweepInterval      = time.Second     // how often unused channels are looked for at most, since there may be many
)

// Config is what a Subscriber needs. All fields are required.
type Config struct {
	Client     *client.Client
	Received   func(payload string)            // called for each message, from one goroutine per connection; must not block
	Subscribed func(channel string)            // called when the server acknowledges a channel, the first time and after each reconnection
	Denied     func(channel string, err error) // called once when the server refuses a channel
}

// Subscriber subscribes to channels. It is safe for concurrent use.
type Subscriber struct {
	cfg     Config
	backoff *backoff.ExponentialBackOff // between failed attempts; used by reconnect only

	mu           sync.Mutex // guards the fields below; not held while a command is sent
	channels     map[string]*channel
	conns        map[*conn]struct{}
	sweptAt      time.Time
	failures     int  // connections lost, and failed node lookups, since the last acknowledgement
	shortLived   int  // connections lost, one after the other, that were used for less than a second
	reconnecting bool // a goroutine is in reconnect
	closed       bool
	closing      context.Context
	close        context.CancelFunc
	wg           sync.WaitGroup
}

// channel is a channel that is or will be subscribed.
type channel struct {
	name         string
	conn         *conn         // that it is or will be subscribed on; nil if none is assigned
	subscribed   bool          // the server has acknowledged it on conn
	subscribedAt time.Time     // when the server acknowledged it
	lostAt       time.Time     // since when it is not subscribed, if it is not
	epoch        atomic.Uint64 // counts each time that subscribed changes; so it is odd while it is set
	denied       error         // why the server refused it, or nil
	deniedUntil  time.Time     // when it may be tried again
	settled      chan struct{} // closed while the channel is subscribed or denied
	refs         int           // Retain calls without a Release
	idleSince    time.Time     // when refs became 0
}

// New returns a Subscriber without channels. It does no I/O and starts no goroutine.
func New(cfg Config) *Subscriber {
	s := &Subscriber{cfg: cfg, channels: map[string]*channel{}, conns: map[*conn]struct{}{}}
	s.backoff = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(0))
	s.closing, s.close = context.WithCancel(context.Background())
	return s
}

// Sharded reports whether messages must be published with SPUBLISH.
func (s *Subscriber) Sharded() bool { return s.cfg.Client.IsCluster() }

// IsSubscribed reports whether the server has acknowledged the channel on a connection that is not known to be lost.
func (s *Subscriber) IsSubscribed(name string) bool { return !s.SubscribedSince(name).IsZero() }

// SubscribedSince returns when the server last acknowledged the channel, or the zero time if it is not subscribed.
func (s *Subscriber) SubscribedSince(name string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.channels[name]; ch != nil && ch.subscribed {
		return ch.subscribedAt
	}
	return time.Time{}
}

// CannotReceive reports whether messages to the channel do not come: the server has refused it, or it has not been subscribed for so
// long. Then it goes on trying in the background. It reports false for a channel to which nobody has subscribed.
func (s *Subscriber) CannotReceive(name string, after time.Duration) bool {
	s.mu.Lock()
	ch := s.channels[name]
	missing := ch != nil && !ch.subscribed && (ch.denied != nil || time.Since(ch.lostAt) >= after)
	s.mu.Unlock()
	if missing {
		s.Begin(name)
	}
	return missing
}

// Subscribe subscribes to the channel. It blocks until the server acknowledges or refuses it (ErrDenied), until ctx ends,
// or until the Subscriber is closed (ErrClosed). If ctx ends, the subscription continues in the background.
func (s *Subscriber) Subscribe(ctx context.Context, name string) error {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return ErrClosed
		}
		ch := s.channelLocked(name)
		if ch.subscribed {
			s.mu.Unlock()
			return nil
		}
		if ch.denied != nil {
			if err := ch.denied; time.Now().Before(ch.deniedUntil) {
				s.mu.Unlock()
				return fmt.Errorf("%w: %w", ErrDenied, err)
			}
			ch.denied, ch.settled = nil, make(chan struct{})
		}
		settled := ch.settled
		s.reconnectLocked()
		s.mu.Unlock()

		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.closing.Done():
			return ErrClosed
		}
	}
}

// channelLocked returns the channel. If it is not known, it is subscribed in the background.
func (s *Subscriber) channelLocked(name string) *channel {
	ch := s.channels[name]
	if ch == nil {
		now := time.Now()
		ch = &channel{name: name, settled: make(chan struct{}), lostAt: now, idleSince: now}
		s.channels[name] = ch
		s.sweepLocked()
		s.reconnectLocked()
	}
	return ch
}

// Retain marks the channel as in use by one more queue of waiters. Release undoes it. If the channel was unused for
// so long that it was given up meanwhile, it is subscribed again in the background.
func (s *Subscriber) Retain(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channelLocked(name).refs++
}

// RetainSubscribed is Retain if the channel is subscribed. It returns a number that is odd while the channel is subscribed, and
// changes with each subscription. If the channel is not subscribed, it subscribes to it in the background, and returns nil.
func (s *Subscriber) RetainSubscribed(name string) *atomic.Uint64 {
	s.mu.Lock()
	if ch := s.channels[name]; ch != nil && ch.subscribed {
		ch.refs++
		s.mu.Unlock()
		return &ch.epoch
	}
	s.mu.Unlock()
	s.Begin(name)
	return nil
}

// Begin subscribes to the channel in the background.
func (s *Subscriber) Begin(name string) {
	ctx, cancel := context.WithCancel(s.closing)
	cancel()
	_ = s.Subscribe(ctx, name)
}

// Release undoes a Retain. An unused channel stays subscribed for a while, because it is likely to be used again.
func (s *Subscriber) Release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.channels[name]; ch != nil && ch.refs > 0 {
		ch.refs--
		ch.idleSince = time.Now()
	}
}

// Replace closes the channel's connection and subscribes again on a new one. Call it when messages were sent but not
// received.
func (s *Subscriber) Replace(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.channels[name]; ch != nil && ch.conn != nil {
		s.discardLocked(ch.conn)
	}
}

// Close closes all connections and waits for the goroutines to end.
func (s *Subscriber) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.close()
		for c := range s.conns {
			s.discardLocked(c)
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// sweepLocked unsubscribes from channels that have been unused for channelIdleTimeout. On a single server there is only
// one channel, which stays.
func (s *Subscriber) sweepLocked() {
	now := time.Now()
	if !s.Sharded() || now.Sub(s.sweptAt) < sweepInterval {
		return
	}
	s.sweptAt = now
	for name, ch := range s.channels {
		if ch.refs > 0 || now.Sub(ch.idleSince) < channelIdleTimeout {
			continue
		}
		delete(s.channels, name)
		if c := ch.conn; c != nil {
			s.wg.Go(func() { _ = c.sub.SUnsubscribe(s.closing, name) })
		}
	}
}

// detachLocked removes a channel from its connection.
func (s *Subscriber) detachLocked(ch *channel) {
	ch.conn = nil
	if ch.subscribed {
		ch.subscribed, ch.settled, ch.lostAt = false, make(chan struct{}), time.Now()
		ch.epoch.Add(1)
	}
}

// reconnectLocked starts reconnect if it is not running.
func (s *Subscriber) reconnectLocked() {
	if s.reconnecting || s.closed {
		return
	}
	s.reconnecting = true
	s.wg.Go(s.reconnect)
}

// reconnect assigns connections until every channel has one. It does so at once after a first failure, and with backoff
// while failures follow each other without an acknowledgement in between, or within a second.
func (s *Subscriber) reconnect() {
	for {
		unassigned, failures := s.unassigned()
		switch {
		case len(unassigned) == 0:
			return
		case failures <= 1:
			s.backoff.Reset()
		default:
			select {
			case <-time.After(s.backoff.NextBackOff()):
			case <-s.closing.Done():
				continue
			}
		}
		s.connect(unassigned)
	}
}

// unassigned returns the channels that have no connection, and the number of failures. If there are none, or after
// Close, it clears reconnecting.
func (s *Subscriber) unassigned() ([]*channel, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*channel
	for _, ch := range s.channels {
		if ch.conn == nil && ch.denied == nil && !s.closed {
			list = append(list, ch)
		}
	}
	s.reconnecting = len(list) > 0
	return list, s.failures
}

// connect subscribes to the channels, each on the connection to its node.
func (s *Subscriber) connect(channels []*channel) {
	byNode := map[*redis.Client][]*channel{}
	for _, ch := range channels {
		node, err := s.cfg.Client.Primary(s.closing, ch.name)
		if err != nil {
			s.mu.Lock()
			s.failures++
			s.mu.Unlock()
			continue
		}
		byNode[node] = append(byNode[node], ch)
	}
	for node, list := range byNode {
		s.subscribeOn(node, list)
	}
}

// subscribeOn subscribes to the channels on the connection to the node, in the background: a node that hangs must not delay the others.
func (s *Subscriber) subscribeOn(node *redis.Client, channels []*channel) {
	c := s.connTo(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := s.conns[c]; !open {
		return
	}
	for _, ch := range channels {
		ch.conn = c
	}
	if c.unsent = append(c.unsent, channels...); !c.subscribing {
		c.subscribing = true
		s.wg.Go(c.sendUnsent)
	}
}

// checkAck closes the connection if the server has neither acknowledged nor refused all of the channels.
func (s *Subscriber) checkAck(c *conn, channels []*channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range channels {
		if ch.conn == c && !ch.subscribed && ch.denied == nil && !s.closed {
			s.discardLocked(c)
			return
		}
	}
}
