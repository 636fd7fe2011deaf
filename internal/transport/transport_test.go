package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/mutation"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	goleak.VerifyTestMain(m)
}

// counterScript returns how often it has run.
var counterScript = script("return {1, redis.call('INCR', KEYS[1])}")

func script(text string) *lua.Script { return mutation.Script("test", text) }

// fixture is a transport in a synctest bubble, with a server and a network.
type fixture struct {
	*testing.T
	*Transport
	mini *miniredis.Miniredis
	net  *faultnet.Net
	rdb  *redis.Client

	hangDials atomic.Bool // new connections are not made, until their context ends
	slowClose atomic.Bool // new connections take a minute to close

	mu            sync.Mutex
	pipelineSizes []int // the number of scripts in each write that has any
}

const readTimeout = 10 * time.Second

func inBubble(t *testing.T, test func(p *fixture)) {
	t.Helper()
	inBubbleWith(t, redis.Options{PipelinePoolSize: 1000}, test)
}

// subtest runs a test with this name in a bubble of its own.
func subtest(t *testing.T, name string, test func(p *fixture)) {
	subtestWith(t, name, redis.Options{PipelinePoolSize: 1000}, test)
}

func subtestWith(t *testing.T, name string, o redis.Options, test func(p *fixture)) {
	t.Run(name, func(t *testing.T) { inBubbleWith(t, o, test) })
}

func inBubbleWith(t *testing.T, o redis.Options, test func(p *fixture)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		p := newFixture(s)
		o.Addr, o.Dialer, o.DialerRetries = "127.0.0.1:1", p.dial, 1
		if o.ReadTimeout == 0 {
			o.ReadTimeout = readTimeout
		}
		p.rdb = redis.NewClient(&o)
		p.Transport = New(newClient(p.T, p.rdb), "own")
		test(p)
		p.Close()
		stacks := make([]byte, 1<<20)
		check.That(p, !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*nodeQueue).runSender")),
			"a sender is left after Close")
		must.Report(p, p.rdb.Close())
	})
}

func newFixture(s *embedded.Server) *fixture {
	p := &fixture{T: s.T, mini: s.Mini, net: s.Network()}
	p.net.Watch(func(sent []byte) {
		if n := bytes.Count(sent, []byte("\r\nevalsha\r\n")) + bytes.Count(sent, []byte("\r\neval\r\n")); n > 0 {
			p.mu.Lock()
			p.pipelineSizes = append(p.pipelineSizes, n)
			p.mu.Unlock()
		}
	})
	return p
}

// inCluster runs a test in a bubble with a Cluster of one node, of which slots says the address.
func inCluster(t *testing.T, slots func() (addr string), test func(p *fixture, rdb *redis.ClusterClient)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		p := newFixture(s)
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Dialer: p.net.Dial,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: slots()}}}}, nil
			},
		})
		p.Transport = New(newClient(s.T, rdb), "own")
		test(p, rdb)
		p.Close()
		must.Report(p, rdb.Close())
	})
}

func (p *fixture) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if p.hangDials.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := p.net.Dial(ctx, network, addr)
	if err == nil && p.slowClose.Load() {
		conn = slowConn{conn}
	}
	return conn, err
}

// slowConn is a connection that takes a minute to close.
type slowConn struct{ net.Conn }

func (c slowConn) Close() error {
	time.Sleep(time.Minute)
	return c.Conn.Close()
}

func newClient(t *testing.T, rdb redis.UniversalClient) *client.Client {
	t.Helper()
	c := must.Get(client.New(rdb))(t)
	return c
}

// sent returns the sizes of the pipelines since its last call.
func (p *fixture) sent() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.pipelineSizes
	p.pipelineSizes = nil
	return list
}

// send sends a script and returns a channel for the completed call.
func (p *fixture) send(s *lua.Script) chan *Call {
	call, done := newCall(s)
	p.Send(call)
	return done
}

// sendMany sends the script so often.
func (p *fixture) sendMany(n int) (all []chan *Call) {
	for range n {
		all = append(all, p.send(counterScript))
	}
	return all
}

// hang sends a script that gets no reply, and occupies its sender.
func (p *fixture) hang() {
	p.net.Break("evalsha", 1, faultnet.SwallowReply)
	p.send(counterScript)
	synctest.Wait()
}

