// Package client detects the deployment that a go-redis client connects to, a single server or a cluster, and reads the client's settings. No
// other package does. A keeper makes a Client by New; packages server, transport, pubsub and views send by it, and ask it for nodes.
//
// New examines the client's methods and not its type. A struct that embeds a client, as wrappers for tracing and metrics do, is
// therefore treated like the embedded client. The wrapper's own methods are used, so a wrapper that overrides one sees the commands.
//
// Mutexes: only that of the counts of open keepers (keepers.go), under which no other is taken.
package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Client is a go-redis client of a known kind. Commands should be sent with Pipeline, and messages received with
// Subscribe.
type Client struct {
	redis.UniversalClient
	single  single  // nil on a cluster
	cluster cluster // nil on a single server
}

// single is implemented by clients of a single server, with or without Sentinel.
type single interface {
	Conn() *redis.Conn
	Options() *redis.Options
}

// cluster is implemented by clients of a cluster.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, node *redis.Client) error) error
	ReloadState(ctx context.Context)
	Options() *redis.ClusterOptions
}

// ring is implemented by clients that distribute keys over servers themselves.
type ring interface{ Options() *redis.RingOptions }

// New detects the kind of the client. The error says why the client cannot be used.
func New(rdb redis.UniversalClient) (*Client, error) {
	if rdb == nil || isNil(rdb) {
		return nil, errors.New("the client is nil; pass a *redis.Client or a *redis.ClusterClient")
	}
	switch c := rdb.(type) {
	case ring:
		return nil, errors.New("a redis.Ring moves keys to another server when one is down, so a lock could be granted twice; use a Cluster or Sentinel client")
	case cluster:
		return &Client{UniversalClient: rdb, cluster: c}, nil
	case single:
		return &Client{UniversalClient: rdb, single: c}, nil
	case *redis.AutoPipeliner:
		return nil, errors.New("a redis.AutoPipeliner is not supported, and not needed since requests share pipelines; use the client that it was created from")
	}
	return nil, errors.New("the client has the methods of neither a single server's nor a cluster's client; " +
		"a wrapper must embed *redis.Client or *redis.ClusterClient, not the interface redis.UniversalClient")
}

// isNil reports whether the client is a nil pointer, or a wrapper that embeds one.
func isNil(rdb redis.UniversalClient) bool { return holdsNil(reflect.ValueOf(rdb)) }

func holdsNil(v reflect.Value) bool {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return true
		}
		if v = v.Elem(); v.Kind() == reflect.Pointer {
			return holdsNil(v)
		}
	}
	if v.Kind() != reflect.Struct || v.Type().PkgPath() == reflect.TypeFor[redis.Client]().PkgPath() {
		return false
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && f.Type.Implements(universal) && holdsNil(v.Field(i)) {
			return true
		}
	}
	return false
}

var universal = reflect.TypeFor[redis.UniversalClient]()

// IsCluster reports whether the client connects to a cluster, where a command must be sent to the node that has its key.
func (c *Client) IsCluster() bool { return c.cluster != nil }

// ErrClusterNode is the error of a single server's client that has connected to a node of a cluster: it cannot reach keys at other nodes.
var ErrClusterNode = errors.New("the server is a node of a Cluster; use a redis.ClusterClient")

// Explain adds to an error reply what it means to the application's client.
func (c *Client) Explain(err error) error {
	switch {
	case err == nil:
	case c.cluster == nil && (redis.HasErrorPrefix(err, "MOVED ") || redis.HasErrorPrefix(err, "ASK ")):
		return fmt.Errorf("%w: %w", ErrClusterNode, err)
	case redis.HasErrorPrefix(err, "NOAUTH"), strings.Contains(err.Error(), "unauthenticated"):
		// To a command with many arguments the server replies without NOAUTH.
		return fmt.Errorf("the server wants a password (set one in the client's options): %w", err)
	}
	return err
}

// IsNode reports whether the connection of a single server's client is to a node of a cluster, as HELLO says. It is false if the server
// does not know HELLO or does not permit it.
func (c *Client) IsNode(ctx context.Context, conn *redis.Conn) (bool, error) {
	if c.cluster != nil {
		return false, nil
	}
	hello := redis.NewMapStringInterfaceCmd(ctx, "hello")
	err := conn.Process(ctx, hello)
	if reply := redis.Error(nil); errors.As(err, &reply) {
		return false, nil
	}
	return hello.Val()["mode"] == "cluster", err
}

// Primary returns the cluster's node that has the key, and nil on a single server. It may do I/O.
func (c *Client) Primary(ctx context.Context, key string) (*redis.Client, error) {
	if c.cluster == nil {
		return nil, nil
	}
	return c.cluster.MasterForKey(ctx, key)
}

// Reload makes the client of a cluster request the slot map again, in the background. It does nothing on a single server.
func (c *Client) Reload(ctx context.Context) {
	if c.cluster != nil {
		c.cluster.ReloadState(ctx)
	}
}

// Conn returns a dedicated connection from the client's main pool to the primary that has the key, and the primary's
// address. On a single server the address is "", because a failover may change it.
func (c *Client) Conn(ctx context.Context, key string) (conn *redis.Conn, addr string, err error) {
	if c.cluster == nil {
		return c.single.Conn(), "", nil
	}
	node, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, "", err
	}
	return node.Conn(), node.Options().Addr, nil
}

