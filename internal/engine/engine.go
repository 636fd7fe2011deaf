// Package engine implements what all primitives share, on one server or cluster: it sends requests, waits in queues, sends
// heartbeats, receives wake-ups, renews leases and detects their loss. There is one Engine per keeper. A primitive adds a
// policy in Lua and a Spec.
//
//   - Engine (engine.go) owns the use of the client: one transport, one subscription, one set of timers.
//   - Lock (lock.go) is one name of one primitive.
//   - Lease (lease.go) is one token from the request on: a claim, which decides what becomes of it (package claim), and what this process
//     has for it. effects.go does what the claim says. request (request.go) is what it needs until it is granted, Cleanup (cleanup.go)
//     what releases it, renewal.go, extend.go and convert.go what else is asked of the server for it; its Lifecycle (package
//     lifecycle) is its end and its contexts.
//   - Requests that wait, and messages, are in package wait; leases by which others are granted inside the process, in package retainer, above
//     this one, of which the driver knows only what a lease's Observer is told (observer.go).
//   - Package protocol encodes and decodes what these send and receive; package server prepares all calls and repeats those
//     that somebody waits for.
//
// Time: the server goes by its own clock, TIME. This process goes by the monotonic clock and counts a deadline from before
// the request was sent that the server answered, so a holder never trusts a lease longer than the server grants it.
//
// # Locks
//
// Mutexes are taken in this order: Lease (its Lifecycle's), the Lease that it is to replace, Engine. Those of packages retainer, wait, server,
// timers, pubsub and transport, and of leakLog, come last: nothing of this package is locked under them. No mutex is held during a round trip,
// while a reply or a message is handled, or while a hook, an Observer or a CloseObserver is called, unless Sharing says so. Fields that no mutex
// guards do not change once their struct is in use, unless they say so.
package engine

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/pubsub"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/internal/wait"
)

// Config configures an engine. All fields are required but Observe, Owner, LongWait and ReplicaAck.
type Config struct {
	server.Config
	Observe  func(Event)
	LongWait time.Duration // after which a wait is logged; 0: never
	// ReplicaAck says which replicas must have a grant before its lease is returned.
	ReplicaAck ReplicaAck
	// NotAcknowledged returns the error for a grant that replicas did not acknowledge in time. Local reports whether the
	// primary has the grant on disk or need not; cause is nil if the time was over.
	NotAcknowledged func(replicas, wanted int, local bool, cause error) error
	// Broken returns the reason of a lease or a request that somebody has ended with Break.
	Broken func(by, reason string) error
}

// Engine is safe for concurrent use.
type Engine struct {
	*server.Server
	cfg       Config
	serials   protocol.Serials
	upgrades  atomic.Uint64 // requests for them so far
	observed  atomic.Uint64 // calls that the observer was told of
	listens   atomic.Bool   // a lease has made the keeper begin to subscribe; see listen
	queues    *wait.Queues
	local     *wait.Local
	Messages  *wait.Messages
	longWaits views.LongWaits
	leaks     leakLog

	mu         sync.Mutex // guards what follows; no command runs under it
	closed     bool
	leases     map[*Lease]struct{}
	onClose    map[CloseObserver]struct{}
	replicas   map[string]int             // the most that a primary was seen to have, by its address
	shortForms *retain.Names[*shortForms] // by the lock's key
}

// New returns an engine. It does no I/O and starts no goroutine.
func New(cfg Config) *Engine {
	e := &Engine{
		cfg:        cfg,
		longWaits:  views.LongWaits{Bound: cfg.LongWait},
		leases:     map[*Lease]struct{}{},
		onClose:    map[CloseObserver]struct{}{},
		replicas:   map[string]int{},
		shortForms: retain.NewNames[*shortForms](maxShortForms),
	}
	e.Messages = wait.NewMessages(e.broken, func() { e.observe(Event{Type: WakeupLost}) })
	e.leaks.timer.Handler = timers.Func(e.logLeaks)
	e.Server = server.New(cfg.Config, pubsub.Config{Received: e.Messages.Received, Subscribed: e.subscribed, Denied: e.denied})
	e.Messages.Begin(e.Server)
	e.queues = wait.NewQueues(e.Server, e.Messages)
	e.local = wait.NewLocal(e.Server, e.queues.HeartbeatIfStale)
	return e
}

// subscribed handles the acknowledgement of a subscription. Messages may have been lost before it, so all waiters of the channel send a
// heartbeat, and retained leases ask whether they were recalled.
func (e *Engine) subscribed(channel string) {
	e.queues.HeartbeatsOf(channel)
	e.Messages.Subscribed(channel)
}

// denied handles the refusal of a subscription. Its waiters say at once that they cannot receive messages, to keep their places.
func (e *Engine) denied(channel string, err error) {
	e.Config.Log.Warn("lockkeeper: no right to subscribe to wake-ups; waiters ask at their heartbeats instead",
		"channel", channel, "error", err)
	e.queues.HeartbeatsOf(channel)
}

// Close wakes all waiters with ErrClosed, releases what they and the holders have, and waits until that is done, for
// CloseTimeout. go-redis cannot be interrupted, so commands whose answers have not come by then, and the goroutines that wait
// for them, end in the background, as late as the client's own timeouts let them. What was not sent by then is sent only if the
// server answers.
func (e *Engine) Close() error {
	first, wait := e.BeginClose()
	e.mu.Lock()
	e.closed = true
	holds := make([]*Lease, 0, len(e.leases))
	for h := range e.leases {
		holds = append(holds, h)
	}
	observers := slices.Collect(maps.Keys(e.onClose))
	e.mu.Unlock()
	waiters := e.Messages.Close()

	e.EndWaits()
	for _, r := range waiters {
		r.Closed()
	}
	for _, o := range observers { // first, so that a lease made of parts is released, and not lost with its parts
		o.KeeperClosed()
	}
	var cleanups []*Cleanup
	var lost error // a deadline that has passed unnoticed
	for _, h := range holds {
		c, err := h.release(e.Transport.Send, false)
		if err != nil {
			lost = err
		} else if c == nil { // it was a part
			c = h.currentCleanup()
		}
		if c != nil {
			cleanups = append(cleanups, c)
		}
	}
	if first {
		go e.Shutdown()
	}
	over := e.WaitShutdown(wait)
	for _, c := range cleanups {
		if err := c.errNow(); err != nil {
			return err
		}
	}
	if lost == nil && !over {
		return server.ErrStillClosing
	}
	return lost
}

// cancelGrace is how long a caller whose context has ended waits at most for a cleanup.
const cancelGrace = time.Second
