// Package pubsub receives the messages that say that a waiter was granted its lease, or that a lease was broken. Each keeper (package keeper) has
// one Subscriber. In order:
//
//  1. A request takes the ID of its channel into its token. Messages for it are published to the name that ends with this id.
//  2. When the request waits or has a lease, Use, Hold and Begin subscribe to the channel in the background, at the channel's node (conn.go).
//  3. The server acknowledges the channel: Config.Subscribed is called, and Config.Received for each message from then on.
//  4. If the connection is lost, or is dead without being closed (ping.go), its channels are subscribed on a new one.
//  5. Release: on a cluster, a channel that stays unused for a minute is unsubscribed.
//
// Safety never depends on a message, and a lost message delays a waiter by one heartbeat at most.
//
// Mutexes: only that of the Subscriber, under which no other is taken. Of Config's functions only NewID is called under it.
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
)

// ErrDenied is returned by Subscribe when the server refuses the subscription: the user has no right to the channel, or
// the server does not know the command.
var ErrDenied = errors.New("subscription refused")

// ErrClosed is returned by Subscribe after Close.
var ErrClosed = errors.New("closed")

const (
	ackTimeout         = 5 * time.Second  // for an acknowledgement, or the answer to a PING; then the connection is closed
	denialTTL          = time.Minute      // how long a refused channel is not tried again
	doubtTTL           = 10 * time.Minute // how long waiters do not rely on a channel after Doubt
	channelIdleTimeout = time.Minute      // how long an unused channel stays subscribed
	unusedTTL          = time.Second      // how long requests share an id before there is a channel for it
	trimInterval       = 5 * time.Second  // between removals of ids that are no longer in use from a channel with several
	sweepInterval      = time.Second      // between looks for unused channels, at least; there may be many channels
)

// Config is what a Subscriber needs. All fields are required.
type Config struct {
	Client     *client.Client
	NewID      func() string                   // draws an id, without ":", for the end of a channel's name
	InUse      func() map[string]bool          // the ids that messages may still be published to; called without any mutex of this package
	Received   func(payload string)            // called for each message, from one goroutine per connection; must not block
	Subscribed func(channel string)            // called when the server acknowledges a channel, the first time and after each reconnection
	Denied     func(channel string, err error) // called once when the server refuses a channel
	// Unacknowledged is called when the server has not acknowledged a channel in time. The channel is then subscribed on another connection.
	Unacknowledged func(channel string)
}

// Subscriber subscribes to channels. It is safe for concurrent use.
type Subscriber struct {
	cfg     Config
	backoff random.Backoff // between failed attempts; used by reconnect only

	mu           sync.Mutex // guards the fields below; not held while a command is sent
	channels     map[string]*channel
	names        map[string]*channel // each channel by all its names
	unused       string              // the id of the next channel
	drawnAt      time.Time           // when unused was drawn
	conns        map[*conn]struct{}
	sweeping     bool // sweep is scheduled
	failures     int  // connections lost, and failed node lookups, since the last acknowledgement
	shortLived   int  // connections lost in a row that lasted for less than a second
	reconnecting bool // a goroutine is in reconnect
	closed       bool
	closing      context.Context
	close        context.CancelFunc
	wg           sync.WaitGroup
}

// channel is a channel that is or will be subscribed. The methods of Subscriber take its prefix as name. At the server it has one name or
// several: the prefix and each of its ids.
//
// A channel that has lost its connection gets a new id for the requests to come. If two processes were restored from one snapshot, at
// most one of them still has the connection; the other draws a new id, so they do not go on with the same one.
type channel struct {
	prefix       string
	ids          []string      // the last one is for requests to come
	acknowledged bool          // the server has acknowledged the last id
	stale        bool          // it was detached from its connection, so renewIDs draws a new id
	pending      []string      // names that the server has not acknowledged on conn
	conn         *conn         // on which it is or will be subscribed; nil: none is assigned
	subscribed   bool          // the server has acknowledged all names on conn
	subscribedAt time.Time     // when the server acknowledged it
	doubtedUntil time.Time     // until then waiters do not rely on it; see Doubt
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

// Stats returns how many channels there are, how many of them are not subscribed, and the longest silence of a connection that waiters use.
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

// Reliable reports whether waiters may rely on the messages of a channel: the server has acknowledged it, and Doubt was not called lately.
func (s *Subscriber) Reliable(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channels[name]
	return ch != nil && ch.subscribed && !time.Now().Before(ch.doubtedUntil)
}

// Doubt notes that the server passes over the waiters of a channel because it does not see the subscription that it has acknowledged: a proxy
// keeps the subscription elsewhere, or has dropped it. For ten minutes the channel is not Reliable, and it is subscribed anew once. Doubt
// returns false if these ten minutes are already running.
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

// channelLocked returns the channel. If there is none, it creates one and subscribes to it in the background.
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

// ID returns the id for the token of a new request. Messages for the request are published to the channel's name with this id.
func (s *Subscriber) ID(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.channels[name]; ch != nil {
		return ch.ids[len(ch.ids)-1]
	}
	return s.unusedLocked()
}

// unusedLocked returns the id for a channel that does not exist yet: a new one, or that of the requests within the last unusedTTL.
func (s *Subscriber) unusedLocked() string {
	if now := time.Now(); now.Sub(s.drawnAt) >= unusedTTL {
		s.unused, s.drawnAt = s.cfg.NewID(), now
	}
	return s.unused
}

// renewIDs draws an id for the requests to come on each channel that has lost its connection, and removes ids that are not in use. The last
// id stays if requests use it and the server has not acknowledged it: otherwise each attempt during an outage would add an id.
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
			continue // it was swept meanwhile
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

// trim unsubscribes from names of a channel that are no longer in use, after trimInterval and again until one name is left.
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

func (ch *channel) allNames() (names []string) {
	for _, id := range ch.ids {
		names = append(names, ch.prefix+id)
	}
	return names
}

// Hold marks the channel as in use by one more queue of waiters. Release undoes it. A channel that was swept is subscribed again.
func (s *Subscriber) Hold(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channelLocked(name)
	if ch.refs++; ch.subscribed {
		ch.conn.watchLocked()
	}
}

// Use adds the id of a waiting request to the channel's ids. It is missing there if the channel was created after the request was.
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

// sweepLaterLocked schedules sweep, unless it is scheduled. On a single server there is only one channel, which stays.
func (s *Subscriber) sweepLaterLocked(after time.Duration) {
	if s.Sharded() && !s.sweeping {
		s.sweeping = true
		time.AfterFunc(after, s.sweep)
	}
}

// sweep unsubscribes from channels that have been unused for channelIdleTimeout, and schedules itself while others are unused.
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

// reconnect assigns connections until every channel has one. It pauses before an attempt if there were two failures without an acknowledgement
// in between, or two connections in a row that lasted for less than a second.
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
	byNode := map[client.Node][]*channel{}
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
func (s *Subscriber) subscribeOn(node client.Node, channels []*channel) {
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

// checkAck closes the connection if one of the channels on it is neither acknowledged nor refused.
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

// afterAckTimeout calls f after ackTimeout, by two timers of half the time. When a frozen process resumes, a timer fires at once; the second
// one leaves time to read the answer that came meanwhile.
func afterAckTimeout(f func()) {
	time.AfterFunc(ackTimeout/2, func() { time.AfterFunc(ackTimeout/2, f) })
}
