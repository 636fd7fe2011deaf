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
	ackLimit    = 5 * time.Second // a connection that has not acknowledged by then is given up
	deniedFor   = time.Minute     // how long a refusal is believed before it is tried again
	idleChannel = time.Minute     // how long a channel that nobody waits on is kept
)

// Config is what an Ear needs. All fields but Denied are required.
type Config struct {
	Client  *client.Client
	Heard   func(payload string)            // a message; called from one goroutine per connection, must not block
	Resumed func(channel string)            // the server has acknowledged a channel, at first or again
	Denied  func(channel string, err error) // the server refuses a channel; told once per refusal
}

// Ear is safe for concurrent use.
type Ear struct {
	cfg   Config
	pause *backoff.ExponentialBackOff // between attempts that fail; used by mend alone

	mu       sync.Mutex // guards what follows; no command runs under it
	channels map[string]*channel
	links    map[*link]struct{}
	failures int  // connections given up since the server acknowledged something
	mending  bool // a goroutine is in mend
	closed   bool
	closing  context.Context
	close    context.CancelFunc
	work     sync.WaitGroup
}

// channel is one that is wanted.
type channel struct {
	name    string
	link    *link         // the connection it is or will be heard on; nil while it has none
	heard   bool          // the server has acknowledged it on link
	since   time.Time     // when it did
	denied  error         // why the server refused it
	until   time.Time     // how long the refusal is believed
	settled chan struct{} // closed as long as it is heard or denied
	users   int           // lines of waiters that need it
	idle    time.Time     // since when there are none
}

// link is one subscription connection.
type link struct {
	ear  *Ear
	node *redis.Client // of a cluster; nil on a single server
	sub  *redis.PubSub
}

// New returns an Ear that listens to nothing. It does no I/O and starts no goroutine.
func New(cfg Config) *Ear {
	e := &Ear{cfg: cfg, channels: map[string]*channel{}, links: map[*link]struct{}{}}
	e.pause = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(0))
	e.closing, e.close = context.WithCancel(context.Background())
	return e
}

// Sharded says whether messages must be sent by SPUBLISH.
func (e *Ear) Sharded() bool { return e.cfg.Client.IsCluster() }

// Listening says whether the server has acknowledged the channel and the connection still stands, as far as is known.
func (e *Ear) Listening(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.channels[name]
	return c != nil && c.heard
}

// Since is when the server last acknowledged the channel; the zero time if it is not heard now.
func (e *Ear) Since(name string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil && c.heard {
		return c.since
	}
	return time.Time{}
}

// Listen returns once the server has acknowledged the channel. It blocks until then, until the server refuses it
// (ErrDenied), until ctx ends, or until the Ear is closed.
func (e *Ear) Listen(ctx context.Context, name string) error {
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return ErrClosed
		}
		c := e.channels[name]
		if c == nil {
			c = &channel{name: name, settled: make(chan struct{}), idle: time.Now()}
			e.channels[name] = c
			e.sweepLocked()
		}
		if c.heard {
			e.mu.Unlock()
			return nil
		}
		if c.denied != nil {
			if err := c.denied; time.Now().Before(c.until) {
				e.mu.Unlock()
				return fmt.Errorf("%w: %w", ErrDenied, err)
			}
			c.denied, c.settled = nil, make(chan struct{})
		}
		settled := c.settled
		e.mendLocked()
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

// Use says that a line of waiters needs the channel from now on, Drop that it needs it no longer.
func (e *Ear) Use(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil {
		c.users++
	}
}

// Drop undoes a Use. The channel is kept a while, because who waited once will wait again.
func (e *Ear) Drop(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil && c.users > 0 {
		c.users--
		c.idle = time.Now()
	}
}

// Replace gives up the connection that the channel is on: messages were sent to it and not heard.
func (e *Ear) Replace(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[name]; c != nil && c.link != nil {
		e.cutLocked(c.link)
	}
}

// Close ends all subscriptions and waits for the goroutines.
func (e *Ear) Close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		e.close()
		for l := range e.links {
			e.cutLocked(l)
		}
	}
	e.mu.Unlock()
	e.work.Wait()
}

// sweepLocked drops channels that nobody has waited on for a while; on a single server there is but one.
func (e *Ear) sweepLocked() {
	if !e.Sharded() {
		return
	}
	for name, c := range e.channels {
		if c.users > 0 || time.Since(c.idle) < idleChannel {
			continue
		}
		delete(e.channels, name)
		if l := c.link; l != nil {
			e.work.Go(func() { _ = l.sub.SUnsubscribe(e.closing, name) })
		}
	}
}

