package pubsub

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	goleak.VerifyTestMain(m, redistest.IgnoreStarter())
}

// fixture is a Subscriber and what it has received.
type fixture struct {
	*testing.T
	*Subscriber
	mini     *miniredis.Miniredis
	net      *faultnet.Net
	dials    atomic.Int32
	dialing  []context.Context // of each dial
	ids      int               // so many were drawn
	id       func(n int) string
	inUse    atomic.Pointer[map[string]bool]
	received chan string
	resumed  chan string
	denied   chan string
}

func newFixture(t *testing.T, rdb redis.UniversalClient) *fixture {
	r := &fixture{T: t, id: func(int) string { return "" }, received: make(chan string, 100), resumed: make(chan string, 100), denied: make(chan string, 100)}
	c := must.Get(client.New(rdb))(t)
	r.Subscriber = New(Config{
		Client: c,
		NewID:  func() string { r.ids++; return r.id(r.ids) },
		InUse: func() map[string]bool {
			if ids := r.inUse.Load(); ids != nil {
				return *ids
			}
			return nil
		},
		Received:   func(payload string) { r.received <- payload },
		Subscribed: func(channel string) { r.resumed <- channel },
		Denied:     func(channel string, err error) { r.denied <- channel + ": " + err.Error() },

		Unacknowledged: func(channel string) { r.denied <- channel + ": not acknowledged" },
	})
	return r
}

// inBubble runs a test on an embedded server in virtual time.
func inBubble(t *testing.T, test func(r *fixture)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var r *fixture
		n := s.Network()
		rdb := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", DialerRetries: 1,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				r.dials.Add(1)
				r.dialing = append(r.dialing, ctx)
				return n.Dial(ctx, network, addr)
			},
		})
		r = newFixture(s.T, rdb)
		r.mini, r.net = s.Mini, n
		test(r)
		r.Close() // the bubble fails if a goroutine is left running
		must.Report(s, rdb.Close())
	})
}

// subtest runs a test with this name in a bubble of its own.
func subtest(t *testing.T, name string, test func(r *fixture)) {
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// mustSubscribe waits until the channel is subscribed, for as long as replacing a connection may take.
func (r *fixture) mustSubscribe(channel string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := r.Subscribe(ctx, channel)
	must.That(r, err == nil, "%s is not subscribed: %v", channel, err)
	check.That(r, r.IsSubscribed(channel) && !r.SubscribedSince(channel).IsZero(),
		"%s is subscribed, but IsSubscribed and SubscribedSince do not say so", channel)
}

// answer answers the server's SUBSCRIBE commands while f returns true.
func (r *fixture) answer(f func(c *server.Peer, channel string) bool) {
	r.mini.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool { return cmd == "SUBSCRIBE" && f(c, args[0]) })
}

// acknowledge acknowledges a subscription, of which the server does not know.
func acknowledge(c *server.Peer, kind, channel string) {
	c.WritePushLen(3)
	c.WriteBulk(kind)
	c.WriteBulk(channel)
	c.WriteInt(1)
	c.Flush()
}

func (r *fixture) expect(what string, ch <-chan string, want string) {
	r.Helper()
	select {
	case got := <-ch:
		check.That(r, got == want, "%s: %q, want %q", what, got, want)
	case <-time.After(10 * time.Second):
		r.Fatalf("%s: nothing, want %q", what, want)
	}
}

func (r *fixture) expectUnsubscribed(channel string) {
	r.Helper()
	check.That(r, !r.IsSubscribed(channel) && r.SubscribedSince(channel).IsZero(), "%s is reported as subscribed", channel)
}

// TestMessagesAreReceived: of all channels, on one connection.
func TestMessagesAreReceived(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.expectUnsubscribed("a")
		done := make(chan error)
		for i := range 20 {
			go func() { done <- r.Subscribe(context.Background(), []string{"a", "b", "c"}[i%3]) }()
		}
		for range 20 {
			must.Report(r, <-done)
		}
		for _, c := range []string{"a", "b", "c", "a"} {
			r.mustSubscribe(c)
			n := r.mini.Publish(c, "hello "+c)
			check.That(r, n == 1, "%d subscribers", n)
			r.mini.Publish("other", "not for us")
			r.expect("received", r.received, "hello "+c)
		}
		check.That(r, r.dials.Load() == 1 && len(r.resumed) == 3 && !r.Sharded(),
			"%d connections, %d channels were resumed, sharded %v", r.dials.Load(), len(r.resumed), r.Sharded())
	})
}

