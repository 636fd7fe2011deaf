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
	"runtime"
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
	Keys   []string
	Args   []any       // ARGV
	Done   func(*Call) // called once, from a goroutine of the courier; must not block

	Sent  time.Time // just before the command could first have left
	Reply []any     // the script's reply
	Err   error     // nil, or why there is no reply; see Fate

	text bool // send the script itself: the server does not have it
}

// Courier sends for one client. It is safe for concurrent use.
type Courier struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // rdb, if it is one
	senders int                  // per lane, as long as they are not overdue

	mu       sync.Mutex
	lanes    map[*redis.Client]*lane // by node; on a single server all calls take the one under nil
	reloaded time.Time               // when the cluster's layout was last asked for again
	working  sync.WaitGroup
}

// New returns a courier for the client. It does no I/O and starts no goroutine.
func New(rdb redis.UniversalClient) *Courier {
	c := &Courier{rdb: rdb, senders: max(4, 2*runtime.GOMAXPROCS(0)), lanes: map[*redis.Client]*lane{}}
	c.cluster, _ = rdb.(*redis.ClusterClient)
	return c
}

// Send puts a call on its way and returns at once.
func (c *Courier) Send(call *Call) {
	call.Sent = time.Now()
	c.dispatch(call)
}

// Wait blocks until no call is on its way. A call is on its way at most as long as the client's own timeouts let it.
func (c *Courier) Wait() { c.working.Wait() }

func (c *Courier) dispatch(call *Call) {
	if c.cluster == nil {
		c.lane(nil).add(call)
		return
	}
	// Calls for different nodes must not wait for each other: one node may hang. Finding the node can take I/O.
	c.working.Add(1)
	go func() {
		defer c.working.Done()
		node, err := c.cluster.MasterForKey(context.Background(), call.Keys[0])
		if err != nil {
			node = nil // the client will say why
		}
		c.lane(node).add(call)
	}()
}

func (c *Courier) lane(node *redis.Client) *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[node]
	if l == nil {
		l = &lane{c: c}
		c.lanes[node] = l
	}
	return l
}

// lane is the way to one server.
type lane struct {
	c *Courier

	mu      sync.Mutex // guards what follows
	waiting []*Call
	senders int         // goroutines in send
	timer   *time.Timer // runs while calls wait and all senders are busy
	ticking bool
}

func (l *lane) add(call *Call) {
	l.mu.Lock()
	l.waiting = append(l.waiting, call)
	start := l.senders < l.c.senders
	if start {
		l.startLocked()
	} else {
		l.tickLocked()
	}
	l.mu.Unlock()
}

func (l *lane) startLocked() {
	l.senders++
	l.c.working.Add(1)
	go l.send()
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
	if len(l.waiting) > 0 {
		l.startLocked()
	}
}

// send carries batches until none is left.
func (l *lane) send() {
	defer l.c.working.Done()
	for {
		l.mu.Lock()
		batch := l.waiting
		if len(batch) > most {
			batch, l.waiting = batch[:most:most], batch[most:]
			l.tickLocked()
		} else {
			l.waiting = nil
		}
		if len(batch) == 0 {
			l.senders--
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.c.carry(batch)
	}
}

// once is a command that the client must not send again by itself. The client asks its commands for that.
type once struct{ *redis.Cmd }

// NoRetry is asked by go-redis before it repeats a command.
func (once) NoRetry() bool { return true }

// carry sends a batch in one pipeline, even a batch of one: pipelines have connections of their own in go-redis, so
// that an application which has used up its pool does not keep its leases from being renewed.
func (c *Courier) carry(batch []*Call) {
	ctx := context.Background()
	pipe := c.rdb.Pipeline()
	cmds := make([]once, len(batch))
	for i, call := range batch {
		cmds[i] = once{call.command(ctx)}
		_ = pipe.Process(ctx, cmds[i])
	}
	_, failure := pipe.Exec(ctx)
	var again []*Call
	failed := false
	for i, call := range batch {
		call.Reply, call.Err = reply(cmds[i].Cmd, failure)
		switch {
		case call.Err == nil:
		case !call.text && redis.HasErrorPrefix(call.Err, "NOSCRIPT"):
			call.text = true
			again = append(again, call)
			continue
		case FateOf(call.Err) != Answered:
			failed = true
		}
		call.Done(call)
	}
	if failed {
		c.reload()
	}
	for _, call := range again {
		c.dispatch(call)
	}
}

// reply is that of one command of a pipeline. Each has its own error, unless the connection was refused by the server
// itself (wrong password): then go-redis leaves the commands untouched.
func reply(cmd *redis.Cmd, pipeline error) ([]any, error) {
	val, err := cmd.Result()
	if err == nil && val == nil {
		err = pipeline
	}
	if err != nil {
		return nil, err
	}
	list, ok := val.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: %T instead of an array", ErrReply, val)
	}
	return list, nil
}

func (call *Call) command(ctx context.Context) *redis.Cmd {
	args := make([]any, 0, 3+len(call.Keys)+len(call.Args))
	if call.text {
		args = append(args, "eval", call.Script.Text)
	} else {
		args = append(args, "evalsha", call.Script.SHA)
	}
	args = append(args, len(call.Keys))
	for _, k := range call.Keys {
		args = append(args, k)
	}
	args = append(args, call.Args...)
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3)
	return cmd
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

// ErrReply is a reply that no script of ours gives: a broken or foreign server.
var ErrReply = errors.New("unexpected reply from the server")