// newCall returns a call of a script that tells the channel when it has completed.
func newCall(s *lua.Script) (*Call, chan *Call) {
	done := make(chan *Call, 2) // a call that completes twice is noticed
	return callThen(s, func(c *Call) { done <- c }), done
}

func callThen(s *lua.Script, done func(*Call)) *Call {
	return &Call{Script: s, Key: "k", Args: s.AppendCommand(nil, "k"), Done: Func(done)}
}

// loadScript loads the script and makes the transport open a connection.
func (p *fixture) loadScript() {
	p.Helper()
	must.OK(p, (<-p.send(counterScript)).Err)
	p.sent()
	p.mini.Del("k")
}

// checkRuns checks how often the script has run.
func (p *fixture) checkRuns(want string) {
	p.Helper()
	got, err := p.mini.Get("k")
	if errors.Is(err, miniredis.ErrKeyNotFound) {
		got, err = "0", nil
	}
	check.That(p, err == nil && got == want, "the script ran %s times, %v; want %s", got, err, want)
}

// TestUnknownScriptsAreSentInFull checks that scripts which the server does not know, or has forgotten, are sent in
// full and run once.
func TestUnknownScriptsAreSentInFull(t *testing.T) {
	inBubble(t, func(p *fixture) {
		for round := range 3 {
			p.mini.Del("k")
			all := p.sendMany(20)
			for _, done := range all {
				c := <-done
				check.That(p, c.Err == nil && len(c.Reply) == 2, "round %d: %v, %v", round, c.Reply, c.Err)
			}
			p.checkRuns("20")
			p.flush()
		}
	})
}

func (p *fixture) flush() {
	p.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: p.net.Dial})
	must.OK(p, rdb.ScriptFlush(context.Background()).Err())
	_ = rdb.Close()
}

func TestRepeatedNoScriptFails(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.loadScript()
		asked := 0
		p.answer(func(c *server.Peer) {
			asked++
			c.WriteError("NOSCRIPT No matching script.")
		})
		c := <-p.send(counterScript)
		check.That(p, redis.HasErrorPrefix(c.Err, "NOSCRIPT") && OutcomeOf(c.Err) == claim.Answered, "%v", c.Err)
		check.That(p, asked == 2, "asked %d times", asked)
	})
}

// answer replies to scripts instead of the server.
func (p *fixture) answer(f func(c *server.Peer)) {
	p.mini.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		script := strings.HasPrefix(cmd, "EVAL")
		if script {
			f(c)
		}
		return script
	})
}

// blockSenders occupies every sender with a call that gets no reply.
func (p *fixture) blockSenders() {
	p.loadScript()
	for range p.queues[nil].preferred {
		p.hang()
	}
	p.sent()
}

func TestPendingCallsArePipelined(t *testing.T) {
	for n, want := range map[int][]int{1: {1}, 100: {100}, 128: {128}, 300: {128, 128, 44}} {
		subtest(t, fmt.Sprint(n), func(p *fixture) {
			p.blockSenders()
			start := time.Now()
			all := p.sendMany(n)
			for i, done := range all {
				c := <-done
				check.That(p, c.Err == nil, "call %d: %v", i, c.Err)
			}
			got := p.sent()
			check.That(p, slices.Equal(got, want), "pipelines of %v, want %v", got, want)
			d := time.Since(start)
			check.That(p, d <= overdueAfter, "with all senders busy, it should have taken %v, not %v", overdueAfter, d)
		})
	}
}

// TestCallersOfABatchShareTheNext checks that callers who are answered together, and then send their next calls, share a pipeline again.
func TestCallersOfABatchShareTheNext(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const callers, rounds = 50, 20
	test := func(p *fixture) {
		p.loadScript()
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range rounds {
					must.Report(p, (<-p.send(counterScript)).Err)
				}
			})
		}
		all.Wait()
		p.checkRuns(fmt.Sprint(callers * rounds))
		if got := p.sent(); len(got) > 4*rounds { // a call is alone only if others are in flight
			p.Errorf("pipelines of %v", got)
		}
	}
	subtest(t, "one server", test)
	t.Run("a Cluster", func(t *testing.T) {
		inCluster(t, func() string { return "10.0.0.1:6379" }, func(p *fixture, _ *redis.ClusterClient) { test(p) })
	})
}