// TestSubscribeWaitsForReply checks that Subscribe waits for the server's reply or the end of its context, and that a connection without a
// reply is replaced after a while.
func TestSubscribeWaitsForReply(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.net.Break("\r\nsubscribe\r\n", 1, faultnet.SwallowReply)
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- r.Subscribe(context.Background(), "c") }()
		check.Is(r, r.Subscribe(must.Within(r, ackTimeout-time.Millisecond), "c"), context.DeadlineExceeded, "its context has ended")
		n := r.mini.PubSubNumSub("c")["c"]
		check.That(r, n == 1, "%d subscribers at the server", n)
		r.expectUnsubscribed("c")
		check.That(r, len(done)+len(r.resumed) == 0, "Subscribe returned too soon")
		must.Report(r, <-done)
		d := time.Since(start)
		check.That(r, d >= ackTimeout && d <= ackTimeout+time.Second, "the connection was replaced after %v", d)
		r.expect("resumed", r.resumed, "c")
		since := r.SubscribedSince("c")
		check.That(r, !since.Before(start.Add(ackTimeout)), "subscribed since %v", since.Sub(start))
	})
}

// TestLostConnectionIsReplaced checks that a lost subscription is reported at once, and replaced soon.
func TestLostConnectionIsReplaced(t *testing.T) {
	inBubble(t, func(r *fixture) {
		for _, name := range []string{"c", "d"} {
			r.mustSubscribe(name)
			r.expect("resumed", r.resumed, name)
		}
		for range 3 {
			before := r.SubscribedSince("c")
			r.net.Down()
			synctest.Wait()
			r.expectUnsubscribed("c")
			r.expectUnsubscribed("d")
			r.net.Restore()
			time.Sleep(time.Millisecond)
			r.mustSubscribe("c")
			r.mustSubscribe("d")
			check.That(r, r.SubscribedSince("c").After(before), "the gap is not visible in SubscribedSince")
			a, b := <-r.resumed, <-r.resumed
			check.That(r, a+b == "cd" || a+b == "dc", "resumed: %s, %s", a, b)
			r.mini.Publish("c", "hello")
			r.expect("received", r.received, "hello")
		}
	})
}

// TestReconnectBackoff checks that only consecutive losses delay a reconnect.
func TestReconnectBackoff(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("c")
		for range 10 {
			time.Sleep(time.Second)
			now := time.Now()
			r.net.CutSubscriptions()
			synctest.Wait()
			must.That(r, r.SubscribedSince("c").Equal(now), "subscribed since %v, disconnected at %v", r.SubscribedSince("c"), now)
		}
		r.net.Down()
		r.dials.Store(0)
		time.Sleep(time.Minute)
		n := r.dials.Load()
		check.That(r, n >= 30 && n <= 150, "%d attempts in a minute", n)
		r.expectUnsubscribed("c")
		r.net.Restore()
		start := time.Now()
		r.mustSubscribe("c")
		d := time.Since(start)
		check.That(r, d <= 2*time.Second, "it took %v to resubscribe", d)
	})
}

// TestReconnectionOfGoRedisIsVisible checks that messages which were lost while go-redis has moved the connection to another server are not
// taken for received.
func TestReconnectionOfGoRedisIsVisible(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("other")
		var subscribes atomic.Pointer[server.Peer]
		r.mini.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "SUBSCRIBE" {
				subscribes.Store(c)
			}
			if cmd == "CLIENT" {
				c.WriteOK() // also to CLIENT MAINT_NOTIFICATIONS
			}
			return cmd == "CLIENT"
		})
		r.net.CutSubscriptions()
		r.mustSubscribe("c")
		before := r.SubscribedSince("c")
		time.Sleep(time.Second)
		peer := subscribes.Load()
		peer.WritePushLen(4)
		peer.WriteBulk("MOVING")
		peer.WriteInt(1)
		peer.WriteInt(10)
		peer.WriteBulk("127.0.0.1:2")
		peer.Flush()
		dials := r.dials.Load()
		r.mini.Publish("c", "hello") // go-redis looks for other messages when there is one
		synctest.Wait()
		now := r.SubscribedSince("c")
		check.That(r, r.dials.Load() != dials && now.After(before),
			"%d dials, subscribed since %v before and %v after", r.dials.Load()-dials, before, now)
	})
}

