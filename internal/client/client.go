// Package client detects the deployment that a go-redis client connects to, a single server or a cluster, and reads the client's settings. No
// other package does. A keeper makes a Client by New; packages server, transport, pubsub and views send by it, and ask it for nodes.
//
// New examines the client's methods and not its type. A struct that embeds a client, as wrappers for tracing and metrics do, is
// therefore treated like the embedded client. The wrapper's own methods are used, so a wrapper that overrides one sees the commands.
//
// The types of go-redis' clients, connections and subscriptions stay inside this package, because the compiler writes 1,500 functions into each
// package that sees one, were it in a field of a field: a third of the time of a build. (A client of go-redis 9.23 has a weak.Pointer[Client], and
// each package gets the methods of its type argument.) Other packages see Client, Node, Conn and Subscription.
//
// Mutexes: only that of the counts of open keepers (keepers.go), under which no other is taken.
package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is a go-redis client of a known kind. Commands should be sent with Pipeline, and messages received with
// Subscribe.
type Client struct {
	deployment
	cluster bool
	options any // the same for a client and its wrappers
}

// deployment is a single server (type server) or a cluster (type nodes).
type deployment interface {
	// Pipeline returns an empty pipeline.
	Pipeline() redis.Pipeliner

	// Primary returns the cluster's node that has the key, and nil on a single server. It may do I/O.
	Primary(ctx context.Context, key string) (Node, error)

	// Reload makes the client of a cluster request the slot map again, in the background. It does nothing on a single server.
	Reload(ctx context.Context)

	// Subscribe returns a connection that receives messages from the node, or from the single server if node is nil. It is made when it is
	// first used.
	Subscribe(ctx context.Context, node Node) Subscription

	// Conn returns a dedicated connection from the client's main pool to the primary that has the key, and the primary's
	// address. On a single server the address is "", because a failover may change it.
	Conn(ctx context.Context, key string) (conn Conn, addr string, err error)

	// PrimaryConns returns a dedicated connection to each primary of a cluster that has slots, or to the single server.
	// The caller closes them. Each comes from the client's main pool at its first command and is not replaced if it breaks, so that all
	// its commands are run by one server.
	PrimaryConns(ctx context.Context) ([]Conn, error)

	// Pipelines returns how many pipelines to a node (to the single server if node is nil) may be in flight at once before
	// go-redis takes connections for them from its main pool. If there is no pool for pipelines (PipelinePoolSize below 0),
	// it is the size of the main pool, which the application uses as well.
	Pipelines(node Node) int

	// Own returns own, a client with the same settings and a single connection, and hooked, whose Process runs the hooks that the application
	// has added so far, and then sends by own. The caller closes own, which dials once, and gives up when ctx ends: it calls dialed with the
	// connection before the first command. Instead of dialing again it calls lost, and the command fails before it is sent. The application's
	// DialHooks are not run, so the caller checks that the connection is to the same server.
	//
	// own is nil on a cluster; behind Sentinel, because own would keep its connection to a former primary, which the application's pool
	// closes; and for a wrapper, because own would bypass the wrapper's methods.
	Own(ctx context.Context, dialed func(net.Conn), lost func()) (own, hooked Conn)

	// String says which deployment the client connects to, without credentials: redis://host:port/db, or what is known of a Cluster or of
	// a primary behind Sentinels.
	String() string
}

// Node is a node of a Cluster. Those of one client are equal if they are the same node.
type Node = interface{ Pipeline() redis.Pipeliner }

// Conn is a *redis.Conn, or a *redis.Client with one connection.
type Conn interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
	Do(ctx context.Context, args ...any) *redis.Cmd
	DBSize(ctx context.Context) *redis.IntCmd
	Del(ctx context.Context, keys ...string) *redis.IntCmd
	Info(ctx context.Context, sections ...string) *redis.StringCmd
	Wait(ctx context.Context, replicas int, timeout time.Duration) *redis.IntCmd
	WaitAOF(ctx context.Context, local, replicas int, timeout time.Duration) *redis.IntSliceCmd
	Close() error
}

// Subscription is a *redis.PubSub, whose type leads to that of clients.
type Subscription interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	SSubscribe(ctx context.Context, channels ...string) error
	SUnsubscribe(ctx context.Context, channels ...string) error
	Ping(ctx context.Context, payload ...string) error
	Receive(ctx context.Context) (any, error)
	Close() error
}

// New detects the kind of the client. The error says why the client cannot be used.
func New(rdb redis.UniversalClient) (*Client, error) {
	if rdb == nil || isNil(rdb) {
		return nil, errors.New("the client is nil; pass a *redis.Client or a *redis.ClusterClient")
	}
	switch c := rdb.(type) {
	case interface{ Options() *redis.RingOptions }:
		return nil, errors.New("a redis.Ring moves keys to another server when one is down, so a lock could be granted twice; use a Cluster or Sentinel client")
	case clusterClient:
		return &Client{deployment: nodes{c}, cluster: true, options: c.Options()}, nil
	case singleClient:
		return &Client{deployment: server{c}, options: c.Options()}, nil
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
	if v.Kind() != reflect.Struct || v.Type().PkgPath() == universal.PkgPath() {
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

var universal = reflect.TypeOf((*redis.UniversalClient)(nil)).Elem() // without the wrappers that TypeFor has

// IsCluster reports whether the client connects to a cluster, where a command must be sent to the node that has its key.
func (c *Client) IsCluster() bool { return c.cluster }

// ErrClusterNode is the error of a single server's client that has connected to a node of a cluster: it cannot reach keys at other nodes.
var ErrClusterNode = errors.New("the server is a node of a Cluster; use a redis.ClusterClient")

// Explain adds to an error reply what it means to the application's client.
func (c *Client) Explain(err error) error {
	switch {
	case err == nil:
	case !c.cluster && (redis.HasErrorPrefix(err, "MOVED ") || redis.HasErrorPrefix(err, "ASK ")):
		return fmt.Errorf("%w: %w", ErrClusterNode, err)
	case c.cluster && strings.Contains(err.Error(), "cluster support disabled"):
		return fmt.Errorf("the server is not a node of a Cluster; use a redis.Client: %w", err)
	case redis.HasErrorPrefix(err, "NOAUTH"), strings.Contains(err.Error(), "unauthenticated"):
		// To a command with many arguments the server replies without NOAUTH.
		return fmt.Errorf("the server wants a password (set one in the client's options): %w", err)
	}
	return err
}

// IsNode reports whether the connection of a single server's client is to a node of a cluster, as HELLO says. It is false if the server
// does not know HELLO or does not permit it.
func (c *Client) IsNode(ctx context.Context, conn Conn) (bool, error) {
	if c.cluster {
		return false, nil
	}
	hello := redis.NewMapStringInterfaceCmd(ctx, "hello")
	err := conn.Process(ctx, hello)
	if reply := redis.Error(nil); errors.As(err, &reply) {
		return false, nil
	}
	return hello.Val()["mode"] == "cluster", err
}