// PrimaryConns returns a dedicated connection to each primary of a cluster that has slots, or to the single server.
// The caller closes them. Each comes from the client's main pool at its first command and is not replaced if it breaks, so that all
// its commands are run by one server.
func (c *Client) PrimaryConns(ctx context.Context) ([]*redis.Conn, error) {
	if c.cluster == nil {
		return []*redis.Conn{c.single.Conn()}, nil
	}
	var mu sync.Mutex
	var conns []*redis.Conn
	err := c.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error { // in goroutines
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, node.Conn())
		return nil
	})
	return conns, err
}

// Pipelines returns how many pipelines to a node (to the single server if node is nil) may be in flight at once before
// go-redis takes connections for them from its main pool. If there is no pool for pipelines (PipelinePoolSize below 0),
// it is the size of the main pool, which the application uses as well.
func (c *Client) Pipelines(node *redis.Client) int {
	var o *redis.Options
	switch {
	case node != nil:
		o = node.Options()
	case c.single != nil:
		o = c.single.Options()
	}
	switch {
	case o == nil || o.PipelinePoolSize == 0:
		return redis.DefaultPipelinePoolSize
	case o.PipelinePoolSize > 0:
		return o.PipelinePoolSize
	}
	return max(o.PoolSize, 1)
}

// Own returns own, a client with the same settings and a single connection, and hooked, whose Process runs the hooks that the application has
// added so far, and then sends by own. The caller closes own, which dials once, and gives up when ctx ends: it calls dialed with the connection
// before the first command. Instead of dialing again it calls lost, and the command fails before it is sent. The application's DialHooks are
// not run, so the caller checks that the connection is to the same server.
//
// own is nil on a cluster; behind Sentinel, because own would keep its connection to a former primary, which the application's pool closes;
// and for a wrapper, because own would bypass the wrapper's methods.
func (c *Client) Own(ctx context.Context, dialed func(net.Conn), lost func()) (own *redis.Client, hooked *redis.Conn) {
	application, ok := c.UniversalClient.(*redis.Client)
	if !ok || application.Options().Addr == failoverAddr {
		return nil, nil
	}
	o := *application.Options()
	dial := o.Dialer
	var again atomic.Bool
	o.Dialer = func(of context.Context, network, addr string) (net.Conn, error) {
		if again.Swap(true) {
			lost()
			return failed(&net.OpError{Op: "dial", Net: network, Err: errors.New("the connection was lost")}), nil
		}
		of, cancel := context.WithCancel(of)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		conn, err := dial(of, network, addr)
		if err != nil {
			return failed(err), nil
		}
		dialed(conn)
		return conn, nil
	}
	o.PoolSize, o.PipelinePoolSize = 1, -1
	o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 0, 0, 0
	o.DialerRetries, o.MaxRetries = 1, -1
	o.ClientSideCacheConfig, o.ClientSideCache = nil, nil
	// The application's processor handles messages about its own pool, and go-redis cannot register its handlers again.
	o.PushNotificationProcessor = nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ReadTimeout, o.WriteTimeout = asGiven(o.ReadTimeout), asGiven(o.WriteTimeout)
	own = redis.NewClient(&o)
	hooked = application.Conn() // it has the hooks, and would take a connection at its first command only
	hooked.AddHook(sendBy{own})
	return own, hooked
}

// failed returns a connection that fails with the error of a dial. go-redis would log the error itself, although the application's pool works.
func failed(err error) net.Conn {
	conn, _ := net.Pipe()                          // for the methods that do nothing
	return failedConn{conn, fmt.Errorf("%w", err)} // go-redis unwraps it once
}

type failedConn struct {
	net.Conn
	err error
}

func (c failedConn) Write([]byte) (int, error) { return 0, c.err }

// asGiven returns the timeout to set for one that a client's options show. go-redis shows -1, which means none, as 0, but takes 0 as its default.
func asGiven(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return timeout - 1
	}
	return timeout
}

// sendBy is a hook that sends commands by another client.
type sendBy struct{ other *redis.Client }

// DialHook implements redis.Hook.
func (sendBy) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (s sendBy) ProcessHook(redis.ProcessHook) redis.ProcessHook { return s.other.Process }

// ProcessPipelineHook implements redis.Hook.
func (sendBy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// failoverAddr is what go-redis shows as the address of a primary behind Sentinel.
const failoverAddr = "FailoverClient"

// String says which deployment the client connects to, without credentials: redis://host:port/db, or what is known of a Cluster or of
// a primary behind Sentinels.
func (c *Client) String() string {
	if c.cluster != nil {
		addrs := c.cluster.Options().Addrs
		text := "cluster " + strings.Join(addrs[:min(len(addrs), 3)], ", ")
		if len(addrs) > 3 {
			text += ", …"
		}
		return text
	}
	o := c.single.Options()
	switch {
	case o.Addr == failoverAddr:
		return "primary behind Sentinel, database " + strconv.Itoa(o.DB)
	case o.Network == "unix":
		return "unix://" + o.Addr
	case o.TLSConfig != nil:
		return "rediss://" + o.Addr + "/" + strconv.Itoa(o.DB)
	}
	return "redis://" + o.Addr + "/" + strconv.Itoa(o.DB)
}
