package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Wrappers such as services write for tracing and metrics. The compiler takes a second for each.
type (
	wrappedClient struct{ *redis.Client }
	wrappedRing   struct{ *redis.Ring }
	wrappedTwice  struct{ wrappedCluster }
	wrappedAny    struct{ redis.UniversalClient }
)

// wrappedCluster overrides how its nodes are found.
type wrappedCluster struct {
	*redis.ClusterClient
	node *redis.Client
}

func (w wrappedCluster) MasterForKey(context.Context, string) (*redis.Client, error) {
	return w.node, nil
}

// refuse returns a dialer that fails the test.
func refuse(t *testing.T) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		t.Error("the client has connected")
		return nil, io.EOF
	}
}

func TestKindOfClient(t *testing.T) {
	single := redis.NewClient(&redis.Options{Dialer: refuse(t)})
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, Dialer: refuse(t)})
	ring := redis.NewRing(&redis.RingOptions{})
	auto := must.Get(single.AutoPipeline())(t)
	t.Cleanup(func() {
		for _, c := range []io.Closer{single, sentinel, cluster, ring} {
			_ = c.Close()
		}
	})
	const server, nodes = "server", "cluster"
	for name, c := range map[string]struct {
		rdb  redis.UniversalClient
		want string // or what the error says
	}{
		"Client":                         {single, server},
		"failover client":                {sentinel, server},
		"ClusterClient":                  {cluster, nodes},
		"wrapped Client":                 {wrappedClient{single}, server},
		"pointer to wrapped Client":      {&wrappedClient{single}, server},
		"wrapped failover client":        {wrappedClient{sentinel}, server},
		"wrapped ClusterClient":          {wrappedCluster{ClusterClient: cluster}, nodes},
		"ClusterClient wrapped twice":    {&wrappedTwice{wrappedCluster{ClusterClient: cluster}}, nodes},
		"Ring":                           {ring, "redis.Ring"},
		"wrapped Ring":                   {wrappedRing{ring}, "redis.Ring"},
		"AutoPipeliner":                  {auto, "AutoPipeliner"},
		"interface with a Client":        {wrappedAny{single}, "embed *redis.Client or *redis.ClusterClient"},
		"interface with a ClusterClient": {wrappedAny{cluster}, "embed *redis.Client or *redis.ClusterClient"},
		"interface with a Ring":          {wrappedAny{ring}, "embed *redis.Client or *redis.ClusterClient"},
		"nil":                            {nil, "nil"},
		"nil *Client":                    {(*redis.Client)(nil), "nil"},
		"nil *ClusterClient":             {(*redis.ClusterClient)(nil), "nil"},
		"nil *Ring":                      {(*redis.Ring)(nil), "nil"},
		"nil wrapper":                    {(*wrappedClient)(nil), "nil"},
		"wrapper of a nil Client":        {wrappedClient{}, "nil"},
		"wrapper of a nil ClusterClient": {&wrappedTwice{}, "nil"},
		"wrapper of a nil interface":     {wrappedAny{}, "nil"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := New(c.rdb)
			switch {
			case err != nil:
				check.That(t, got == nil && c.want != server && c.want != nodes && strings.Contains(err.Error(), c.want),
					"%v, want %s", err, c.want)
			case got.IsCluster() && c.want != nodes, !got.IsCluster() && c.want != server:
				t.Errorf("a cluster: %v, want %s", got.IsCluster(), c.want)
			default:
				own, _ := got.Own(t.Context(), nil, nil)
				if own != nil {
					_ = own.Close()
				}
				check.That(t, (own != nil) == (c.rdb == redis.UniversalClient(single)), "a connection of its own: %v", own)
			}
		})
	}
}

func TestNodesComeFromWrapper(t *testing.T) {
	node := redis.NewClient(&redis.Options{Addr: "10.1.2.3:4", Dialer: refuse(t), PipelinePoolSize: 5})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, Dialer: refuse(t)})
	defer func() { _, _ = node.Close(), cluster.Close() }()
	c := must.Get(New(wrappedCluster{cluster, node}))(t)
	if got, err := c.Primary(context.Background(), "k"); got != node || err != nil {
		t.Errorf("the primary is %v, %v", got, err)
	}
	conn, addr, err := c.Conn(context.Background(), "k")
	check.That(t, err == nil && addr == "10.1.2.3:4", "a connection to %q, %v", addr, err)
	_ = conn.Close()
	n := c.Pipelines(node)
	check.That(t, n == 5, "%d pipelines", n)
}

// TestWrapperCountsAsItsClient: the keepers of a client and of its wrapper are counted together.
func TestWrapperCountsAsItsClient(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Dialer: refuse(t)})
	defer func() { _ = rdb.Close() }()
	plain, wrapped := must.Get(New(rdb))(t), must.Get(New(wrappedClient{rdb}))(t)
	for range Many - 1 {
		check.That(t, !plain.Opened(), "fewer than %d are reported", Many)
		defer plain.Closed()
	}
	check.That(t, wrapped.Opened(), "that of the wrapper does not count")
	wrapped.Closed()
}

