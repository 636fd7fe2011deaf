// Package courier carries scripts to Redis and brings back what became of them.
//
// It never sends a command twice: whether a copy may be sent is for those to decide who know the token, the context
// and the lease's end. Commands that come while others are on their way travel together in one pipeline; a lone
// command leaves at once. Both go through goroutines of the courier's own, because go-redis does not interrupt a read
// when a context ends, and a caller must be let go in time.
package courier

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

	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// most commands in one pipeline: enough to spare round trips, few enough that the first need not wait for the last.
const most = 128

// patience is how long a command may lie because all senders are busy, before one more sender is started. It grows
// with the number of senders that are overdue, up to the limit, so that a server that hangs does not gather senders.
const (
	patience      = 2 * time.Millisecond
	patienceLimit = 100 * time.Millisecond
)

// Call is one script on its way. The fields above the line are the caller's, those below are set when Done is called.
type Call struct {
	Script *lua.Script
	Key    string      // the first key: it says to which server of a cluster the call goes
	Args   []any       // the command, from EVALSHA on; see Script.AppendCommand
	Done   func(*Call) // called once, from a goroutine of the courier; must not block

	Sent  time.Time // just before the command could first have left
	Reply []int64   // the script's reply
	Err   error     // nil, or why there is no reply; see Fate

	text bool // the script itself was sent: the server did not have it
}

// Courier sends for one client. It is safe for concurrent use.
type Courier struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // rdb, if it is one
	senders int                  // per lane, as long as they are not overdue

	mu       sync.Mutex              // guards what follows
	lanes    map[*redis.Client]*lane // by node; on a single server all calls take the one under nil
	reloaded time.Time               // when the cluster's layout was last asked for again
	closed   bool
	working  sync.WaitGroup
}

// New returns a courier for the client. It does no I/O and starts no goroutine.
func New(rdb redis.UniversalClient) *Courier {
	c := &Courier{rdb: rdb, senders: max(4, 2*runtime.GOMAXPROCS(0)), lanes: map[*redis.Client]*lane{}}
	c.lanes[nil] = &lane{c: c}
	c.cluster, _ = rdb.(*redis.ClusterClient)
	return c
}

// Send puts a call on its way and returns at once.
func (c *Courier) Send(call *Call) {
	call.Sent = time.Now()
	c.dispatch(call)
}

// Carry is Send for a caller that has nothing else to do until the call is done: if the way is free, it goes there and
// back in the caller's own goroutine, which spares two switches. It returns when Done has been called, or at once.
func (c *Courier) Carry(call *Call) {
	call.Sent = time.Now()
	if c.cluster != nil || !c.lanes[nil].carry(call) {
		c.dispatch(call)
	}
}

// Close waits until no call is on its way, which takes as long as the client's own timeouts let it, and ends the
// courier's goroutines. Nothing may be sent from then on.
func (c *Courier) Close() {
	c.mu.Lock()
	c.closed = true
	lanes := slices.Collect(maps.Values(c.lanes))
	c.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	c.working.Wait()
}

func (c *Courier) dispatch(call *Call) {
	if c.cluster == nil {
		c.lanes[nil].add(call)
		return
	}
	// Calls for different nodes must not wait for each other: one node may hang. Finding the node can take I/O.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		call.refuse()
		return
	}
	c.working.Go(func() {
		node, err := c.cluster.MasterForKey(context.Background(), call.Key)
		if err != nil {
			node = nil // the client will say why
		}
		c.lane(node).add(call)
	})
}

// refuse ends a call that came after Close.
func (call *Call) refuse() {
	call.Err = redis.ErrClosed
	go call.Done(call)
}

func (c *Courier) lane(node *redis.Client) *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[node]
	if l == nil {
		l = &lane{c: c, closed: c.closed}
		c.lanes[node] = l
	}
	return l
}

// lane is the way to one server.
type lane struct {
	c *Courier

	mu      sync.Mutex // guards what follows
	waiting []*Call
	busy    int         // batches under way
	own     *sender     // of whoever comes in a goroutine of its own; nil: in use, or not yet there
	senders int         // goroutines
	idle    []*sender   // those that wait for something to do, the last to come first to go
	timer   *time.Timer // runs while calls wait and all senders are busy
	ticking bool
	closed  bool
}

// sender is a goroutine that carries batches. Senders are kept, because a new goroutine would have to grow its stack
// for every command, and there are few.
type sender struct {
	wake  chan struct{} // capacity 1
	pipe  redis.Pipeliner
	cmds  []redis.Cmder
	batch []*Call
}

func (l *lane) add(call *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		call.refuse()
		return
	}
	l.waiting = append(l.waiting, call)
	switch n := len(l.idle); {
	case n > 0:
		s := l.idle[n-1]
		l.idle = l.idle[:n-1]
		s.wake <- struct{}{}
	case l.senders < l.c.senders:
		l.startLocked()
	default:
		l.tickLocked()
	}
}

