// Package client says what kind of deployment a go-redis client talks to, and what its settings allow.
//
// It is the one place that does. It goes by the methods of the client and not by its type, so that a struct which embeds
// a client, as wrappers for tracing and metrics do, is what the embedded client is; and it uses the wrapper's own
// methods, so that a wrapper that overrides one sees what is sent.
package client

import (
	"context"
	"errors"
	"reflect"

	"github.com/redis/go-redis/v9"
)

// Client is a client whose kind is known. Its methods are those of the client that was given; what is sent should go
// through Pipeline, and what is received through Subscribe.
type Client struct {
	redis.UniversalClient
	single  single  // nil on a cluster
	cluster cluster // nil on a single server
}

// single is what a client of one server has, be it behind Sentinel or not.
type single interface {
	Conn() *redis.Conn
	Options() *redis.Options
}

// cluster is what a client of a cluster has.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
	Options() *redis.ClusterOptions
}

// ring is what a client has that spreads keys by itself.
type ring interface{ Options() *redis.RingOptions }

// New says what the client is. The error says why it cannot be used.
func New(rdb redis.UniversalClient) (*Client, error) {
	if rdb == nil || isNil(rdb) {
		return nil, errors.New("the client is nil")
	}
	switch c := rdb.(type) {
	case ring:
		return nil, errors.New("a redis.Ring moves keys when a server is down, which would grant a lock twice; use a Cluster or Sentinel client")
	case cluster:
		return &Client{UniversalClient: rdb, cluster: c}, nil
	case single:
		return &Client{UniversalClient: rdb, single: c}, nil
	case *redis.AutoPipeliner:
		return nil, errors.New("a redis.AutoPipeliner is not needed, as requests share pipelines anyway; use the client that it was made of")
	}
	return nil, errors.New("it cannot be told whether this is the client of a server or of a cluster, as it has the methods of neither; " +
		"a wrapper must embed *redis.Client or *redis.ClusterClient, and not the interface redis.UniversalClient")
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

// IsCluster says whether keys are spread over several primaries, so that a call must be sent to the one that has its key.
func (c *Client) IsCluster() bool { return c.cluster != nil }

// Primary is the cluster's node that has the key, and nil on a single server. It may take I/O.
func (c *Client) Primary(ctx context.Context, key string) (*redis.Client, error) {
	if c.cluster == nil {
		return nil, nil
	}
	return c.cluster.MasterForKey(ctx, key)
}

// Reload makes a client of a cluster ask for the layout again, in the background. It does nothing on a single server.
func (c *Client) Reload(ctx context.Context) {
	if c.cluster != nil {
		c.cluster.ReloadState(ctx)
	}
}

// Conn is a connection of its own to the primary that has the key, taken from the client's main pool, and the primary's
// address, which is "" on a single server: there it may change, with a failover.
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

// Pipelines is how many pipelines may be under way at once to a node, or to the single server if node is nil, before
// go-redis takes connections for them from its main pool. If it has no connections for pipelines alone
// (PipelinePoolSize below 0), it is the size of the main pool, which then serves everybody.
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

// WaitsForEver says whether the client may wait without end for a server that does not answer.
func (c *Client) WaitsForEver() bool {
	if c.cluster != nil {
		o := c.cluster.Options()
		return o.ReadTimeout <= 0 || o.WriteTimeout <= 0
	}
	o := c.single.Options()
	return o.ReadTimeout <= 0 || o.WriteTimeout <= 0
}
