package client

import (
	"context"
	"net"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// clusterClient is implemented by clients of a cluster.
type clusterClient interface {
	Pipeline() redis.Pipeliner
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, node *redis.Client) error) error
	ReloadState(ctx context.Context)
	Options() *redis.ClusterOptions
}

// nodes are those of a cluster. Each is a *redis.Client.
type nodes struct{ rdb clusterClient }

func (n nodes) Pipeline() redis.Pipeliner { return n.rdb.Pipeline() }

func (n nodes) Primary(ctx context.Context, key string) (Node, error) {
	node, err := n.rdb.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return node, nil
}

func (n nodes) Reload(ctx context.Context) { n.rdb.ReloadState(ctx) }

// Subscribe receives sharded messages, which only the node of their slot has.
func (nodes) Subscribe(ctx context.Context, node Node) Subscription {
	return node.(*redis.Client).SSubscribe(ctx)
}

func (n nodes) Conn(ctx context.Context, key string) (Conn, string, error) {
	node, err := n.rdb.MasterForKey(ctx, key)
	if err != nil {
		return nil, "", err
	}
	return node.Conn(), node.Options().Addr, nil
}

func (n nodes) PrimaryConns(ctx context.Context) ([]Conn, error) {
	var mu sync.Mutex
	var conns []Conn
	err := n.rdb.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error { // in goroutines
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, node.Conn())
		return nil
	})
	return conns, err
}

// Pipelines follows the options of the node, which a wrapper may have made.
func (nodes) Pipelines(node Node) int { return pipelines(node.(*redis.Client).Options()) }

// Own returns none, because the keys are at several nodes.
func (nodes) Own(context.Context, func(net.Conn), func()) (own, hooked Conn) { return nil, nil }

func (n nodes) String() string {
	addrs := n.rdb.Options().Addrs
	text := "cluster " + strings.Join(addrs[:min(len(addrs), 3)], ", ")
	if len(addrs) > 3 {
		text += ", …"
	}
	return text
}