// cutLocked gives up a connection; its channels are looked for anew.
func (e *Ear) cutLocked(l *link) {
	if _, lives := e.links[l]; !lives {
		return
	}
	delete(e.links, l)
	e.failures++
	e.cfg.Client.Reload(e.closing)
	e.work.Go(func() { _ = l.sub.Close() }) // it may block for as long as go-redis is reconnecting
	for _, c := range e.channels {
		if c.link == l {
			e.looseLocked(c)
		}
	}
	e.mendLocked()
}

// looseLocked takes a channel off its connection.
func (e *Ear) looseLocked(c *channel) {
	c.link = nil
	if c.heard {
		c.heard, c.settled = false, make(chan struct{})
	}
}

// mendLocked sees to it that every channel gets a connection.
func (e *Ear) mendLocked() {
	if e.mending || e.closed {
		return
	}
	e.mending = true
	e.work.Go(e.mend)
}

// mend connects until every channel has a connection. The first loss is mended at once; when losses follow each other
// and the server acknowledges nothing in between, it takes its time.
func (e *Ear) mend() {
	for {
		loose, failures := e.loose()
		switch {
		case len(loose) == 0:
			return
		case failures <= 1:
			e.pause.Reset()
		default:
			t := time.NewTimer(e.pause.NextBackOff())
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

// loose is the channels that have no connection, and how often connecting has failed. None ends mending.
func (e *Ear) loose() ([]*channel, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*channel
	for _, c := range e.channels {
		if c.link == nil && c.denied == nil && !e.closed {
			list = append(list, c)
		}
	}
	e.mending = len(list) > 0
	return list, e.failures
}

// connect asks for the channels, each where it belongs.
func (e *Ear) connect(loose []*channel) {
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
		e.subscribe(node, list)
	}
}

func (e *Ear) subscribe(node *redis.Client, list []*channel) {
	l := e.link(node)
	if l == nil {
		return
	}
	names := make([]string, len(list))
	e.mu.Lock()
	if _, lives := e.links[l]; !lives {
		e.mu.Unlock()
		return
	}
	for i, c := range list {
		c.link = l
		names[i] = c.name
	}
	e.mu.Unlock()
	if err := e.request(l, names); err != nil {
		e.cut(l)
		return
	}
	time.AfterFunc(ackLimit, func() { e.overdue(l, list) })
}

// request asks for channels. Sharded ones go one by one: a command may not name two slots.
func (e *Ear) request(l *link, names []string) error {
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

// link is the connection to the node, a new one if there is none; nil after Close.
func (e *Ear) link(node *redis.Client) *link {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	for l := range e.links {
		if l.node == node {
			return l
		}
	}
	l := &link{ear: e, node: node}
	if node != nil {
		l.sub = node.SSubscribe(e.closing)
	} else {
		l.sub = e.cfg.Client.Subscribe(e.closing)
	}
	e.links[l] = struct{}{}
	e.work.Go(l.receive)
	return l
}

// overdue gives up a connection that has not acknowledged what was asked of it.
func (e *Ear) overdue(l *link, list []*channel) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range list {
		if c.link == l && !c.heard && c.denied == nil && !e.closed {
			e.cutLocked(l)
			return
		}
	}
}

func (e *Ear) cut(l *link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cutLocked(l)
}

// receive hears one connection to its end.
func (l *link) receive() {
	for {
		msg, err := l.sub.Receive(context.Background())
		if err != nil {
			if l.failed(err) {
				return
			}
			continue
		}
		switch msg := msg.(type) {
		case *redis.Message:
			l.ear.cfg.Heard(msg.Payload)
		case *redis.Subscription:
			l.subscribed(msg)
		}
	}
}

func (l *link) subscribed(s *redis.Subscription) {
	e := l.ear
	e.mu.Lock()
	c := e.channels[s.Channel]
	if c == nil || c.link != l {
		e.mu.Unlock()
		return
	}
	switch s.Kind {
	case "subscribe", "ssubscribe":
		if !c.heard {
			c.heard, c.since = true, time.Now()
			close(c.settled)
		}
		e.failures = 0
		e.mu.Unlock()
		e.cfg.Resumed(s.Channel)
		return
	case "sunsubscribe": // the slot has moved; go-redis does not follow it (issues 3099, 3133)
		e.looseLocked(c)
		e.cfg.Client.Reload(e.closing)
		e.mendLocked()
	}
	e.mu.Unlock()
}

// failed deals with an error from the connection; it says whether that was its end.
func (l *link) failed(err error) bool {
	e := l.ear
	e.mu.Lock()
	if _, lives := e.links[l]; !lives {
		e.mu.Unlock()
		return true
	}
	if transport.FateOf(err) != transport.Answered || transport.Passing(err) {
		// Also when a slot is elsewhere (MOVED): the reply does not say which, so all are looked for anew.
		e.cutLocked(l)
		e.mu.Unlock()
		return true
	}
	var denied []string
	for name, c := range e.channels {
		if c.link == l && !c.heard {
			c.link, c.denied, c.until = nil, err, time.Now().Add(deniedFor)
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
