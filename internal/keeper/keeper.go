// Package keeper acquires leases at one server or Cluster, for all primitives, renews them, and removes what they leave at the server. Package
// claim decides what becomes of a token, and package queue when the waiters of a name send heartbeats; this package does what they say, and
// reports to them what happened. Each lockkeeper.Keeper has one Keeper. The primitives call it with a Spec and their scripts; so do packages
// share (a lease that callers of the process share), ahead (blocks of permits) and quorum (leases at several servers).
//
// In order: Acquire makes a request, which sends acquire. If the server grants the lease, the caller has it. Otherwise the request joins the
// queue of its name, which sends heartbeats, until a message or the answer to a heartbeat brings the grant. From then on the lease is
// renewed, until it is released or found to be lost.
//
// The way of a request:
//
//	lock.go        Lock: one name of one primitive. Acquire, Try, Do, Adopt
//	local.go       the callers of this process that wait for a mutex, of which one asks the server
//	request.go     request: the calls that ask for a lease, and the caller that waits for it
//	queue.go       the requests of this process that the server has queued, by name, and their heartbeats
//	messages.go    messages: a request was granted its lease, somebody has broken a lease, a waiter is to ask again
//	replicas.go    the wait until replicas have a grant
//	part.go        AskPart: a request for a part of a lease at several servers
//	limits.go      the limits of semaphores and rate limits
//
// The way of a lease:
//
//	lease.go       Lease, and the set of those that are held
//	effects.go     what is done after each step of a claim, before the grant and after it
//	renewal.go     renewals, and Extend
//	release.go     Release and Cleanup: the lease is freed, or a tombstone or the record of once takes its place
//	conversion.go  Upgrade and Downgrade of a read-write lock's lease
//	loss.go        leases that the server does not have any more, and who has broken them
//	event.go, leak.go, observer.go   reports: to hooks, to the log, to package share or quorum
//
// keeper.go makes the Keeper, and closes it.
//
// # Time
//
// The server goes by its own clock (TIME), this process by its monotonic clock. A deadline counts from when the request was sent, which is before
// the server granted the lease, so a holder never trusts a lease longer than the server grants it.
//
// # Locks
//
// Mutexes are taken in this order, so that whoever holds one may lock those after it:
//
//  1. share.name, ahead.Permits, quorum.Lease: these packages may call keeper under them
//  2. Lease (Mu of its Lifecycle), which also guards its request
//  3. waitQueues, then waitQueue
//  4. one of leaseSet, localQueues, messages, leakLog, Observation, Keeper
//  5. one of packages server, timers, pubsub, transport
//
// No mutex of this package is held during a round trip, or when a hook or an Observer is called: so an Observer may lock its own, as
// share's CleanedUp does. A field that no mutex guards does not change once its struct is in use, unless its comment says so.
package keeper

