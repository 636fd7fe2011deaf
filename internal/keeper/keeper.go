// Package keeper acquires leases at one server or Cluster, for all primitives. A primitive adds a Spec and its scripts; each keeper of the
// application has one Keeper.
//
// In order: Acquire makes a request and sends acquire. If the server grants the lease, the caller has it. Otherwise the request joins the
// queue of its name in package wait, which sends its heartbeats, until a message or the answer to a heartbeat brings the grant. From
// then on package lease renews the lease, releases it, and finds out when it is lost.
//
//   - Keeper (keeper.go) puts the server, its leases, those who wait and the messages together, and closes them.
//   - Lock (lock.go) is one name of one primitive; Convert (convert.go) replaces a lease by another one of the name.
//   - request (request.go) is what a Lease needs until it is granted: the calls, and the caller that waits.
//   - AskPart (part.go) asks for a part of a lease at several servers.
//   - Limits (limits.go) are those of semaphores and rate limits; replicas.go waits until replicas have a grant.
//
// Packages share (a lease that callers of the process share) and quorum (leases at several servers) are built on it.
//
// Time: the server goes by its own clock, TIME. This process goes by the monotonic clock and counts a deadline from before
// the request was sent that the server answered, so a holder never trusts a lease longer than the server grants it.
//
// The mutex of a Keeper is taken after those of package lease. No command runs under it.
package keeper

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/lru"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/pubsub"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/internal/wait"
)

// Config configures a keeper. All fields are required but Observe, Owner, LongWait and ReplicaAck.
type Config struct {
	server.Config
	Observe  func(lease.Event)
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
	*lease.Driver
	Messages  *wait.Messages
	queues    *wait.Queues
	local     *wait.Local
	cfg       Config
	upgrades  atomic.Uint64 // requests for them so far
	longWaits views.LongWaits
	dropped   runtime.Cleanup // of a keeper that nobody has closed
	ending    chan struct{}   // an element for each wait whose end is handled now; see request.wait

	mu           sync.Mutex // guards what follows; no command runs under it
	closed       bool
	onClose      map[CloseObserver]struct{}
	replicas     map[string]int                 // the most that a primary was seen to have, by its address
	fastBackoffs *lru.Map[*server.FastBackoffs] // by the lock's key
}

// maxFastBackoffs is of how many names the process remembers with which script to begin: those of which it has made a lock last.
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
	k.Messages = wait.NewMessages(
		func(serial string, b protocol.Breaker) { k.Broken(serial, b) },
		func() { k.Report(lease.Event{Type: lease.WakeupLost}) })
	s := server.New(cfg.Config, pubsub.Config{Received: k.Messages.Received, Subscribed: k.subscribed, Denied: k.denied, InUse: k.inUse})
	k.Messages.Begin(s)
	k.queues = wait.NewQueues(s, k.Messages)
	k.local = wait.NewLocal(s, k.queues.HeartbeatIfStale)
	k.Driver = lease.NewDriver(s, cfg.Observe, cfg.Broken, k.queues)
	k.dropped = runtime.AddCleanup(k, (*client.Client).Closed, cfg.Client)
	if cfg.Client.Opened() {
		cfg.Log.Warn("lockkeeper: many keepers are open on one client, each with goroutines and connections; use one per process, and close it",
			"keepers", client.Many)
	}
	return k
}

// subscribed handles the acknowledgement of a subscription. Messages may have been lost before it, so all waiters of the channel send a
// heartbeat.
func (k *Keeper) subscribed(channel string) { k.queues.HeartbeatsOf(channel) }

// inUse returns the ids of the keeper, with the addresses, in the tokens of its requests and leases.
func (k *Keeper) inUse() map[string]bool {
	ids := map[string]bool{}
	for _, token := range append(k.Messages.Tokens(), k.Tokens()...) {
		id, _, _ := strings.Cut(token, ":")
		ids[id] = true
	}
	return ids
}

// denied handles the refusal of a subscription. Its waiters say at once that they cannot receive messages, to keep their places.
func (k *Keeper) denied(channel string, err error) {
	k.Config.Log.Warn("lockkeeper: no right to subscribe to wake-ups; waiters ask at their heartbeats instead",
		"channel", channel, "error", err)
	k.queues.HeartbeatsOf(channel)
}

// Waiters returns how many requests the server has queued.
func (k *Keeper) Waiters() int { return k.queues.Waiters() }

// Close wakes all waiters with ErrClosed, releases what they and the holders have, and waits until that is done, for
// CloseTimeout. go-redis cannot be interrupted, so commands whose answers have not come by then, and the goroutines that wait
// for them, end in the background, as late as the client's own timeouts let them. What was not sent by then is sent only if the
// server answers.
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
	holds := k.CloseLeases()
	waiters := k.Messages.Close()

	k.EndWaits()
	for _, r := range waiters {
		r.Closed()
	}
	for _, o := range observers { // first, so that a lease made of parts is released, and not lost with its parts
		o.KeeperClosed()
	}
	var cleanups []*lease.Cleanup
	var lost error // a deadline that has passed unnoticed
	for _, h := range holds {
		c, err := h.StartRelease()
		if err != nil {
			lost = err
		} else if c == nil { // it was a part
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