func TestSingleCallNotDelayedByHangingCalls(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.loadScript()
		p.hang()
		start := time.Now()
		must.Report(p, (<-p.send(counterScript)).Err)
		d := time.Since(start)
		check.That(p, d == 0, "it waited for %v", d)
	})
}

func TestHangingServerBoundsSenders(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.blockSenders()
		p.net.Break("evalsha", 10000, faultnet.SwallowReply)
		for range 1000 {
			p.send(counterScript)
			time.Sleep(time.Millisecond)
		}
		n := len(p.sent())
		check.That(p, n >= 5 && n <= 20, "in a second, %d more senders were started", n)
	})
}

// TestCommandsAreNeverResent checks that the outcome of a call is correct, and that a script whose outcome is
// unknown has run at most once.
func TestCommandsAreNeverResent(t *testing.T) {
	for _, c := range []struct {
		name    string
		net     func(*fixture)
		outcome claim.Outcome
		ran     string
	}{
		{"its reply is cut off", func(p *fixture) { p.net.Break("evalsha", 1, faultnet.CutReply) }, claim.InDoubt, "1"},
		{"its reply never comes", func(p *fixture) { p.net.Break("evalsha", 1, faultnet.SwallowReply) }, claim.InDoubt, "1"},
		{"the request is lost", func(p *fixture) { p.net.Break("evalsha", 1, faultnet.LoseRequest) }, claim.InDoubt, "0"},
		{"there is no connection", func(p *fixture) { p.net.Down(); <-p.send(counterScript) }, claim.NotSent, "0"}, // the first call notices it
		{"no fault", func(*fixture) {}, claim.Answered, "1"},
	} {
		subtest(t, c.name, func(p *fixture) {
			p.loadScript()
			c.net(p)
			call := <-p.send(counterScript)
			got := OutcomeOf(call.Err)
			check.That(p, got == c.outcome && (call.Err == nil) == (c.outcome == claim.Answered),
				"outcome %d, want %d: %v", got, c.outcome, call.Err)
			check.That(p, call.Err == nil || Retryable(call.Err), "it is not retryable: %v", call.Err)
			p.checkRuns(c.ran)
			p.net.Restore()
			time.Sleep(time.Minute) // during which nothing is repeated
			p.checkRuns(c.ran)
		})
	}
}

// TestPipelineCallsShareOutcome checks that a broken pipeline is neither split nor resent in part.
func TestPipelineCallsShareOutcome(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.blockSenders()
		p.mini.Del("k")
		p.net.Break("evalsha", 1, faultnet.CutReply)
		all := p.sendMany(50)
		for i, done := range all {
			c := <-done
			check.That(p, OutcomeOf(c.Err) == claim.InDoubt, "call %d: %v", i, c.Err)
		}
		time.Sleep(time.Minute)
		p.checkRuns("50")
		got := p.sent()
		check.That(p, slices.Equal(got, []int{50}), "pipelines of %v", got)
	})
}

func TestPipelineCallsGetOwnReplies(t *testing.T) {
	refuse := script("return redis.error_reply('OOM command not allowed')")
	inBubble(t, func(p *fixture) {
		p.loadScript()
		<-p.send(refuse)
		p.blockSenders()
		var all []chan *Call
		for i := range 30 {
			s := counterScript
			if i%3 == 0 {
				s = refuse
			}
			all = append(all, p.send(s))
		}
		for i, done := range all {
			c := <-done
			check.That(p, (i%3 == 0) == redis.HasErrorPrefix(c.Err, "OOM") && (i%3 == 0) != (len(c.Reply) == 2),
				"call %d: %v, %v", i, c.Reply, c.Err)
		}
	})
}

