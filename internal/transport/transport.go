// Package transport sends scripts to Redis in pipelines and reports the outcome of each call. Each keeper has one Transport, by which packages
// server, keeper and quorum send. In order:
//
//  1. Send queues a call at its node (queue.go). On a cluster, goroutines of the Transport look the node up.
//  2. A sender takes what is queued as one batch, and sends it in one pipeline (exchange.go). A single call is sent at once; calls that arrive
//     while others are in flight share a pipeline, as do those of callers who were answered together. Senders are goroutines of the Transport,
//     because go-redis does not interrupt a read when a context ends, and callers must not be blocked by it.
//  3. What the batch says about the node is recorded, so that package server can tell an outage (answers.go).
//  4. Done is called for each call, with the reply or the error. OutcomeOf says whether the server ran it (outcome.go).
//
// SendInline does all this in the goroutine of a caller that would only wait for the reply, if no other call is under way. That saves a third of
// the time of an uncontended lock and release. The connection is one that the Transport can close when the caller's context ends (own.go). All
// others come from the pool that go-redis keeps for pipelines, and no more are used at once than it has: beyond that go-redis would take
// connections from its main pool, which the application may have exhausted.
//
// A command is never sent twice, except that the script's text is sent when the server answers NOSCRIPT. Only the caller, who knows the token,
// the context and the end of the lease, can decide whether to repeat a request.
//
// After an outage a server should run only releases and what somebody still waits for. So a caller who leaves withdraws its call, which is then
// not sent; a silent server gets only a few calls in each pipeline; and if a pipeline is not answered, the calls that were queued when it was
// sent fail with it. A burst of calls that nobody waits for, such as the cleanups of fifty thousand cancelled waits, delays others by one
// pipeline, because such calls are joined, and one pipeline of them at a time is sent beside the others.
//
// Mutexes: Transport.mu is taken before nodeQueue.mu, and no other under them. Done is called under neither. Send never calls Done in the
// caller's goroutine, so it may be called under any mutex.
package transport

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Call is one run of a script, or another command on one key. The caller sets the first group of fields; the second is set when Done is called.
type Call struct {
	Script    *lua.Script // nil for another command
	Key       string      // the first key; it selects the node of a cluster
	Urgent    bool        // sent before others, and queued however many wait: renewals, heartbeats and releases
	Unawaited bool        // nobody waits for it. Calls that differ in ARGV[1] alone are sent as one, with all their ARGV[1]
	Scalar    bool        // the reply may be a number in place of an array
	Mixed     bool        // the reply is stored in Values: it is a string, or has elements that are not integers
	Args      []any       // the command, from EVALSHA on; see Script.AppendCommand. A command without a script has the key second
	Done      Receiver    // called once

	Sent   time.Time // just before the command was last sent; not set if it was not
	Reply  []int64   // the script's reply; a number is one element
	Values []any     // the script's reply if Mixed is set
	Err    error     // why there is no reply, or nil; see OutcomeOf

	Joined bool // it was sent as part of another call, and has the other's reply

	sentText bool          // the server did not have the script, so its text was sent
	joined   []*Call       // the calls that are sent as part of this one
	state    atomic.Uint32 // callQueued, callTaken or callWithdrawn; 0 before Send
	seq      uint64        // its number among the calls of its nodeQueue; guarded by the nodeQueue's mu

	// Memory that would otherwise be allocated separately.
	number [1]int64
	args   [maxArgs]any
	cmd    anything
}

// Receiver is notified that a call has its reply or its error. CallDone must not block. It is called from a goroutine of the
// Transport, or by SendInline.
type Receiver interface{ CallDone(*Call) }

// Func is a Receiver that calls the function.
type Func func(*Call)

// CallDone implements Receiver.
func (f Func) CallDone(call *Call) { f(call) }

// maxArgs is the number of arguments for which a Call has memory: those of a script with four keys and six arguments.
const maxArgs = 3 + 4 + 6

// SetCommand sets the script and the command that runs it on these keys. Arguments that are nil are left out.
func (call *Call) SetCommand(s *lua.Script, keys []any, args ...any) {
	call.Script = s
	call.Args = protocol.AppendArgs(s.AppendCommand(call.args[:0], keys...), args...)
}

// Transport sends the calls of one client. It is safe for concurrent use.
type Transport struct {
	rdb    *client.Client
	ownKey string // see connect

	maxQueued int // the maximum number of queued calls for one server that are wanted and not urgent

	mu       sync.Mutex                 // guards the fields below
	queues   map[client.Node]*nodeQueue // by node; a single server has one queue, under nil
	unrouted callList                   // on a cluster: calls whose node is not known yet
	routers  int                        // goroutines that look nodes up
	reloaded time.Time                  // when the cluster's slot map was last requested
	givenUp  bool                       // see GiveUp
	closed   bool
	senders  sync.WaitGroup
}

// maxQueued is about as many calls as a server runs in a second.
const maxQueued = 1 << 16

// maxRouters is the maximum number of goroutines that look up nodes of a cluster. More would not help: a lookup does I/O only while the client
// has no slot map, and then all lookups wait for the same one.
const maxRouters = 8

// New returns a Transport for the client. It does no I/O and starts no goroutine. No other Transport may have the same ownKey; see connect.
func New(rdb *client.Client, ownKey string) *Transport {
	t := &Transport{rdb: rdb, ownKey: ownKey, maxQueued: maxQueued, queues: map[client.Node]*nodeQueue{}}
	if !rdb.IsCluster() {
		t.queues[nil] = t.newQueue(nil)
	}
	return t
}

