// Package client detects the deployment that a go-redis client connects to, a single server or a cluster, and reads the
// client's settings. No other package does.
//
// It examines the client's methods and not its type. A struct that embeds a client, as wrappers for tracing and metrics
// do, is therefore treated like the embedded client. The wrapper's own methods are used, so a wrapper that overrides one
// sees the commands.
package client

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
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

// PrimaryConns returns a dedicated connection to each primary: of a cluster to every one that has slots, else to the single server.
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

// WaitsForEver reports whether the client has no timeouts, so that a command may block for ever if the server does not
// answer.
func (c *Client) WaitsForEver() bool {
	if c.cluster != nil {
		o := c.cluster.Options()
		return o.ReadTimeout <= 0 || o.WriteTimeout <= 0
	}
	o := c.single.Options()
	return o.ReadTimeout <= 0 || o.WriteTimeout <= 0
}

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
	case o.Addr == "FailoverClient": // go-redis shows no more
		return "primary behind Sentinel, database " + strconv.Itoa(o.DB)
	case o.Network == "unix":
		return "unix://" + o.Addr
	case o.TLSConfig != nil:
		return "rediss://" + o.Addr + "/" + strconv.Itoa(o.DB)
	}
	return "redis://" + o.Addr + "/" + strconv.Itoa(o.DB)
}
