// Package engine is the machinery that every primitive shares: one engine per keeper, which sends the scripts, stands
// in line, beats, hears of grants, keeps leases alive and says when one is lost. A primitive adds a policy in Lua, and
// a Spec.
//
// The parts: an Engine owns the connection use. A Lock is one name of one kind. A waiter is one request on its way to
// a lease; the waiters of one name beat together in a line. A Hold is a lease. A departure gives something back, and
// goes on trying after everybody else has gone home.
//
// Which clock decides: on the server its own, by TIME. In this process the monotonic clock, and always counted from a
// moment before the request left that the server's answer refers to, so that a holder never believes longer than the
// server does.
package engine

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/pubsub"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

const (
	// tombstoneTTL is how long a token that was given up while a copy of its request was under way may not be granted.
	tombstoneTTL = time.Minute
	// closeTimeout bounds how long Close waits, and goes on trying to give things back.
	closeTimeout = 3 * time.Second
	// wakeupTimeout is how long a message may take that the server says it has sent, before the connection counts as deaf.
	wakeupTimeout = time.Second
)

// Config is what an engine needs; all fields are required but Observe and ReplicaAck.
type Config struct {
	Client            *client.Client
	Prefix            string
	HeartbeatInterval time.Duration // between the heartbeats of a waiter
	HeartbeatTimeout  time.Duration // how long a heartbeat counts
	MetadataTTL       time.Duration // how long a name's small facts are kept after its last use
	Retry             Retry
	Log               *slog.Logger
	Observe           func(Event)
	// ReplicaAck says what must have a grant before its lease is handed out.
	ReplicaAck ReplicaAck
	// NotAcknowledged makes the error for a grant that replicas did not acknowledge in time: so many of those wanted
	// have; local, if the primary has it on disk or need not; and the cause, if it was not the time.
	NotAcknowledged func(replicas, wanted int, local bool, cause error) error
}

// Retry says how requests are repeated that fail for a passing reason.
type Retry struct {
	MinBackoff, MaxBackoff time.Duration // the first pause and the longest
	MaxElapsed             time.Duration // without a break, after which the error is returned; negative: never
}

// NewBackoff returns the pauses between repeated requests.
func (r Retry) NewBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(r.MinBackoff), backoff.WithMaxInterval(r.MaxBackoff), backoff.WithMaxElapsedTime(0))
}

// Exhausted reports whether requests that have failed since that time are repeated no more.
func (r Retry) Exhausted(since, now time.Time) bool {
	return r.MaxElapsed >= 0 && now.Sub(since) >= r.MaxElapsed
}

// Engine is safe for concurrent use.
type Engine struct {
	cfg        Config
	id         string
	serial     atomic.Uint64
	started    time.Time
	transport  *transport.Transport
	timers     timers.Scheduler
	subscriber *pubsub.Subscriber
	identity   identity
	closing    context.Context // ends when Close is called
	close      context.CancelFunc

	mu          sync.Mutex // guards what follows; no command runs under it
	closed      bool
	closeBy     time.Time           // until when Close waits, and departures repeat themselves after it
	ended       chan struct{}       // made by Close, closed when no goroutine is left
	requests    map[string]*request // by serial
	leases      map[*Lease]struct{}
	majorities  map[*MajorityLease]struct{} // leases of which this keeper's server may have a part
	queues      map[string]*waitQueue       // by the name's queue
	localQueues map[string]*localQueue      // by the name's queue
	expected    map[string]expectedWakeup   // by serial: messages that the server says it has sent
	wakeupTimer timers.Timer                // looks through expected
	working     int                         // departures and looks under way
	replicas    map[string]int              // the most that a primary had, as far as was looked, by its address
	idle        *sync.Cond                  // by mu: leaving has become 0
	params      *sharedParams               // of the last lock
}

// New returns an engine. It does no I/O and starts no goroutine.
func New(cfg Config) *Engine {
	e := &Engine{
		cfg:         cfg,
		id:          uuid.NewString(),
		started:     time.Now(),
		transport:   transport.New(cfg.Client),
		requests:    map[string]*request{},
		leases:      map[*Lease]struct{}{},
		majorities:  map[*MajorityLease]struct{}{},
		queues:      map[string]*waitQueue{},
		localQueues: map[string]*localQueue{},
		expected:    map[string]expectedWakeup{},
		replicas:    map[string]int{},
	}
	e.closing, e.close = context.WithCancel(context.Background())
	e.idle = sync.NewCond(&e.mu)
	e.wakeupTimer.Fire = e.replaceStale
	e.subscriber = pubsub.New(pubsub.Config{
		Client:     cfg.Client,
		Received:   e.received,
		Subscribed: e.subscribed,
		Denied: func(channel string, err error) {
			cfg.Log.Warn("lockkeeper: no right to subscribe to wake-ups; waiters ask at their heartbeats instead",
				"channel", channel, "error", err)
		},
	})
	return e
}

// ID is the keeper's id, the first part of all its tokens.
func (e *Engine) ID() string { return e.id }