// TestServerErrors checks errors on their way from the server through go-redis.
func TestServerErrors(t *testing.T) {
	for _, c := range []struct {
		says    string
		passing bool
	}{
		{"READONLY You can't write against a read only replica.", true},
		{"LOADING Redis is loading the dataset in memory", true},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", true},
		{"CLUSTERDOWN The cluster is down", true},
		{"TRYAGAIN Multiple keys request during rehashing of slot", true},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", true},
		{"NOREPLICAS Not enough good replicas to write.", true},
		{"MOVED 3999 127.0.0.1:6381", false}, // the client is that of a single server
		{"ASK 3999 127.0.0.1:6381", false},
		{"OOM command not allowed when used memory > 'maxmemory'.", false},
		{"NOPERM User default has no permissions to run the 'evalsha' command", false},
		{"NOAUTH Authentication required.", false},
		{"WRONGPASS invalid username-password pair or user is disabled.", false},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", false},
		{"ERR unknown command 'EVALSHA'", false},
		{"ERR Script attempted to access a non local key in a cluster node script: 61, on @user_script:66.", true},
		{"ERR max number of clients reached", true},
	} {
		says := c.says
		subtest(t, strings.Fields(says)[0], func(p *fixture) {
			p.loadScript()
			p.answer(func(c *server.Peer) { c.WriteError(says) })
			call := <-p.send(counterScript)
			must.That(p, call.Err != nil && strings.Contains(call.Err.Error(), says), "%q came through as %v", says, call.Err)
			want := claim.Answered
			if strings.Contains(says, "non local key") {
				want = claim.InDoubt // stopped in the middle
			}
			got := OutcomeOf(call.Err)
			check.That(p, got == want, "outcome %d, want %d", got, want)
			check.That(p, Retryable(call.Err) == c.passing, "retryable: %v, want %v", !c.passing, c.passing)
			check.That(p, WrongType(call.Err) == strings.HasPrefix(says, "WRONGTYPE"), "wrong type: %v", WrongType(call.Err))
			check.That(p, !Malformed(call.Err), "it is not an invalid reply")
		})
	}
}

// TestReplies checks which replies are accepted: numbers in a list, of a Scalar one number, of a Mixed call strings and lists as well. Any
// other ends its call with an error that is not retryable.
func TestReplies(t *testing.T) {
	for _, c := range []struct {
		kind string // of the call
		text string
		want string // "" if it is invalid
	}{
		{"", "return {1, redis.call('INCR', KEYS[1])}", "[1 1] []"},
		{"scalar", "return 7", "[7] []"},
		{"scalar", "return {1, 'text'}", ""},
		{"mixed", "return {1, 'text', {2}}", "[] [1 text [2]]"},
		{"mixed", "return 'text'", ""},
		{"", "return 'text'", ""},
		{"", "return 1", ""},
		{"", "return redis.status_reply('OK')", ""},
		{"", "return {'text'}", ""},
		{"", "return {1, 'text'}", ""},
		{"", "return {{1}}", ""},
		{"", "return false", ""},
		{"", "return {'9223372036854775808'}", ""},
	} {
		subtest(t, c.kind+" "+c.text, func(p *fixture) {
			time.Sleep(time.Second)
			start := time.Now()
			call, done := newCall(script(c.text))
			call.Scalar, call.Mixed = c.kind == "scalar", c.kind == "mixed"
			p.Send(call)
			<-done
			got := fmt.Sprint(call.Reply, call.Values)
			check.That(p, (call.Err == nil) == (c.want != "") && (call.Err != nil || got == c.want), "%s, %v", got, call.Err)
			check.That(p, !Retryable(call.Err) && call.Sent.Equal(start),
				"sent %v after Send; retryable: %v", call.Sent.Sub(start), call.Err)
			must.Report(p, (<-p.send(counterScript)).Err) // later calls are not affected
		})
	}
}

func TestOutcomesOfErrors(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errors.New("connection refused"))}
	read := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		name    string
		err     error
		outcome claim.Outcome
		passing bool
	}{
		{"the connection is refused", dial, claim.NotSent, true},
		{"the connection is refused, wrapped", fmt.Errorf("cluster: %w", dial), claim.NotSent, true},
		{"there is no free connection", redis.ErrPoolTimeout, claim.NotSent, true},
		{"the pool is exhausted", redis.ErrPoolExhausted, claim.NotSent, true},
		{"the client is closed", redis.ErrClosed, claim.NotSent, false},
		{"the client is closed, wrapped", fmt.Errorf("x: %w", redis.ErrClosed), claim.NotSent, false},
		{"the reply does not arrive", read, claim.InDoubt, true},
		{"the connection is cut", io.EOF, claim.InDoubt, true},
		{"the connection is cut within the reply", io.ErrUnexpectedEOF, claim.InDoubt, true},
		{"the context is cancelled", context.Canceled, claim.InDoubt, true},
		{"the context's deadline has passed", context.DeadlineExceeded, claim.InDoubt, true},
		{"the reply is empty", redis.Nil, claim.Answered, false},
		{"the reply is invalid", fmt.Errorf("%w: seven", protocol.ErrReply), claim.InDoubt, false},
		{"something else", errors.New("something else"), claim.InDoubt, true},
	} {
		outcome, retryable := OutcomeOf(c.err), Retryable(c.err)
		check.That(t, outcome == c.outcome && retryable == c.passing, "%s: outcome %d, retryable: %v", c.name, outcome, retryable)
	}
	check.That(t, OutcomeOf(nil) == claim.Answered && !Malformed(nil) && !WrongType(nil), "nil is reported as retryable")
	check.That(t, !WrongType(errors.New("WRONGTYPE, from elsewhere")),
		"an error that is not from the server is reported as a wrong type")
}

