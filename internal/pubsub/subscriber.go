// Package pubsub receives the messages that notify a waiter of its grant.
//
// A Subscriber keeps one connection per server: a single one for a single server, and in a cluster one to each primary
// that has a channel in use. Safety never depends on a message, and a lost message delays a waiter by one heartbeat at
// most. What matters is that the Subscriber reports correctly whether the server has acknowledged a channel, and that it
// subscribes again after a connection is lost, or is dead without being closed (ping.go).
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/redis/go-redis/v9"
)

// ErrDenied is returned by Subscribe when the server refuses the subscription: the user has no right to the channel, or
// the server does not know the command.
var ErrDenied = errors.New("subscription refused")

// ErrClosed is returned by Subscribe after Close.
var ErrClosed = errors.New("closed")

const (
	ackTimeout         = 5 * time.Second // after which a connection is closed that has not acknowledged a channel, or not answered a PING
	denialTTL          = time.Minute     // how long a refused channel is not tried again
	doubtTTL           = 10 * time.Minute
	channelIdleTimeout = time.Minute     // how long an unused channel stays subscribed
	unusedTTL          = time.Second     // how long an id is kept that no channel has
	trimInterval       = 5 * time.Second // how often it is looked which ids of a channel are still in use, if there are several
	sweepInterval      = time.Second     // how often unused channels are looked for at most, since there may be many
)

// Config is what a Subscriber needs. All fields are required.
type Config struct {
	Client     *client.Client
	NewID      func() string                   // draws an id, without ":", with which the names of channels end
	InUse      func() map[string]bool          // the ids that messages may still be published to; called without any mutex of this package
	Received   func(payload string)            // called for each message, from one goroutine per connection; must not block
	Subscribed func(channel string)            // called when the server acknowledges a channel, the first time and after each reconnection
	Denied     func(channel string, err error) // called once when the server refuses a channel
	// Unacknowledged is called when the server has not acknowledged a channel in time. It is subscribed on another connection.
	Unacknowledged func(channel string)
}

// Subscriber subscribes to channels. It is safe for concurrent use.
type Subscriber struct {
	cfg     Config
	backoff random.Backoff // between failed attempts; used by reconnect only

	mu           sync.Mutex // guards the fields below; not held while a command is sent
	channels     map[string]*channel
	names        map[string]*channel // by each of their names
	unused       string              // the id of the next channel
	drawnAt      time.Time           // when that was drawn
	conns        map[*conn]struct{}
	sweeping     bool // sweep is to run
	failures     int  // connections lost, and failed node lookups, since the last acknowledgement
	shortLived   int  // connections lost, one after the other, that were used for less than a second
	reconnecting bool // a goroutine is in reconnect
	closed       bool
	closing      context.Context
	close        context.CancelFunc
	wg           sync.WaitGroup
}

// channel is a channel that is or will be subscribed, by one name or several. Each is the prefix and an id.
//
// Before a channel is subscribed on a connection, it gets another id for the requests to come. Two processes that were restored from one
// snapshot do not share a connection, so at most one of them stays with the id that both have. Ids that are in use stay as well.
type channel struct {
	prefix       string
	ids          []string      // the last one is for requests to come
	acknowledged bool          // the server has acknowledged that one
	stale        bool          // it was to be subscribed on a connection that is lost
	pending      []string      // names that the server has not acknowledged on conn
	conn         *conn         // that it is or will be subscribed on; nil if none is assigned
	subscribed   bool          // the server has acknowledged all names on conn
	subscribedAt time.Time     // when the server acknowledged it
	doubtedUntil time.Time     // until when it is not counted on; see Doubt
	denied       error         // why the server refused it, or nil
	deniedUntil  time.Time     // when it may be tried again
	settled      chan struct{} // closed while the channel is subscribed or denied
	refs         int           // Hold calls without a Release
	idleSince    time.Time     // when refs became 0
}

