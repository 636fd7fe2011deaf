// Package transport carries scripts to Redis and brings back what became of them.
//
// It never sends a command twice: whether a copy may be sent is for those to decide who know the token, the context
// and the lease's end. Commands that come while others are on their way travel together in one pipeline; a lone
// command leaves at once. Both go through goroutines of the courier's own, because go-redis does not interrupt a read
// when a context ends, and a caller must be let go in time.
//
// All of it takes connections from the pool that go-redis keeps for pipelines, and no more of them at once than that pool
// has. go-redis would take the next one from its main pool, which the application may have used up.
package transport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// maxBatch commands in one pipeline: enough to spare round trips, few enough that the first need not wait for the last.
const maxBatch = 128

// patience is how long a command may lie because all senders are busy, before one more sender is started, as long as
// there is a connection for it. It grows with the number of senders that are overdue, up to the limit, so that a server
// that hangs does not gather senders.
const (
	overdueAfter    = 2 * time.Millisecond
	maxOverdueAfter = 100 * time.Millisecond
)

// Call is one script on its way. The fields above the line are the caller's, those below are set when Done is called.
type Call struct {
	Script *lua.Script
	Key    string      // the first key: it says to which server of a cluster the call goes
	Urgent bool        // before those that are not: what keeps a lease or a place in the queue from lapsing
	Mixed  bool        // the reply is not one of numbers alone, and goes to Values
	Args   []any       // the command, from EVALSHA on; see Script.AppendCommand
	Done   func(*Call) // called once, from a goroutine of the courier; must not block

	Sent   time.Time // just before the command could first have left
	Reply  []int64   // the script's reply
	Values []any     // the same, of a call that is Mixed
	Err    error     // nil, or why there is no reply; see Fate

	sentText bool // the script itself was sent: the server did not have it
}

// Transport sends for one client. It is safe for concurrent use.
type Transport struct {
	rdb *client.Client

	mu       sync.Mutex                   // guards what follows
	queues   map[*redis.Client]*nodeQueue // by node; on a single server all calls take the one under nil
	reloaded time.Time                    // when the cluster's layout was last asked for again
	closed   bool
	senders  sync.WaitGroup
}

// New returns a courier for the client. It does no I/O and starts no goroutine.
func New(rdb *client.Client) *Transport {
	c := &Transport{rdb: rdb, queues: map[*redis.Client]*nodeQueue{}}
	if !rdb.IsCluster() {
		c.queues[nil] = c.newQueue(nil)
	}
	return c
}

// Send puts a call on its way and returns at once.
func (c *Transport) Send(call *Call) {
	call.Sent = time.Now()
	c.dispatch(call)
}

// SendInline is Send for a caller that has nothing else to do until the call is done: if the way is free, it goes there and
// back in the caller's own goroutine, which spares two switches. It returns when Done has been called, or at once. If the
// client has no timeouts it always returns at once, since the caller could not be let go before the server answers.
func (c *Transport) SendInline(call *Call) {
	call.Sent = time.Now()
	if c.rdb.IsCluster() || c.rdb.WaitsForEver() || !c.queues[nil].sendInline(call) {
		c.dispatch(call)
	}
}

// Close waits until no call is on its way, which takes as long as the client's own timeouts let it, and ends the
// courier's goroutines. Nothing may be sent from then on.
func (c *Transport) Close() {
	c.mu.Lock()
	c.closed = true
	lanes := slices.Collect(maps.Values(c.queues))
	c.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	c.senders.Wait()
}

func (c *Transport) dispatch(call *Call) {
	if !c.rdb.IsCluster() {
		c.queues[nil].add(call)
		return
	}
	// Calls for different nodes must not wait for each other: one node may hang. Finding the node can take I/O.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		call.failClosed()
		return
	}
	c.senders.Go(func() {
		node, err := c.rdb.Primary(context.Background(), call.Key)
		if err != nil {
			call.Err = &notSentError{err}
			c.reload()
			call.Done(call)
			return
		}
		c.queueFor(node).add(call)
	})
}

// failClosed ends a call that came after Close.
func (call *Call) failClosed() {
	call.Err = redis.ErrClosed
	go call.Done(call)
}

func (c *Transport) queueFor(node *redis.Client) *nodeQueue {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.queues[node]
	if l == nil {
		l = c.newQueue(node)
		l.closed = c.closed
		c.queues[node] = l
	}
	return l
}