// Close wakes all waiters with ErrClosed, gives back what they and the holders have, and waits until that is done, for
// closeTime. go-redis cannot be interrupted, so commands whose answers have not come by then, and the goroutines that wait
// for them, end in the background, as late as the client's own timeouts let them.
func (e *Engine) Close() error {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	if first {
		e.closeBy = time.Now().Add(closeTimeout)
		e.ended = make(chan struct{})
	}
	wait := time.Until(e.closeBy)
	waiters := make([]*request, 0, len(e.requests))
	for _, w := range e.requests {
		waiters = append(waiters, w)
	}
	holds := make([]*Lease, 0, len(e.leases))
	for h := range e.leases {
		holds = append(holds, h)
	}
	parts := slices.Collect(maps.Keys(e.majorities))
	e.mu.Unlock()

	e.close()
	for _, w := range waiters {
		w.leave(ErrClosed)
	}
	for _, u := range parts { // before its parts end: it is released, not lost
		u.keeperClosed()
	}
	var left []*Cleanup
	var lost error // a deadline that has passed unnoticed
	for _, h := range holds {
		d, err := h.release(e.transport.Send, false)
		if err != nil {
			lost = err
		} else if d == nil { // it was a part
			d = h.currentCleanup()
		}
		if d != nil {
			left = append(left, d)
		}
	}
	if first {
		go e.shutdown()
	}
	over := e.waitEnded(wait)
	for _, d := range left {
		if err := d.errNow(); err != nil {
			return err
		}
	}
	if lost == nil && !over {
		return errStillClosing
	}
	return lost
}

// errStillClosing: nothing that is known of was left undone, but not everything has come to its end.
var errStillClosing = fmt.Errorf("lockkeeper: the keeper is closed, but after %v commands are still on their way", closeTimeout)

// shutdown waits until everything has been given back and no command is on its way, and ends the goroutines.
func (e *Engine) shutdown() {
	defer close(e.ended)
	e.mu.Lock()
	for e.working > 0 {
		e.idle.Wait()
	}
	e.mu.Unlock()
	e.subscriber.Close()
	e.timers.Stop()
	e.transport.Close()
}

// waitEnded waits for end, and says whether it came in time.
func (e *Engine) waitEnded(wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-e.ended:
		return true
	case <-t.C:
	}
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// addMajority notes a lease that is to end with this keeper, unless it is closed already.
func (e *Engine) addMajority(u *MajorityLease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.majorities[u] = struct{}{}
	}
	return !e.closed
}

func (e *Engine) dropMajority(u *MajorityLease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.majorities, u)
}

// isClosed says whether Close was called.
func (e *Engine) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// observe tells an event to whoever wants to know.
func (e *Engine) observe(ev Event) {
	if e.cfg.Observe != nil {
		e.cfg.Observe(ev)
	}
}

// nextSerial numbers the requests of this keeper, short, because each waiter's lies in Redis twice.
func (e *Engine) nextSerial() string { return strconv.FormatUint(e.serial.Add(1), 36) }

// received takes a wake-up.
func (e *Engine) received(payload string) {
	wakeups, err := protocol.ParseMessage(payload)
	if err != nil {
		e.cfg.Log.Warn("lockkeeper: wake-up ignored", "error", err)
		return
	}
	for _, x := range wakeups {
		e.mu.Lock()
		w := e.requests[x.Serial]
		if x.Fence > 0 {
			delete(e.expected, x.Serial)
			if w != nil {
				w.notified = true
			}
		}
		e.mu.Unlock()
		switch {
		case w == nil: // granted by a reply already, or given up, and then its departure gives the grant back
		case x.Fence > 0:
			w.push(x.Fence)
		default:
			e.heartbeatAt(w, time.Now().Add(duration(x.RetryIn)+time.Millisecond))
		}
	}
}

// subscribed: a subscription has been acknowledged, perhaps after a gap in which messages were lost.
func (e *Engine) subscribed(channel string) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.queues {
		if n.lock.channel == channel {
			n.heartbeatAt(now)
		}
	}
}

// expectedWakeup is a message that the server says it has sent.
type expectedWakeup struct {
	by      time.Time
	channel string
}

// expectWakeup waits for the message about a grant that is learned of in another way, unless it has come already, or can have
// been lost with a subscription before this one.
func (e *Engine) expectWakeup(w *request) {
	since := e.subscriber.SubscribedSince(w.lock.channel)
	w.mu.Lock()
	asked := w.askedAt
	w.mu.Unlock()
	if since.IsZero() || since.After(asked) {
		return
	}
	by := time.Now().Add(wakeupTimeout)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !w.notified && e.requests[w.serial] == w {
		e.expected[w.serial] = expectedWakeup{by, w.lock.channel}
		e.timers.SetIfSooner(&e.wakeupTimer, by)
	}
}

// replaceStale replaces subscriptions on which messages did not come.
func (e *Engine) replaceStale(now time.Time) {
	var next time.Time
	deaf := map[string]bool{}
	e.mu.Lock()
	for _, x := range e.expected {
		if !x.by.After(now) {
			deaf[x.channel] = true
		}
	}
	for serial, x := range e.expected {
		switch {
		case deaf[x.channel]: // what else was sent to that subscription says nothing of the one that comes
			delete(e.expected, serial)
		case next.IsZero() || x.by.Before(next):
			next = x.by
		}
	}
	e.mu.Unlock()
	if !next.IsZero() {
		e.timers.SetIfSooner(&e.wakeupTimer, next)
	}
	for channel := range deaf {
		e.cfg.Log.Warn("lockkeeper: a wake-up was sent but never came; replacing the subscription", "channel", channel)
		e.observe(Event{Type: WakeupLost})
		e.subscriber.Replace(channel)
	}
}

// cancelGrace is how long a caller whose context has ended already is kept at the most to see something given back.
const cancelGrace = time.Second

// millis turns a duration into what scripts take; it is the one place where that is done.
func millis(d time.Duration) int64 { return int64(d / time.Millisecond) }

func duration(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// Margin is what a holder trusts a lease less than the server grants it: clocks that run at different speeds, and the
// server's whole milliseconds. (The drift factor of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/)
func Margin(d time.Duration) time.Duration { return d/100 + 2*time.Millisecond }