// New returns a Subscriber without channels. It does no I/O and starts no goroutine.
func New(cfg Config) *Subscriber {
	s := &Subscriber{cfg: cfg, channels: map[string]*channel{}, names: map[string]*channel{}, conns: map[*conn]struct{}{}}
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

// Stats returns how many channels are to be subscribed, and of how many the server has not acknowledged that. Of the connections with
// messages that waiters count on, one has been silent for that long, and no other for longer.
func (s *Subscriber) Stats() (channels, unsubscribed int, silence time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range s.channels {
		channels++
		switch {
		case !ch.subscribed:
			unsubscribed++
		case ch.refs > 0:
			silence = max(silence, ch.conn.silence())
		}
	}
	return channels, unsubscribed, silence
}

// Reliable reports whether waiters may count on the messages of a channel: the server has acknowledged it, and there is no doubt.
func (s *Subscriber) Reliable(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channels[name]
	return ch != nil && ch.subscribed && !time.Now().Before(ch.doubtedUntil)
}

// Doubt notes that the server passes over the waiters of a channel though it has acknowledged it: it does not count this subscriber, because
// a proxy keeps the subscription elsewhere, or has dropped it. For ten minutes nobody counts on the channel, and it is subscribed
// anew once. Doubt reports whether that is news.
func (s *Subscriber) Doubt(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch, now := s.channels[name], time.Now()
	if ch == nil || now.Before(ch.doubtedUntil) {
		return false
	}
	ch.doubtedUntil = now.Add(doubtTTL)
	if ch.conn != nil {
		s.discardLocked(ch.conn)
	}
	return true
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
		ch = &channel{prefix: name, ids: []string{s.unusedLocked()}, settled: make(chan struct{}), idleSince: time.Now()}
		s.channels[name], s.names[name+ch.ids[0]], s.drawnAt = ch, ch, time.Time{}
		s.sweepLaterLocked(channelIdleTimeout)
		s.reconnectLocked()
	}
	return ch
}

// ID returns the id for the token of a request, to which messages are then published.
func (s *Subscriber) ID(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.channels[name]; ch != nil {
		return ch.ids[len(ch.ids)-1]
	}
	return s.unusedLocked()
}

// unusedLocked returns the id of a channel that there is not yet: a new one, unless one was drawn just now for a request that is under way.
func (s *Subscriber) unusedLocked() string {
	if now := time.Now(); now.Sub(s.drawnAt) >= unusedTTL {
		s.unused, s.drawnAt = s.cfg.NewID(), now
	}
	return s.unused
}

// renewIDs draws ids for the requests to come on channels that have lost their connection, and removes those that are not in use. While the
// server is out of reach, an id that requests have is not replaced, so that there are not more and more.
func (s *Subscriber) renewIDs(channels []*channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	channels = slices.DeleteFunc(slices.Clone(channels), func(ch *channel) bool { return !ch.stale })
	if len(channels) == 0 {
		return
	}
	s.mu.Unlock()
	inUse := s.cfg.InUse()
	s.mu.Lock()
	for _, ch := range channels {
		if s.channels[ch.prefix] != ch {
			continue // it was given up meanwhile
		}
		for _, name := range ch.allNames() {
			delete(s.names, name)
		}
		last := ch.ids[len(ch.ids)-1]
		ch.ids = slices.DeleteFunc(ch.ids, func(id string) bool { return !inUse[id] })
		if ch.acknowledged || !inUse[last] {
			ch.ids, ch.acknowledged = append(ch.ids, s.cfg.NewID()), false
		}
		for _, name := range ch.allNames() {
			s.names[name] = ch
		}
	}
}

// trim unsubscribes from names of a channel that are no longer in use, and comes back while there are others.
func (s *Subscriber) trim(ch *channel) {
	time.AfterFunc(trimInterval, func() {
		inUse := s.cfg.InUse()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed || !ch.subscribed || s.channels[ch.prefix] != ch || len(ch.ids) == 1 {
			return // when it is subscribed again, trim is called again
		}
		c, last, unused := ch.conn, ch.ids[len(ch.ids)-1], []string(nil)
		ch.ids = slices.DeleteFunc(ch.ids, func(id string) bool {
			if inUse[id] || id == last {
				return false
			}
			delete(s.names, ch.prefix+id)
			unused = append(unused, ch.prefix+id)
			return true
		})
		if len(unused) > 0 {
			s.wg.Go(func() { c.unsubscribe(unused) })
		}
		s.trim(ch)
	})
}