func (l *lane) newSender() *sender {
	return &sender{wake: make(chan struct{}, 1), pipe: l.c.rdb.Pipeline()}
}

func (l *lane) startLocked() {
	l.senders++
	l.c.working.Go(func() { l.send(l.newSender()) })
}

// carry carries a call in the caller's goroutine if nothing else is under way. If there is, they travel better together.
func (l *lane) carry(call *Call) bool {
	l.mu.Lock()
	if l.closed || l.busy > 0 || len(l.waiting) > 0 {
		l.mu.Unlock()
		return false
	}
	l.busy++
	l.c.working.Add(1) // Close has not begun to wait: it closes the lanes before
	s := l.own
	l.own = nil
	l.mu.Unlock()
	if s == nil {
		s = l.newSender()
	}
	s.batch = append(s.batch, call)
	l.c.carry(s)
	l.mu.Lock()
	l.busy--
	l.own = s
	l.mu.Unlock()
	l.c.working.Done()
	return true
}

// tickLocked sees to it that what waits is sent soon, even if every sender hangs.
func (l *lane) tickLocked() {
	if l.ticking {
		return
	}
	l.ticking = true
	wait := min(patience<<min(l.senders-l.c.senders, 10), patienceLimit)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, l.overdue)
	} else {
		l.timer.Reset(wait)
	}
}

func (l *lane) overdue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ticking = false
	if len(l.waiting) > 0 { // and so there is a sender, which Close waits for
		l.startLocked()
	}
}

func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, s := range l.idle {
		s.wake <- struct{}{}
	}
	l.idle = nil
}

// send carries batches until the lane is closed, or the sender is one too many.
func (l *lane) send(s *sender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(l.waiting) == 0 {
			if l.closed || l.senders > l.c.senders {
				l.senders--
				return
			}
			l.idle = append(l.idle, s)
			l.mu.Unlock()
			<-s.wake
			l.mu.Lock()
		}
		if n := len(l.waiting); n <= most {
			s.batch, l.waiting = l.waiting, s.batch
		} else {
			s.batch = append(s.batch, l.waiting[:most]...)
			l.waiting = l.waiting[:copy(l.waiting, l.waiting[most:])]
			l.tickLocked()
		}
		l.busy++
		l.mu.Unlock()
		l.c.carry(s)
		l.mu.Lock()
		l.busy--
	}
}

// once is a command that the client must not send again by itself. The client asks its commands for that.
type once struct{ *redis.IntSliceCmd }

// NoRetry is asked by go-redis before it repeats a command.
func (once) NoRetry() bool { return true }

// carry sends the sender's batch in one pipeline, even a batch of one: pipelines have connections of their own in
// go-redis, so that an application which has used up its pool does not keep its leases from being renewed.
func (c *Courier) carry(s *sender) {
	ctx := context.Background()
	for _, call := range s.batch {
		cmd := redis.NewIntSliceCmd(ctx, call.Args...)
		cmd.SetFirstKeyPos(3)
		s.cmds = append(s.cmds, once{cmd})
	}
	_ = s.pipe.BatchProcess(ctx, s.cmds...)
	_, failure := s.pipe.Exec(ctx)
	failed := false
	for i, call := range s.batch {
		call.Reply, call.Err = reply(s.cmds[i].(once).IntSliceCmd, failure)
		if call.Err != nil {
			if !call.text && redis.HasErrorPrefix(call.Err, "NOSCRIPT") {
				call.text = true
				call.Args[0], call.Args[1] = "eval", call.Script.Text
				c.dispatch(call)
				continue
			}
			failed = failed || FateOf(call.Err) != Answered
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

// reply is that of one command of a pipeline. Each has its own error, unless the connection was refused by the server
// itself (wrong password): then go-redis leaves the commands untouched.
func reply(cmd *redis.IntSliceCmd, pipeline error) ([]int64, error) {
	list, err := cmd.Result()
	if err == nil && list == nil {
		err = pipeline
	}
	if err != nil && strings.Contains(err.Error(), "unauthenticated") {
		// What a server says of a command with many arguments where it says NOAUTH of others.
		err = fmt.Errorf("the server wants a password: %w", err)
	}
	return list, err
}

// reload asks a cluster for its layout after a node did not answer. The client does so by itself only once a minute,
// and would stay with a dead primary for that long (go-redis issue 3979).
func (c *Courier) reload() {
	if c.cluster == nil {
		return
	}
	c.mu.Lock()
	due := time.Since(c.reloaded) > 500*time.Millisecond
	if due {
		c.reloaded = time.Now()
	}
	c.mu.Unlock()
	if due {
		c.cluster.ReloadState(context.Background())
	}
}

// ErrReply is a reply that no script of ours gives: from a broken or foreign server.
var ErrReply = errors.New("unexpected reply from the server")