func TestCloseWaitsForPendingCalls(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.blockSenders()
		all := p.sendMany(200)
		p.Close()
		for i, done := range all {
			select {
			case c := <-done:
				check.That(p, c.Err == nil, "call %d: %v", i, c.Err)
			default:
				p.Fatalf("Close returned before call %d completed", i)
			}
		}
		p.mini.Del("k")
		c := <-p.send(counterScript)
		check.That(p, OutcomeOf(c.Err) == claim.NotSent && !Retryable(c.Err), "a call after Close: %v", c.Err)
		p.checkRuns("0")
	})
}

func TestDoneIsCalledOnce(t *testing.T) {
	inBubble(t, func(p *fixture) {
		var all []chan *Call
		for i := range 500 {
			switch i % 100 {
			case 30:
				p.net.Break("eval", 1, faultnet.CutReply)
			case 60:
				p.flush()
			case 90:
				p.net.Cut()
			}
			all = append(all, p.send(counterScript))
			if i%7 == 0 {
				synctest.Wait()
			}
		}
		time.Sleep(time.Minute)
		for i, done := range all {
			check.That(p, len(done) == 1, "call %d completed %d times", i, len(done))
		}
	})
}

// TestPoolBoundsBatches checks that however many calls wait for a server that hangs, no more batches are under way than the client has
// connections for pipelines, beside one call that is sent inline on a connection of the Transport's own, and that no connection of the
// application's pool is used, unless there is no other.
func TestPoolBoundsBatches(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for _, c := range []struct{ pipelines, pool, want int }{{0, 1, 10}, {1, 1, 1}, {2, 1, 2}, {7, 1, 7}, {30, 1, 30}, {-1, 3, 3}} {
		subtestWith(t, fmt.Sprint("PipelinePoolSize ", c.pipelines), redis.Options{PipelinePoolSize: c.pipelines, PoolSize: c.pool}, func(p *fixture) {
			p.loadScript()
			p.connectOwn(p.Context())
			if c.pipelines >= 0 {
				used := p.rdb.Conn() // exhaust the application's pool
				defer func() { _ = used.Close() }()
				must.OK(p, used.Ping(context.Background()).Err())
			}
			before := *p.rdb.PoolStats()
			p.sent()
			p.net.Break("evalsha", 10000, faultnet.SwallowReply)
			var all []chan *Call
			go p.SendInline(context.Background(), callThen(counterScript, func(*Call) {}), nil)
			synctest.Wait()
			for range 1000 { // 4 s
				all = append(all, p.send(counterScript))
				time.Sleep(4 * time.Millisecond)
			}
			n := len(p.sent()) - 1
			check.That(p, n == c.want, "%d batches are under way beside the inline one, want %d", n, c.want)
			time.Sleep(readTimeout) // the next batches replace those that timed out
			n = len(p.sent())
			check.That(p, n <= 2*c.want, "%d batches were sent in the time of two", n)
			p.net.Restore()
			restored := time.Now()
			for _, done := range all {
				<-done
			}
			d := time.Since(restored)
			check.That(p, d <= 2*readTimeout, "after the server replied again, the last call took %v", d)
			after := p.rdb.PoolStats()
			unused := before.Hits == after.Hits && before.Misses == after.Misses && after.Timeouts == 0
			check.That(p, c.pipelines < 0 || unused, "the application's pool was used: %+v, then %+v", before, after)
		})
	}
}