// TestDenialIsCached checks that a denial is reported at once, and that the server is asked again only after a
// while.
func TestDenialIsCached(t *testing.T) {
	const refusal = "NOPERM this user has no permissions to access one of the channels used as arguments"
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("allowed")
		asked := 0
		r.answer(func(c *server.Peer, channel string) bool {
			if channel == "c" {
				asked++
				c.WriteError(refusal)
			}
			return channel == "c"
		})
		for range 3 {
			err := r.Subscribe(context.Background(), "c")
			check.That(r, errors.Is(err, ErrDenied) && strings.Contains(err.Error(), refusal), "%v", err)
			r.expectUnsubscribed("c")
			time.Sleep(denialTTL / 4)
		}
		check.That(r, asked == 1, "the server was asked %d times", asked)
		r.expect("denied", r.denied, "c: "+refusal)
		check.That(r, r.IsSubscribed("allowed"), "the other channel was denied as well")

		time.Sleep(denialTTL / 2)
		err := r.Subscribe(context.Background(), "c")
		check.That(r, errors.Is(err, ErrDenied) && asked == 2, "asked %d times, %v", asked, err)
		r.expect("denied", r.denied, "c: "+refusal)

		r.mini.Server().SetPreHook(nil)
		time.Sleep(denialTTL)
		r.mustSubscribe("c")
	})
}

// TestLoadingServerIsRetried checks that temporary errors are retried.
func TestLoadingServerIsRetried(t *testing.T) {
	inBubble(t, func(r *fixture) {
		left := 3
		r.mustSubscribe("other")
		r.answer(func(c *server.Peer, _ string) bool {
			if left == 0 {
				return false
			}
			left--
			c.WriteError("LOADING Redis is loading the dataset in memory")
			return true
		})
		r.mustSubscribe("c")
		r.mustSubscribe("other")
		check.That(r, left == 0 && len(r.denied) == 0, "%d refusals left, %d denials reported", left, len(r.denied))
	})
}