import (
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/lru"
	"github.com/lockkeeper/lockkeeper/internal/pubsub"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// Config configures a keeper. All fields are required but Observe, Owner, LongWait and ReplicaAck.
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

// Keeper is safe for concurrent use.
type Keeper struct {
	*server.Server
	events
	messages  *messages
	queues    *waitQueues
	local     *localQueues
	leases    leaseSet
	leaks     leakLog
	bugs      server.LogLimit // of LogBug
	listens   atomic.Bool     // a lease has made the keeper begin to subscribe; see listen
	cfg       Config
	upgrades  atomic.Uint64   // requests to upgrade a lease so far
	uncounted server.LogLimit // of warnUncounted
	longWaits views.LongWaits
	dropped   runtime.Cleanup // counts the keeper as closed if it becomes unreachable without Close
	ending    chan struct{}   // has an element for each wait whose end is handled now; see request.wait

	mu           sync.Mutex // guards what follows; no command runs under it
	closed       bool
	onClose      map[CloseObserver]struct{}
	replicas     map[string]int                 // the most replicas seen at a primary, by its address
	fastBackoffs *lru.Map[*server.FastBackoffs] // by the lock's key
	settings     *settings                      // of the last Lock; the next one shares them if they are the same
}

// maxFastBackoffs is how many names keep their FastBackoffs: those for which a Lock was made last.
const maxFastBackoffs = 10_000

// New returns a keeper. It does no I/O and starts no goroutine.
func New(cfg Config) *Keeper {
	k := &Keeper{
		cfg:          cfg,
		longWaits:    views.LongWaits{Bound: cfg.LongWait},
		ending:       make(chan struct{}, runtime.GOMAXPROCS(0)),
		onClose:      map[CloseObserver]struct{}{},
		replicas:     map[string]int{},
		fastBackoffs: lru.New[*server.FastBackoffs](maxFastBackoffs),
	}
	k.messages = newMessages(k)
	k.leases.held = map[*Lease]struct{}{}
	s := server.New(cfg.Config, pubsub.Config{Received: k.messages.Received, Subscribed: k.subscribed, Denied: k.denied, Unacknowledged: k.unacknowledged, InUse: k.inUse})
	k.Server, k.observe, k.leaks.s = s, cfg.Observe, s
	k.queues = newWaitQueues(k)
	k.local = newLocalQueues(s, k.queues.heartbeatIfStale)
	k.leaks.timer.Handler = timers.Func(k.leaks.logCounted)
	k.dropped = runtime.AddCleanup(k, (*client.Client).Closed, cfg.Client)
	if cfg.Client.Opened() {
		cfg.Log.Warn("lockkeeper: many keepers are open on one client, each with goroutines and connections; use one per process, and close it",
			"keepers", client.Many)
	}
	return k
}

// subscribed handles the acknowledgement of a subscription. Messages may have been lost before it, so all waiters of the channel send a
// heartbeat.
func (k *Keeper) subscribed(channel string) { k.queues.heartbeatsOf(channel) }

// inUse returns the keeper ids in the tokens of requests and leases, because messages may still be published to these ids.
func (k *Keeper) inUse() map[string]bool {
	ids := map[string]bool{}
	tokens := k.messages.Tokens()
	for _, h := range k.leases.all() {
		tokens = append(tokens, h.token)
	}
	for _, token := range tokens {
		id, _, _ := strings.Cut(token, ":")
		ids[id] = true
	}
	return ids
}

// denied handles the refusal of a subscription. All waiters of the channel send a heartbeat at once, which says that they cannot receive
// messages: the server would pass over them otherwise.
func (k *Keeper) denied(channel string, err error) {
	k.Config.Log.Warn("lockkeeper: no right to subscribe to wake-ups; waiters ask at their heartbeats instead",
		"channel", channel, "error", err)
	k.queues.heartbeatsOf(channel)
}

// unacknowledged handles that a subscription was not acknowledged in time.
func (k *Keeper) unacknowledged(channel string) {
	k.warnUncounted(channel, "the server has not acknowledged the subscription")
}

// warnUncounted logs that waiters do not count on the channel's subscription.
func (k *Keeper) warnUncounted(channel, reason string) {
	k.uncounted.Log(k.Config.Log, slog.LevelWarn, "lockkeeper: wake-ups may not reach this process; its waiters keep their order and learn of their turns by heartbeats",
		"reason", reason, "channel", channel)
}

// Leases returns how many leases are held.
func (k *Keeper) Leases() int { return k.leases.count() }

// Requests returns how many requests have not ended.
func (k *Keeper) Requests() int { return k.messages.Requests() }

// Waiters returns how many requests the server has queued.
func (k *Keeper) Waiters() int { return k.queues.waiters() }

// Close ends all waits with ErrClosed, releases the leases and queue entries, and waits for the answers, for CloseTimeout at most. go-redis
// cannot be interrupted: a command that is not answered by then ends in the background, at the latest by the client's own timeouts. A command
// that is not sent by then is sent only if the server answers.
func (k *Keeper) Close() error {
	first := k.BeginClose()
	if first {
		k.dropped.Stop()
		k.cfg.Client.Closed()
	}
	k.mu.Lock()
	k.closed = true
	observers := slices.Collect(maps.Keys(k.onClose))
	k.mu.Unlock()
	holds := k.leases.close()
	waiters := k.messages.Close()

	k.EndWaits()
	for _, r := range waiters {
		r.Step(claim.Event{Kind: claim.Closed}, nil)
	}
	for _, o := range observers { // first, so that a lease made of parts is released, and not lost with its parts
		o.KeeperClosed()
	}
	var cleanups []*Cleanup
	var lost error // of a lease whose deadline had passed unnoticed
	for _, h := range holds {
		c, err := h.StartRelease()
		if err != nil {
			lost = err
		} else if c == nil { // KeeperClosed has released it
			c = h.Cleanup()
		}
		if c != nil {
			cleanups = append(cleanups, c)
		}
	}
	if first {
		go k.Shutdown()
	}
	over := k.WaitShutdown()
	for _, c := range cleanups {
		if err := c.ErrNow(); err != nil {
			return err
		}
	}
	if lost == nil && !over {
		return server.ErrStillClosing
	}
	return lost
}