// Send queues a call and returns at once. If too many calls wait already, one that is neither Urgent nor Unawaited ends with ErrQueueFull.
func (t *Transport) Send(call *Call) {
	if !call.enqueue() {
		go call.notSent(nil)
		return
	}
	t.dispatch(call)
}

// Stats returns how many calls are not sent yet, including withdrawn ones, how many batches are in flight, and for how long the most silent node
// has answered nothing. silence is 0 if every node has answered its last batch.
func (t *Transport) Stats() (unsent, inFlight int, silence time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	unsent = len(t.unrouted.calls)
	for _, q := range t.queues {
		q.mu.Lock()
		unsent += len(q.urgent.calls) + len(q.queued.calls) + len(q.unawaited.calls)
		inFlight += q.inFlight
		switch {
		case q.inFlight > 0:
			silence = max(silence, time.Since(q.answeredAt))
		case q.failing:
			silence = max(silence, q.endedAt.Sub(q.answeredAt))
		}
		q.mu.Unlock()
	}
	return unsent, inFlight, silence
}

// SendInline is Send for a caller that would only wait for the reply. If no other call is queued or in flight, and the Transport has a connection
// of its own by now, the call is sent in the caller's goroutine, which saves two goroutine switches. Done has then been called when SendInline
// returns, unless the call had to be queued: the connection was lost before, or the server lacks the script. If ctx ends meanwhile, end is
// notified (unless it is nil), and the call ends with ErrInterrupted. A call that is sent inline cannot be withdrawn.
func (t *Transport) SendInline(ctx context.Context, call *Call, end EndReceiver) {
	if !call.enqueue() {
		go call.notSent(nil)
		return
	}
	if t.rdb.IsCluster() || ctx.Err() != nil || !t.queues[nil].sendInline(ctx, call, end) {
		t.dispatch(call)
	}
}

// EndInline interrupts the call that is sent inline, if there is one. From now on calls are queued.
func (t *Transport) EndInline() {
	if !t.rdb.IsCluster() {
		q := t.queues[nil]
		q.mu.Lock()
		defer q.mu.Unlock()
		q.endOwnLocked()
	}
}

// GiveUp makes calls fail that are queued, now or later, while their server does not answer. It does not affect calls under way.
func (t *Transport) GiveUp() { t.setForAll(&t.givenUp, (*nodeQueue).giveUp) }

// Close waits until no call is queued or in flight, which takes as long as the client's timeouts allow, and ends the goroutines of the Transport.
// No call may be sent after Close.
func (t *Transport) Close() {
	t.setForAll(&t.closed, (*nodeQueue).close)
	t.senders.Wait()
}

// setForAll sets a flag of the Transport, and calls apply with each queue. Queues that are made later get the flag from addTo.
func (t *Transport) setForAll(flag *bool, apply func(*nodeQueue)) {
	t.mu.Lock()
	*flag = true
	queues := slices.Collect(maps.Values(t.queues))
	t.mu.Unlock()
	for _, q := range queues {
		apply(q)
	}
}

// dispatch adds the call to the queue of its node.
func (t *Transport) dispatch(call *Call) {
	if !t.rdb.IsCluster() {
		t.queues[nil].add(call)
		return
	}
	// One node may hang, so calls for different nodes must not wait for each other. Looking up the node may do I/O.
	limit := t.maxQueued
	if call.Urgent || call.Unawaited {
		limit = 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		go call.notSent(redis.ErrClosed)
		return
	}
	removed, added := t.unrouted.add(call, limit)
	if !added {
		go call.notSent(ErrQueueFull)
	}
	if len(removed) > 0 {
		go endAll(removed, nil)
	}
	if t.routers < maxRouters {
		t.routers++
		t.senders.Go(t.route)
	}
}

// route passes calls on to the queues of their nodes, until no call is unrouted.
func (t *Transport) route() {
	var batch, withdrawn []*Call
	for {
		t.mu.Lock()
		batch, withdrawn = t.unrouted.take(batch[:0], withdrawn[:0], 1)
		if len(batch) == 0 && len(withdrawn) == 0 {
			t.routers--
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		endAll(withdrawn, nil)
		for _, call := range batch {
			node, err := t.rdb.Primary(context.Background(), call.Key)
			if err != nil {
				t.reload()
				call.notSent(t.rdb.Explain(err))
				continue
			}
			call.state.Store(callQueued)
			t.addTo(node, call)
		}
	}
}

// addTo adds the call to the queue of the node. When it makes a new queue, it closes those not used lately, because nodes come and go.
func (t *Transport) addTo(node client.Node, call *Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[node]
	if q == nil {
		maps.DeleteFunc(t.queues, func(_ client.Node, q *nodeQueue) bool { return q.closeUnused() })
		q = t.newQueue(node)
		q.closed, q.givenUp = t.closed, t.givenUp
		t.queues[node] = q
	}
	q.add(call)
}

// newQueue returns the queue of a node. It prefers few senders, because the fewer batches are in flight, the more calls share one: a batch costs
// this process and the server a few microseconds for each write and read. Two are needed, so that the server has one while the replies to the
// other are read.
func (t *Transport) newQueue(node client.Node) *nodeQueue {
	limit := t.rdb.Pipelines(node)
	return &nodeQueue{t: t, limit: limit, preferred: min(limit, max(2, runtime.GOMAXPROCS(0)))}
}

// reload requests the cluster's slot map after a node did not answer. By itself the client does so only once a minute,
// and would send to a dead primary until then (go-redis issue 3979).
func (t *Transport) reload() {
	t.mu.Lock()
	due := time.Since(t.reloaded) > 500*time.Millisecond
	if due {
		t.reloaded = time.Now()
	}
	t.mu.Unlock()
	if due {
		t.rdb.Reload(context.Background())
	}
}
