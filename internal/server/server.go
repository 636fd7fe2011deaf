// Package server is one server or Cluster as a keeper uses it. It knows no lease and no request. In order:
//
//  1. Package keeper makes a Server for each keeper, and a Resource for each lock: its keys, scripts and arguments (resource.go).
//  2. Packages keeper, quorum and views make a call of a script with its SetX, and read the reply with Decode (calls.go). They send it by the
//     Transport, or by RoundTrip if the caller blocks. Repeat repeats what has failed (roundtrip.go). Read is for other commands (read.go).
//  3. Outage and Exhausted say whether the server answers, when a wait or a retry has to end (outage.go).
//  4. Close of the keeper calls BeginClose, EndWaits, Shutdown and WaitShutdown (close.go).
//
// A Server also stores the label of its keeper (owner.go), and knows the run_id of the server (identity.go).
//
// Mutexes: while one of this package is held, no other is taken, and nothing is called that another package has passed in.
package server

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/pubsub"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// Config configures the use of a server. All fields are required but Owner.
type Config struct {
	Client            *client.Client
	Prefix            string
	HeartbeatInterval time.Duration // between the heartbeats of a waiter
	HeartbeatTimeout  time.Duration // after which a waiter without a heartbeat is skipped
	MetadataTTL       time.Duration // how long metadata of an unused name is kept
	Retry             Retry
	Log               *slog.Logger
	Owner             string // the label of the keeper; "": none
}

// Retry says how requests that fail for a transient reason are repeated.
type Retry struct {
	MinBackoff, MaxBackoff time.Duration // bounds of the pauses
	MaxElapsed             time.Duration // how long requests may fail before the error is returned; negative: for ever
}

// Next returns the pause before the next repetition.
func (p Retry) Next(b *random.Backoff) time.Duration { return b.Next(p.MinBackoff, p.MaxBackoff) }

// Exhausted reports whether requests that have failed since that time are not to be repeated.
func (p Retry) Exhausted(since, now time.Time) bool {
	return p.MaxElapsed >= 0 && now.Sub(since) >= p.MaxElapsed
}

// Server is one server or cluster as a keeper uses it. It is safe for concurrent use.
type Server struct {
	Config     Config // does not change
	Clock      Clock  // the server's, by the replies to all locks
	Transport  *transport.Transport
	Timers     timers.Scheduler // they stop, without firing, when the keeper has been closed
	Subscriber *pubsub.Subscriber
	OneNode    LogLimit // of listings that have only the locks of one node of a Cluster
	id         string
	started    time.Time
	owner      ownerLabel
	identity   serverIdentity
	closing    context.Context // ends when the keeper is closed
	cancel     context.CancelFunc

	mu      sync.Mutex // guards what follows; nothing is locked under it
	closed  bool
	closeBy time.Time     // until when Close waits and cleanups are retried; set by BeginClose
	ended   chan struct{} // made by BeginClose, closed when no goroutine is left
	working int           // cleanups and other work that Close waits for
	idle    *sync.Cond    // of mu: working has become 0
	params  *sharedParams // of the last Resource; the next one shares them if they are the same
}

// New returns a Server. It does no I/O and starts no goroutine. The messages of the subscription go to the functions of sub.
func New(cfg Config, sub pubsub.Config) *Server {
	id := protocol.NewKeeperID()
	sub.Client = cfg.Client
	sub.NewID = func() string { return id + protocol.NewAddress(cfg.Prefix, cfg.Client.IsCluster()) }
	s := &Server{
		Config:     cfg,
		Transport:  transport.New(cfg.Client, protocol.ConnectionKey(cfg.Prefix, id)),
		Subscriber: pubsub.New(sub),
		id:         id,
		started:    time.Now(),
	}
	s.closing, s.cancel = context.WithCancel(context.Background())
	s.idle = sync.NewCond(&s.mu)
	return s
}

// ID returns the keeper's id, with which all its tokens begin.
func (s *Server) ID() string { return s.id }

// Closing is a context that ends when the keeper is closed.
func (s *Server) Closing() context.Context { return s.closing }

// Now returns the time for claims.
func (s *Server) Now() claim.Instant { return s.Instant(time.Now()) }

// Instant converts a time for claims. Instants count from a second before the Server was made, so that all are positive.
func (s *Server) Instant(t time.Time) claim.Instant {
	return claim.Instant(t.Sub(s.started) + time.Second)
}

// Time is the inverse of Instant.
func (s *Server) Time(t claim.Instant) time.Time {
	return s.started.Add(time.Duration(t) - time.Second)
}

// Started returns when the Server was made.
func (s *Server) Started() time.Time { return s.started }

// MaxAge returns how old the last answer may be while heartbeats are sent; see Outage.
func (s *Server) MaxAge() time.Duration { return 2 * s.Config.HeartbeatInterval }

// Freshness is the age up to which the last answer is recent enough for a wait whose deadline is near; see DeadlineLead.
func (s *Server) Freshness() time.Duration { return s.Config.HeartbeatInterval / 4 }

// ownerLabel is what a keeper knows of its own label at the server. The zero value is ready for use.
type ownerLabel struct {
	due    atomic.Int64 // when the label is to be stored again, as a time since the keeper was started
	denied atomic.Bool  // there is no permission to store it
	stored atomic.Bool  // the server may have it
}

// ID is the run_id of a server, which differs after each restart; zero: the server does not report it.
type ID [4]int64

// serverIdentity is what a keeper knows of its server's run_id. The zero value is ready for use.
type serverIdentity struct {
	mu     sync.Mutex // guards what follows
	id     ID
	next   time.Time     // when the server is to be queried again; zero: it has not been queried
	query  chan struct{} // closed when the query that was sent has been answered; nil: there is none
	warned bool
}