// TestUrgentCallsGoFirst checks that renewals do not wait behind thousands of new requests.
func TestUrgentCallsGoFirst(t *testing.T) {
	inBubbleWith(t, redis.Options{PipelinePoolSize: 1}, func(p *fixture) {
		p.loadScript()
		p.hang()
		ended := 0
		for i := range 1200 {
			call := callThen(counterScript, func(c *Call) {
				must.Report(p, c.Err)
				if ended++; c.Urgent != (ended <= 200) { // there is only one sender
					p.Errorf("an urgent call, %v, has ended as number %d", c.Urgent, ended)
				}
			})
			call.Urgent = i >= 1000
			p.Send(call)
		}
		time.Sleep(readTimeout)
		synctest.Wait()
		check.That(p, ended == 1200, "%d calls have ended", ended)
		got, want := p.sent(), []int{1, silentBatch, 128, 128}
		check.That(p, len(got) >= 4 && slices.Equal(got[:4], want), "pipelines of %v", got)
	})
}

// TestUnawaitedCallsHoldUpNoOther sends ten thousand calls that nobody waits for, of two keys. They leave one pipeline at a time, as few calls,
// and each is answered. A call that somebody waits for does not wait for them.
func TestUnawaitedCallsHoldUpNoOther(t *testing.T) {
	const calls, roundTrip = 10_000, 2 * time.Millisecond
	argumentScript := script("return {redis.call('INCRBY', KEYS[1], #ARGV - 1), tonumber(ARGV[2])}")
	inBubble(t, func(p *fixture) {
		p.loadScript()
		p.net.Delay(roundTrip / 2)
		began := time.Now()
		var ended, joined atomic.Int32
		for i := range calls {
			key := []string{"k", "l"}[i%2]
			call := &Call{Script: argumentScript, Key: key, Unawaited: true, Args: argumentScript.AppendCommand(nil, key)}
			call.Args = append(call.Args, fmt.Sprint("token", i), 7)
			call.Done = Func(func(c *Call) { // there is one sender of them
				must.That(p, c.Err == nil && len(c.Reply) == 2 && c.Reply[1] == 7 && !c.Sent.Before(began), "%v, %v", c.Reply, c.Err)
				if ended.Add(1); c.Joined {
					joined.Add(1)
				}
			})
			p.Send(call)
		}
		awaited := <-p.send(counterScript)
		must.Report(p, awaited.Err)
		took := time.Since(began)
		check.That(p, took <= 2*roundTrip && ended.Load() <= 2*maxBatch,
			"it took %v, and %d others had ended", took, ended.Load())
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		check.That(p, ended.Load() == calls && joined.Load() >= calls*9/10,
			"%d calls have ended, %d of them as part of another", ended.Load(), joined.Load())
		got, err := p.mini.Get("l")
		check.That(p, err == nil && got == fmt.Sprint(calls/2), "the scripts had %s of the tokens, %v", got, err)
	})
}

// TestJoinedCallsFailTogether: what becomes of a call becomes of those that are sent as part of it, also if the server does not know the script.
func TestJoinedCallsFailTogether(t *testing.T) {
	inBubbleWith(t, redis.Options{PipelinePoolSize: 1}, func(p *fixture) {
		p.hang()
		var all []chan *Call
		for i := range 5 {
			call, done := newCall(counterScript)
			call.Unawaited, call.Args = true, append(call.Args, i)
			p.Send(call)
			all = append(all, done)
		}
		p.net.Restore()
		p.net.Break("eval", 1, faultnet.SwallowReply)
		for _, done := range all {
			c := <-done
			check.That(p, OutcomeOf(c.Err) == claim.InDoubt && !c.Sent.IsZero(), "%v, sent at %v", c.Err, c.Sent)
		}
	})
}

// traced wraps a client and counts what its pipelines send.
type traced struct {
	*redis.Client
	sent atomic.Int32
}

func (c *traced) Pipeline() redis.Pipeliner { return &tracedPipeline{c.Client.Pipeline(), c} }

type tracedPipeline struct {
	redis.Pipeliner
	c *traced
}

func (p *tracedPipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	p.c.sent.Add(int32(p.Len()))
	return p.Pipeliner.Exec(ctx)
}

// TestClientWrapperSeesCommands checks that pipelines are created by the wrapper.
func TestClientWrapperSeesCommands(t *testing.T) {
	inBubble(t, func(p *fixture) {
		w := &traced{Client: p.rdb}
		c := New(newClient(p.T, w), "own")
		for range ownCalls + 1 {
			call, done := newCall(counterScript)
			c.SendInline(context.Background(), call, nil)
			must.Report(p, (<-done).Err)
		}
		c.Close()
		if sent := w.sent.Load(); sent != ownCalls+2 { // the server does not know the script at first
			p.Errorf("the wrapper saw %d commands", sent)
		}
	})
}