// allNames returns the names of a channel.
func (ch *channel) allNames() (names []string) {
	for _, id := range ch.ids {
		names = append(names, ch.prefix+id)
	}
	return names
}

// Hold marks the channel as in use by one more queue of waiters. Release undoes it. If the channel was unused for
// so long that it was given up meanwhile, it is subscribed again in the background.
func (s *Subscriber) Hold(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channelLocked(name)
	if ch.refs++; ch.subscribed {
		ch.conn.watchLocked()
	}
}

// Use makes the id of a request that waits one of the channel's, which it is not yet if the channel was made after the request.
func (s *Subscriber) Use(name, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channels[name]
	switch {
	case ch == nil:
		s.unused, s.drawnAt = id, time.Now() // which the channel gets
		s.channelLocked(name)
	case !slices.Contains(ch.ids, id):
		ch.ids = slices.Insert(ch.ids, 0, id)
		s.names[name+id] = ch
		if ch.conn != nil { // it is subscribed once more, by all its names
			s.detachLocked(ch)
			s.reconnectLocked()
		}
	}
}

// Begin subscribes to the channel in the background.
func (s *Subscriber) Begin(name string) {
	ctx, cancel := context.WithCancel(s.closing)
	cancel()
	_ = s.Subscribe(ctx, name)
}

// Release undoes a Hold. An unused channel stays subscribed for a while, because it is likely to be used again.
func (s *Subscriber) Release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.channels[name]; ch != nil && ch.refs > 0 {
		ch.refs--
		ch.idleSince = time.Now()
		s.sweepLaterLocked(channelIdleTimeout)
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

// sweepLaterLocked lets sweep run after that time, unless it is to run already. On a single server there is only one channel, which stays.
func (s *Subscriber) sweepLaterLocked(after time.Duration) {
	if s.Sharded() && !s.sweeping {
		s.sweeping = true
		time.AfterFunc(after, s.sweep)
	}
}

// sweep unsubscribes from channels that have been unused for channelIdleTimeout, and comes back while others are unused.
func (s *Subscriber) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeping = false
	next := time.Duration(0)
	for name, ch := range s.channels {
		left := channelIdleTimeout - time.Since(ch.idleSince)
		switch {
		case ch.refs > 0 || s.closed:
		case left > 0 && (next == 0 || left < next):
			next = left
		case left <= 0:
			delete(s.channels, name)
			names := ch.allNames()
			for _, name := range names {
				delete(s.names, name)
			}
			if c := ch.conn; c != nil {
				s.wg.Go(func() { c.unsubscribe(names) })
			}
		}
	}
	if next > 0 {
		s.sweepLaterLocked(max(next, sweepInterval))
	}
}

// detachLocked removes a channel from its connection.
func (s *Subscriber) detachLocked(ch *channel) {
	ch.conn, ch.stale = nil, true
	if ch.subscribed {
		ch.subscribed, ch.settled = false, make(chan struct{})
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
			case <-time.After(s.backoff.Next(10*time.Millisecond, time.Second)):
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
	s.renewIDs(channels)
	byNode := map[*redis.Client][]*channel{}
	for _, ch := range channels {
		node, err := s.cfg.Client.Primary(s.closing, ch.prefix)
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
	if c == nil || !c.openLocked() {
		return
	}
	for _, ch := range channels {
		ch.conn, ch.pending, ch.stale = c, ch.allNames(), false
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
			s.wg.Go(func() { s.cfg.Unacknowledged(ch.prefix) })
			return
		}
	}
}

// afterAckTimeout calls f after ackTimeout, in two halves: a process that was frozen finds that a timer is over before it has read the answer
// that came meanwhile.
func afterAckTimeout(f func()) {
	time.AfterFunc(ackTimeout/2, func() { time.AfterFunc(ackTimeout/2, f) })
}