func (c *Transport) newQueue(node *redis.Client) *nodeQueue {
	limit := c.rdb.Pipelines(node)
	return &nodeQueue{t: c, limit: limit, preferred: min(limit, max(4, 2*runtime.GOMAXPROCS(0)))}
}

// nodeQueue is the way to one server.
type nodeQueue struct {
	t         *Transport
	limit     int // batches under way at once: as many as there are connections for
	preferred int // batches under way at once, as long as none is overdue

	mu         sync.Mutex // guards what follows
	urgent     []*Call    // those that wait and go first
	queued     []*Call    // the others that wait
	inFlight   int        // batches under way
	active     int        // senders that are not idle, and callers that carry for themselves
	inline     *sender    // of whoever comes in a goroutine of its own; nil: in use, or not yet there
	senders    int        // goroutines
	idle       []*sender  // those that wait for something to do, the last to come first to go
	timer      *time.Timer
	timerArmed bool // timer runs: calls wait, and as many senders as usual are busy
	closed     bool
}

// sender is a goroutine that carries batches. Senders are kept, because a new goroutine would have to grow its stack
// for every command, and there are few.
type sender struct {
	wake  chan struct{} // capacity 1
	pipe  redis.Pipeliner
	cmds  []redis.Cmder
	batch []*Call
}

func (l *nodeQueue) add(call *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		call.failClosed()
		return
	}
	if call.Urgent {
		l.urgent = append(l.urgent, call)
	} else {
		l.queued = append(l.queued, call)
	}
	l.scheduleLocked()
}

// scheduleLocked sees to it that somebody takes what waits: at once, or soon if as many senders as usual are busy. If there
// is no connection for one more, those that are on their way take it when they are back, as they are at the latest when the
// client's timeouts are over.
func (l *nodeQueue) scheduleLocked() {
	switch {
	case l.active < l.preferred:
		l.wakeSenderLocked()
	case l.active < l.limit:
		l.armTimerLocked()
	}
}

func (l *nodeQueue) newSender() *sender {
	return &sender{wake: make(chan struct{}, 1), pipe: l.t.rdb.Pipeline()}
}

// wakeSenderLocked makes one more sender look for something to do.
func (l *nodeQueue) wakeSenderLocked() {
	l.active++
	if n := len(l.idle); n > 0 {
		s := l.idle[n-1]
		l.idle = l.idle[:n-1]
		s.wake <- struct{}{}
		return
	}
	l.senders++
	l.t.senders.Go(func() { l.runSender(l.newSender()) })
}

// sendInline carries a call in the caller's goroutine if nothing else is under way. If there is, they travel better together.
func (l *nodeQueue) sendInline(call *Call) bool {
	l.mu.Lock()
	if l.closed || l.inFlight > 0 || l.queuedLocked() > 0 {
		l.mu.Unlock()
		return false
	}
	l.inFlight++
	l.active++
	l.t.senders.Add(1) // Close has not begun to wait: it closes the lanes before
	s := l.inline
	l.inline = nil
	l.mu.Unlock()
	if s == nil {
		s = l.newSender()
	}
	s.batch = append(s.batch, call)
	l.t.exchange(s)
	l.mu.Lock()
	l.inFlight--
	l.active--
	l.inline = s
	if l.queuedLocked() > 0 {
		l.scheduleLocked()
	}
	l.mu.Unlock()
	l.t.senders.Done()
	return true
}

func (l *nodeQueue) queuedLocked() int { return len(l.urgent) + len(l.queued) }

// armTimerLocked sees to it that what waits is sent soon, even if every sender hangs.
func (l *nodeQueue) armTimerLocked() {
	if l.timerArmed {
		return
	}
	l.timerArmed = true
	wait := min(overdueAfter<<min(l.active-l.preferred, 10), maxOverdueAfter)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, l.timerFired)
	} else {
		l.timer.Reset(wait)
	}
}

func (l *nodeQueue) timerFired() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timerArmed = false
	if l.queuedLocked() > 0 && l.active < l.limit { // and so there is a sender, which Close waits for
		l.wakeSenderLocked()
	}
}

func (l *nodeQueue) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for len(l.idle) > 0 {
		l.wakeSenderLocked()
	}
}