// TestWithdrawnCallsAreNotSent blocks the only connection. Calls that are withdrawn meanwhile must not be sent, and end with an outcome that
// says so; the others are sent. A call that is under way cannot be withdrawn.
func TestWithdrawnCallsAreNotSent(t *testing.T) {
	inBubbleWith(t, redis.Options{PipelinePoolSize: 1}, func(p *fixture) {
		p.loadScript()
		p.net.Break("evalsha", 1, faultnet.SwallowReply)
		underWay, _ := newCall(counterScript)
		p.Send(underWay)
		synctest.Wait()
		check.That(p, !underWay.Withdraw(), "a call that is under way was withdrawn")
		var kept, withdrawn []chan *Call
		for i := range 1000 {
			call, done := newCall(counterScript)
			call.Urgent = i%4 == 0
			if i == 0 {
				call.Withdraw() // before Send
			}
			p.Send(call)
			if i%10 == 7 {
				kept = append(kept, done)
				continue
			}
			check.That(p, call.Withdraw() && call.Withdrawn(), "a queued call was not withdrawn")
			withdrawn = append(withdrawn, done)
		}
		q := p.queues[nil]
		q.mu.Lock()
		n := len(q.queued.calls)
		q.mu.Unlock()
		check.That(p, n <= pruneMin+100, "%d calls are queued, most of which were withdrawn", n)
		p.mini.Del("k")
		sent := time.Now()
		for _, done := range kept {
			c := <-done
			must.Report(p, c.Err)
			d := c.Sent.Sub(sent)
			check.That(p, d >= readTimeout, "Sent is %v after the call was queued, before it was written", d)
		}
		time.Sleep(time.Minute)
		for _, done := range withdrawn {
			must.That(p, len(done) == 1, "a withdrawn call was completed %d times", len(done))
			c := <-done
			must.That(p, OutcomeOf(c.Err) == claim.NotSent, "%v", c.Err)
		}
		p.checkRuns("100")
	})
}

// TestWithdrawAfterNoScript withdraws a call between its two attempts: it has not run, and is not sent in full.
func TestWithdrawAfterNoScript(t *testing.T) {
	inBubbleWith(t, redis.Options{PipelinePoolSize: 1}, func(p *fixture) {
		p.loadScript()
		p.flush()
		first, firstDone := newCall(counterScript)
		done := make(chan *Call, 1)
		// The second call of the pipeline is completed after the first was queued again, and before that is taken.
		second := &Call{Script: counterScript, Key: "k", Args: []any{"get", "k"}, Mixed: true, Done: Func(func(c *Call) {
			check.That(p, first.Withdraw(), "it was not withdrawn")
			done <- c
		})}
		p.net.Break("evalsha", 1, faultnet.SwallowReply)
		p.send(counterScript) // so that the two share a pipeline
		synctest.Wait()
		p.Send(first)
		p.Send(second)
		<-done
		c := <-firstDone
		check.That(p, OutcomeOf(c.Err) == claim.NotSent, "%v", c.Err)
		p.flush()
	})
}

// TestSilentServerGetsFewCalls sends calls to a server that does not answer, for longer than a client timeout. What is under way for
// callers who may have left is bounded, and the calls that were queued before a pipeline that was not answered fail with it, unsent.
func TestSilentServerGetsFewCalls(t *testing.T) {
	inBubbleWith(t, redis.Options{}, func(p *fixture) {
		p.loadScript()
		p.net.Break("evalsha", 1<<20, faultnet.SwallowReply)
		var all []chan *Call
		for start := time.Now(); time.Since(start) < 2*readTimeout+time.Second; time.Sleep(200 * time.Millisecond) {
			all = append(all, p.sendMany(100)...)
		}
		queued, unsent := 0, 0
		for i, done := range all {
			if len(done) == 0 {
				queued++
				continue
			}
			if c := <-done; c.Err == nil || !Retryable(c.Err) {
				p.Errorf("call %d: %v", i, c.Err)
			} else if OutcomeOf(c.Err) == claim.NotSent {
				unsent++
			}
		}
		underWay := 0
		for _, size := range p.sent() {
			underWay += size
		}
		p.net.Restore()
		// All that were queued in the first 10 s have failed with the pipelines that were sent then.
		check.That(p, unsent >= 4000 && queued <= 6000,
			"of %d calls %d have failed without being sent, and %d are queued", len(all), unsent, queued)
		check.That(p, underWay <= 600, "%d calls were under way", underWay)
	})
}