func TestClose(t *testing.T) {
	for name, state := range map[string]func(r *fixture){
		"unused":     func(*fixture) {},
		"listening":  func(r *fixture) { r.mustSubscribe("c") },
		"connecting": func(r *fixture) { r.net.Down(); go func() { _ = r.Subscribe(context.Background(), "c") }() },
		"unanswered": func(r *fixture) { r.net.Break("\r\nsubscribe\r\n", 9, faultnet.SwallowReply) },
	} {
		subtest(t, name, func(r *fixture) {
			state(r)
			waits := make(chan error, 1)
			go func() {
				for {
					if err := r.Subscribe(context.Background(), "c"); err != nil {
						waits <- err
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
			time.Sleep(3 * time.Second)
			start := time.Now()
			r.Close()
			stacks := stacks()
			check.That(r, !strings.Contains(stacks, "pubsub.(*conn).receive(") && !strings.Contains(stacks, "pubsub.(*Subscriber).reconnect("),
				"Close did not wait for its goroutines:\n%s", stacks)
			d := time.Since(start)
			check.That(r, d == 0, "Close took %v", d)
			r.Close() // again
			check.Is(r, <-waits, ErrClosed, "Subscribe during Close")
			check.Is(r, r.Subscribe(context.Background(), "c"), ErrClosed, "Subscribe after Close")
			r.expectUnsubscribed("c")
			synctest.Wait() // the server has seen the end of the connection
			check.That(r, r.mini.PubSubNumSub("c")["c"] == 0, "a subscription is left")
			n := r.dials.Load()
			time.Sleep(time.Minute)
			got := r.dials.Load()
			check.That(r, got == n, "%d connections after Close", got-n)
		})
	}
}

// TestCloseEndsDials: also those that go-redis makes by itself when a connection is lost.
func TestCloseEndsDials(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("c")
		r.net.CutSubscriptions()
		synctest.Wait()
		r.mustSubscribe("c")
		r.Close()
		for i, ctx := range r.dialing {
			check.That(t, ctx.Err() != nil, "dial %d of %d would go on", i+1, len(r.dialing))
		}
	})
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// TestOnRealServer checks what an embedded server does not support.
func TestOnRealServer(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client()
	ctx := context.Background()
	r := newFixture(t, redistest.Connect(s))
	defer r.Close()
	r.mustSubscribe("c")
	r.expect("resumed", r.resumed, "c")

	must.OK(t, admin.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
	r.expect("resumed", r.resumed, "c")
	must.OK(t, admin.Publish(ctx, "c", "after the kill").Err())
	r.expect("received", r.received, "after the kill")

	must.OK(t, admin.Do(ctx, "acl", "setuser", "default", "resetchannels", "&c").Err())
	err := r.Subscribe(ctx, "d")
	check.That(t, errors.Is(err, ErrDenied) && strings.Contains(err.Error(), "NOPERM"), "%v", err)
	r.expectUnsubscribed("d")
	denial := <-r.denied
	check.That(t, strings.HasPrefix(denial, "d: NOPERM"), "%s", denial)
	r.mustSubscribe("c")

	// Without the permission for a subscribed channel, the server closes the connection.
	must.OK(t, admin.Do(ctx, "acl", "setuser", "default", "resetchannels").Err())
	denial = <-r.denied
	check.That(t, strings.HasPrefix(denial, "c: NOPERM"), "%s", denial)
	r.expectUnsubscribed("c")
}

// TestClusterChannelsAreSharded checks that each channel is subscribed at the node of its slot, also after the slot
// has moved.
func TestClusterChannelsAreSharded(t *testing.T) {
	c := redistest.StartCluster(t, 2, 0)
	rdb := c.Client()
	ctx := context.Background()
	r := newFixture(t, rdb)
	defer r.Close()
	check.That(t, r.Sharded(), "channels are not reported as sharded")
	says := func(channel, text string) {
		t.Helper()
		n, err := rdb.SPublish(ctx, channel, text).Result()
		check.That(t, err == nil && n == 1, "%s: %d subscribers, %v", channel, n, err)
		r.expect("received", r.received, text)
	}
	channels := []string{"{a}:wake", "{b}:wake"} // in distinct slots: 15495 and 3300
	for _, name := range channels {
		r.mustSubscribe(name)
		r.expect("resumed", r.resumed, name)
		says(name, "hello "+name)
	}
	c.MoveSlot(channels[0])
	r.expect("resumed", r.resumed, channels[0])
	r.mustSubscribe(channels[0])
	rdb.ReloadState(ctx)
	for range 1000 { // until the publisher knows it as well
		if n, err := rdb.SPublish(ctx, channels[0], "moved").Result(); err == nil && n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	r.expect("received", r.received, "moved")
	says(channels[1], "still here")
}

// TestUnusedChannelsAreGivenUp checks when channels of a Cluster that nobody uses are given up, that one is subscribed again if a waiter uses it
// then, and that nothing of the others remains.
func TestUnusedChannelsAreGivenUp(t *testing.T) {
	embedded.RunCluster(t, 2, func(c *embedded.Cluster) {
		rdb := c.Client(c.Network())
		r := newFixture(c.T, rdb)
		r.id = strconv.Itoa
		subscribed := func(want ...string) {
			t.Helper()
			synctest.Wait()
			got := c.Subscriptions("")
			slices.Sort(got)
			r.mu.Lock()
			defer r.mu.Unlock()
			check.That(t, slices.Equal(got, want) && len(r.names) == len(want) && len(r.channels) == len(want),
				"subscribed to %q, and %d names of %d channels, want %q", got, len(r.names), len(r.channels), want)
		}
		r.Hold("{a}:")
		r.mustSubscribe("{b}:")
		time.Sleep(channelIdleTimeout - time.Millisecond)
		r.Hold("{c}:")
		subscribed("{a}:1", "{b}:2", "{c}:3")
		time.Sleep(2 * time.Millisecond)
		subscribed("{a}:1", "{c}:3")
		r.Hold("{b}:")
		r.Release("{c}:")
		time.Sleep(time.Hour)
		subscribed("{a}:1", "{b}:4")
		r.Hold("{b}:")
		r.Release("{b}:")
		r.Release("{a}:")
		time.Sleep(time.Hour)
		subscribed("{b}:4")
		r.Release("{b}:")
		time.Sleep(channelIdleTimeout)
		subscribed()
		r.Use("{a}:", "of a request before that")
		r.Hold("{a}:")
		subscribed("{a}:of a request before that")
		r.Close()
		must.Report(t, rdb.Close())
	})
}

// TestReconnectBackoffAfterAcknowledgements: connections that break right after the acknowledgement are not replaced without pauses.
func TestReconnectBackoffAfterAcknowledgements(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("c")
		r.answer(func(c *server.Peer, channel string) bool {
			time.Sleep(time.Millisecond)
			acknowledge(c, "subscribe", channel)
			time.Sleep(time.Millisecond)
			c.Close()
			return true
		})
		r.dials.Store(0)
		r.net.CutSubscriptions()
		time.Sleep(5 * time.Second)
		r.mini.Server().SetPreHook(nil)
		time.Sleep(time.Second)
		n := r.dials.Load()
		check.That(t, n <= 50, "%d connections in 5 s", n)
	})
}

// nodes is a cluster of two nodes: keys that begin with h are on the one that hangs.
type nodes struct {
	*redis.ClusterClient
	hangs, answers *redis.Client
}

func (n nodes) MasterForKey(_ context.Context, key string) (*redis.Client, error) {
	if key[0] == 'h' {
		return n.hangs, nil
	}
	return n.answers, nil
}

func (nodes) ReloadState(context.Context) {}

// TestNodeThatHangsDelaysNoOther checks that channels are subscribed at once while another node of the cluster cannot be dialled, and that this is
// tried again.
func TestNodeThatHangsDelaysNoOther(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		var dials atomic.Int32
		hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		n := nodes{
			ClusterClient: &redis.ClusterClient{},
			hangs:         redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: hang}),
			answers:       redis.NewClient(faultnet.Options(s.Network(), time.Second)),
		}
		must.OK(s, n.answers.Ping(s.Context()).Err())
		s.Mini.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if cmd == "SSUBSCRIBE" {
				acknowledge(c, "ssubscribe", args[0])
			}
			return cmd == "SSUBSCRIBE"
		})
		r := newFixture(s.T, n)
		r.Begin("hangs")
		for _, name := range []string{"a", "b"} {
			synctest.Wait()
			check.Is(t, r.Subscribe(must.Within(s, time.Second), name), nil, "%s", name)
		}
		r.expectUnsubscribed("hangs")
		time.Sleep(time.Minute)
		check.Between(t, dials.Load(), 5, 20, "dials")
		r.Close()
		must.Report(s, n.hangs.Close())
		must.Report(s, n.answers.Close())
	})
}