// runSender carries batches until the lane is closed, or the sender is one too many.
func (l *nodeQueue) runSender(s *sender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.queuedLocked() == 0 || l.inFlight >= l.limit {
			l.active--
			if l.closed || l.senders > l.preferred {
				l.senders--
				return
			}
			l.idle = append(l.idle, s)
			l.mu.Unlock()
			<-s.wake
			l.mu.Lock()
		}
		s.batch = takeCalls(s.batch, &l.urgent)
		s.batch = takeCalls(s.batch, &l.queued)
		if l.queuedLocked() > 0 {
			l.scheduleLocked()
		}
		l.inFlight++
		l.mu.Unlock()
		l.t.exchange(s)
		l.mu.Lock()
		l.inFlight--
	}
}

// takeCalls moves calls to a batch, as many as there is room for.
func takeCalls(batch []*Call, from *[]*Call) []*Call {
	if len(batch) == 0 && len(*from) <= maxBatch { // as nearly always; nothing is copied
		batch, *from = *from, batch
		return batch
	}
	n := min(maxBatch-len(batch), len(*from))
	if n == 0 {
		return batch
	}
	batch = append(batch, (*from)[:n]...)
	rest := copy(*from, (*from)[n:])
	clear((*from)[rest:])
	*from = (*from)[:rest]
	return batch
}

// once and onceMixed are commands that the client must not send again by itself. The client asks its commands for that.
// They are two, as a struct of one pointer fits into an interface without an allocation.
type (
	noRetry      struct{ *redis.IntSliceCmd }
	noRetryMixed struct{ *redis.SliceCmd }
)

// NoRetry is asked by go-redis before it repeats a command.
func (noRetry) NoRetry() bool { return true }

// NoRetry is as that of once.
func (noRetryMixed) NoRetry() bool { return true }

// exchange sends the sender's batch in one pipeline, even a batch of one: pipelines have connections of their own in
// go-redis, so that an application which has used up its pool does not keep its leases from being renewed. On a cluster
// the pipeline is the client's and not the node's, as the latter would not follow a slot that moves.
func (c *Transport) exchange(s *sender) {
	ctx := context.Background()
	for _, call := range s.batch {
		var cmd redis.Cmder
		if call.Mixed {
			cmd = noRetryMixed{redis.NewSliceCmd(ctx, call.Args...)}
		} else {
			cmd = noRetry{redis.NewIntSliceCmd(ctx, call.Args...)}
		}
		cmd.SetFirstKeyPos(3)
		s.cmds = append(s.cmds, cmd)
	}
	_ = s.pipe.BatchProcess(ctx, s.cmds...)
	_, failure := s.pipe.Exec(ctx)
	failed := false
	for i, call := range s.batch {
		call.setResult(s.cmds[i], failure)
		if call.Err != nil {
			if !call.sentText && redis.HasErrorPrefix(call.Err, "NOSCRIPT") {
				call.sentText = true
				call.Args[0], call.Args[1] = "eval", call.Script.Text
				c.dispatch(call)
				continue
			}
			failed = failed || OutcomeOf(call.Err) != Answered
		}
		call.Done(call)
	}
	clear(s.cmds)
	clear(s.batch)
	s.cmds, s.batch = s.cmds[:0], s.batch[:0]
	if failed {
		c.reload()
	}
}

// setResult takes that of one command of a pipeline. Each has its own error, unless the connection was refused by the server
// itself (wrong password): then go-redis leaves the commands untouched.
func (call *Call) setResult(cmd redis.Cmder, pipeline error) {
	var none bool
	switch cmd := cmd.(type) {
	case noRetry:
		call.Reply, call.Err = cmd.Result()
		none = call.Reply == nil
	case noRetryMixed:
		call.Values, call.Err = cmd.Result()
		none = call.Values == nil
	}
	if call.Err == nil && none {
		call.Err = pipeline
	}
	if call.Err != nil && strings.Contains(call.Err.Error(), "unauthenticated") {
		// What a server says of a command with many arguments where it says NOAUTH of others.
		call.Err = fmt.Errorf("the server wants a password: %w", call.Err)
	}
}

// reload asks a cluster for its layout after a node did not answer. The client does so by itself only once a minute,
// and would stay with a dead primary for that long (go-redis issue 3979).
func (c *Transport) reload() {
	if !c.rdb.IsCluster() {
		return
	}
	c.mu.Lock()
	due := time.Since(c.reloaded) > 500*time.Millisecond
	if due {
		c.reloaded = time.Now()
	}
	c.mu.Unlock()
	if due {
		c.rdb.Reload(context.Background())
	}
}

// ErrReply is a reply that no script of ours gives: from a broken or foreign server.
var ErrReply = errors.New("unexpected reply from the server")