// TestQueueIsBounded fills the queue. A call beyond the bound ends at once, unless it is urgent or others are not wanted any more.
func TestQueueIsBounded(t *testing.T) {
	inBubbleWith(t, redis.Options{PipelinePoolSize: 1}, func(p *fixture) {
		p.loadScript()
		p.maxQueued = 600
		p.hang()
		var calls []*Call
		results := make(chan *Call, 2000)
		send := func(urgent bool) {
			call := callThen(counterScript, func(c *Call) { results <- c })
			call.Urgent = urgent
			calls = append(calls, call)
			p.Send(call)
		}
		for range p.maxQueued {
			send(false)
		}
		synctest.Wait()
		must.That(p, len(results) == 0, "%d calls have ended already", len(results))
		send(false)
		synctest.Wait()
		must.That(p, len(results) == 1, "%d calls have ended", len(results))
		c := <-results
		check.That(p, errors.Is(c.Err, ErrQueueFull) && OutcomeOf(c.Err) == claim.NotSent && Retryable(c.Err), "%v", c.Err)
		for range 100 {
			send(true)
		}
		calls[17].Withdraw()
		send(false)
		synctest.Wait()
		check.That(p, len(results) == 1, "%d calls have ended, want the one that was withdrawn", len(results))
		time.Sleep(time.Minute)
		n := len(results)
		check.That(p, n == 701, "%d calls have ended, want 701", n)
	})
}

// TestGiveUp checks that queued calls end at once when the server is silent, and go on while it answers.
func TestGiveUp(t *testing.T) {
	inBubbleWith(t, redis.Options{PipelinePoolSize: 1}, func(p *fixture) {
		p.loadScript()
		p.GiveUp()
		must.Report(p, (<-p.send(counterScript)).Err) // the server answers
		p.hang()
		queued := p.send(counterScript)
		time.Sleep(2 * giveUpAfter)
		start := time.Now()
		c := <-p.send(counterScript)
		check.That(p, OutcomeOf(c.Err) == claim.NotSent && !Retryable(c.Err), "while it is silent: %v", c.Err)
		p.GiveUp()
		c = <-queued
		check.That(p, OutcomeOf(c.Err) == claim.NotSent && time.Since(start) == 0, "queued: %v after %v", c.Err, time.Since(start))
	})
}

// TestWithdrawBeforeInlineSend withdraws a call that is about to be sent inline, between its being marked as queued and its being taken.
func TestWithdrawBeforeInlineSend(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.loadScript()
		p.connectOwn(p.Context())
		p.mini.Del("k")
		call, done := newCall(counterScript)
		q := p.queues[nil]
		q.mu.Lock()
		go p.SendInline(context.Background(), call, nil)
		for call.state.Load() != callQueued {
			runtime.Gosched() // sendInline waits for the mutex, which does not let the time of the bubble pass
		}
		withdrawn := call.Withdraw()
		q.mu.Unlock()
		synctest.Wait()
		c := <-done
		must.That(t, withdrawn, "not withdrawn")
		check.That(t, OutcomeOf(c.Err) == claim.NotSent,
			"Withdraw returned true, but the call was sent: reply %v, error %v", c.Reply, c.Err)
		p.checkRuns("0")
	})
}

// TestNodesComeAndGo checks that nothing is left of nodes that a cluster had: a pod gets another address with each restart.
func TestNodesComeAndGo(t *testing.T) {
	var restarts atomic.Int32
	inCluster(t, func() string { return fmt.Sprintf("10.0.0.%d:6379", restarts.Load()) }, func(p *fixture, rdb *redis.ClusterClient) {
		for restarts.Load() < 5 {
			for _, done := range p.sendMany(20) {
				must.Report(p, (<-done).Err)
			}
			restarts.Add(1)
			rdb.ReloadState(p.Context())
			time.Sleep(time.Hour)
		}
		p.Transport.mu.Lock()
		n := len(p.queues)
		check.That(p, n <= 2, "%d queues", n)
		p.Transport.mu.Unlock()
	})
}