// TestRedialThatHangs: go-redis connects again by itself, to a host that is down, while another channel is to be subscribed. In real time, since a
// goroutine waits for a mutex of go-redis.
func TestRedialThatHangs(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	hanging := make(chan struct{}, 100)
	var conn atomic.Pointer[net.Conn]
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), DialerRetries: 1, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if hangs.Load() {
			hanging <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		conn.Store(&c)
		return c, err
	}})
	r := newFixture(t, rdb)
	r.mustSubscribe("c")
	hangs.Store(true)
	_ = (*conn.Load()).Close()
	<-hanging
	r.Begin("other")
	time.Sleep(50 * time.Millisecond) // it waits for the mutex, if it has come so far
	hangs.Store(false)
	check.Is(t, r.Subscribe(must.Within(t, ackTimeout+3*time.Second), "other"), nil, "it is not subscribed, though the host is back")
	r.Close()
	_ = rdb.Close()
}

// TestIDsOfChannel: each connection begins with a new id for the requests to come. Ids that are in use keep their names as long as they are, and
// while the server is out of reach there are not more and more.
func TestIDsOfChannel(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.id = strconv.Itoa
		r.inUse.Store(&map[string]bool{})
		subscribers := func(want ...int) {
			r.Helper()
			r.mustSubscribe("c")
			synctest.Wait()
			for i, n := range want {
				name := "c" + strconv.Itoa(i+1)
				got := r.mini.PubSubNumSub(name)[name]
				check.That(r, got == n, "%d subscribers of %s, want %d", got, name, n)
			}
		}
		a, b := r.ID("c"), r.ID("d")
		check.That(r, a == "1" && b == "1", "ids %s and %s of requests that are under way", a, b)
		r.inUse.Store(&map[string]bool{"1": true})
		subscribers(1)
		r.net.Cut()
		subscribers(1, 1)
		check.That(r, r.ID("c") == "2", "another id than 2 on the second connection")
		r.mini.Publish("c1", "to the first")
		r.expect("received", r.received, "to the first")
		synctest.Wait()
		r.inUse.Store(&map[string]bool{})
		time.Sleep(trimInterval)
		subscribers(0, 1)
		synctest.Wait()
		r.inUse.Store(&map[string]bool{"3": true})
		r.net.Down()
		time.Sleep(time.Minute)
		r.net.Restore()
		subscribers(0, 0, 1, 0)
		time.Sleep(time.Minute)
		check.That(r, r.ID("d") == "4", "another id than 4 of another channel")
	})
}