func TestPipelinesFollowSettings(t *testing.T) {
	for _, c := range []struct{ pipelines, pool, want int }{
		{0, 4, redis.DefaultPipelinePoolSize}, {1, 4, 1}, {2, 4, 2}, {100, 4, 100}, {-1, 4, 4}, {-1, 1, 1},
	} {
		rdb := []redis.UniversalClient{
			redis.NewClient(&redis.Options{PoolSize: c.pool, PipelinePoolSize: c.pipelines}),
			redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", PoolSize: c.pool, PipelinePoolSize: c.pipelines}),
		}
		for _, rdb := range rdb {
			k := must.Get(New(wrappedClient{rdb.(*redis.Client)}))(t)
			n := k.Pipelines(nil)
			check.That(t, n == c.want, "PipelinePoolSize %d, PoolSize %d: %d at once, want %d", c.pipelines, c.pool, n, c.want)
			_ = rdb.Close()
		}
	}
}

// TestOwnDialIsNotLogged checks that go-redis logs nothing when a connection cannot be made or is lost, and that the error says that the
// command was not sent.
func TestOwnDialIsNotLogged(t *testing.T) {
	var log goRedisLog
	redis.SetLogger(&log)
	defer quiet.Redis()
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	}})
	lost := 0
	own, hooked := must.Get(New(rdb))(t).Own(t.Context(), nil, func() { lost++ })
	for n, want := range []string{"refused", "the connection was lost", "the connection was lost"} {
		var dial *net.OpError
		err := hooked.Do(t.Context(), "PING").Err()
		check.That(t, errors.As(err, &dial) && dial.Op == "dial" && dial.Err.Error() == want, "%T %[1]v, want that of a dial: %s", err, want)
		check.That(t, lost == n, "lost %d times, want %d", lost, n)
	}
	must.Report(t, own.Close())
	must.Report(t, rdb.Close())
	check.That(t, len(log) == 0, "go-redis has logged %q", log)
}

// goRedisLog is what go-redis has logged.
type goRedisLog []string

// Printf implements the logger of go-redis.
func (l *goRedisLog) Printf(_ context.Context, format string, args ...any) {
	*l = append(*l, fmt.Sprintf(format, args...))
}

// TestOwnHasSettingsOfItsClient checks that a connection has the timeouts that its client was given, and shares nothing with that which is
// registered or changed.
func TestOwnHasSettingsOfItsClient(t *testing.T) {
	for _, timeout := range []time.Duration{-2, -1, 0, time.Second} {
		rdb := redis.NewClient(&redis.Options{Protocol: 3, ReadTimeout: timeout, WriteTimeout: timeout})
		c := must.Get(New(rdb))(t)
		own, _ := c.Own(t.Context(), nil, nil)
		is, has := own.(*redis.Client).Options(), rdb.Options()
		check.That(t, is.ReadTimeout == has.ReadTimeout && is.WriteTimeout == has.WriteTimeout,
			"%v: timeouts %v, %v, want %v, %v", timeout, is.ReadTimeout, is.WriteTimeout, has.ReadTimeout, has.WriteTimeout)
		check.That(t, has.PushNotificationProcessor != nil && is.PushNotificationProcessor != has.PushNotificationProcessor,
			"its messages go where those of the application's connections go")
		check.That(t, has.MaintNotificationsConfig != nil && is.MaintNotificationsConfig != has.MaintNotificationsConfig,
			"it shares what go-redis changes when it connects")
		must.Report(t, own.Close())
		must.Report(t, rdb.Close())
	}
}

// replyError is an error reply, as go-redis returns it.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// TestExplain: a Cluster's client goes to the node that MOVED and ASK name, one of a single server does not.
func TestExplain(t *testing.T) {
	single, cluster := redis.NewClient(&redis.Options{}), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _, _ = single.Close(), cluster.Close() }()
	for text, want := range map[string]bool{"MOVED 1 a:1": true, "ASK 1 a:1": true, "TRYAGAIN x": false, "CLUSTERDOWN x": false} {
		for rdb, want := range map[redis.UniversalClient]bool{single: want, cluster: false} {
			c, err := New(rdb)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Explain(replyError(text)); errors.Is(err, ErrClusterNode) != want || !strings.Contains(err.Error(), text) {
				t.Errorf("%T: %v", rdb, err)
			}
			err = c.Explain(replyError("ERR This instance has cluster support disabled"))
			check.That(t, strings.Contains(err.Error(), "use a redis.Client") == c.IsCluster(), "%T: %v", rdb, err)
		}
	}
}
