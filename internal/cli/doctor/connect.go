package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// From where on a figure is worth a warning. docs/operations.md says so, too.
const (
	fullMemory   = 0.9                    // of maxmemory
	clockApart   = time.Second            // server and this machine
	slowMedian   = 20 * time.Millisecond  // of PING: another region
	slowP99      = 200 * time.Millisecond // of PING
	longTimeout  = lockkeeper.DefaultTTL / 3
	handOffs     = 5
	pings        = 100
	clockSamples = 20
)

// sentinels asks each sentinel whether it could fail over.
func (d *doctor) sentinels(ctx context.Context) {
	o := d.target.Sentinel
	ctx, cancel := context.WithTimeout(ctx, d.connectTime())
	defer cancel()
	var all sync.WaitGroup
	for _, addr := range o.SentinelAddrs {
		all.Go(func() {
			s := redis.NewSentinelClient(&redis.Options{
				Addr: addr, Username: o.SentinelUsername, Password: o.SentinelPassword, TLSConfig: o.TLSConfig,
				DialTimeout: o.DialTimeout, MaxRetries: -1, DialerRetries: redisurl.DialAttempts, ContextTimeoutEnabled: true,
			})
			defer func() { _ = s.Close() }()
			n := &node{doctor: d, addr: addr}
			primary, err := s.GetMasterAddrByName(ctx, o.MasterName).Result()
			switch {
			case errors.Is(err, redis.Nil):
				n.add(n, "sentinel", finding{Status: failure, Seen: fmt.Sprintf("it watches no %q", o.MasterName), Advice: "correct master_name"})
				return
			case redis.IsPermissionError(err):
				n.add(n, "sentinel", missing("+sentinel|get-master-addr-by-name", err))
				return
			case err != nil:
				n.add(n, "sentinel", finding{Status: warning, Seen: "no answer: " + err.Error(), Advice: "start it, or take it out of the URL"})
				return
			}
			seen := fmt.Sprintf("the primary of %q is %s", o.MasterName, strings.Join(primary, ":"))
			err = s.CkQuorum(ctx, o.MasterName).Err()
			switch {
			case err == nil:
				n.add(n, "sentinel", finding{Seen: seen + "; a quorum of sentinels is there"})
			case redis.HasErrorPrefix(err, "NOQUORUM"):
				n.add(n, "sentinel", finding{Status: failure, Seen: seen + "; " + err.Error(), Advice: "start the sentinels that are missing: nothing fails over without them"})
			default:
				f := missing("+sentinel|ckquorum", err)
				f.Seen = seen + "; the quorum: " + f.Seen
				n.add(n, "sentinel", f)
			}
		})
	}
	all.Wait()
}

// connect returns the servers that take writes and answer.
func (d *doctor) connect(ctx context.Context) []*node {
	ctx, cancel := context.WithTimeout(ctx, d.connectTime())
	defer cancel()
	var found []*node
	if cluster, ok := d.ask.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		err := cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			found = append(found, &node{doctor: d, client: c, addr: c.Options().Addr})
			return nil
		})
		if err != nil {
			d.add(nil, "connect", d.refused(err))
			return nil
		}
	} else {
		c := d.ask.(*redis.Client)
		found = append(found, &node{doctor: d, client: c, addr: c.Options().Addr})
	}
	answers := make([]error, len(found))
	together(found, func(n *node) { answers[slices.Index(found, n)] = n.client.Ping(ctx).Err() })
	var nodes []*node
	for i, n := range found {
		err := answers[i]
		if err != nil && !answered(err) {
			n.add(n, "connect", d.refused(err))
			continue
		}
		n.add(n, "connect", finding{Seen: "it answers"})
		n.locate(ctx)
		nodes = append(nodes, n)
	}
	return nodes
}

// answered says whether an error of PING is a server's that can be asked further. Without rights, or when it does not
// take writes, it can.
func answered(err error) bool {
	return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "MISCONF") || lacks(err)
}

// lacks says whether the error is about a command, or a part of one, that the server does not have. The client takes "ERR "
// away before it compares.
func lacks(err error) bool { return redis.HasErrorPrefix(err, "unknown ") }

// refused is a server that cannot be asked anything.
func (d *doctor) refused(err error) finding {
	f := finding{Status: failure, Seen: err.Error()}
	switch {
	case redis.IsLoadingError(err):
		f.Advice = "wait until it has read its data"
	case redis.IsAuthError(err):
		f.Advice = "correct the user and the password in the URL"
	case redis.HasErrorPrefix(err, "BUSY"):
		f.Advice = "find the script that runs for so long, and end it by SCRIPT KILL"
	case redis.IsPermissionError(err):
		f.Advice, f.Right = "let the user find the cluster's nodes", "+cluster|slots +cluster|shards"
	case strings.Contains(err.Error(), "cluster support disabled"):
		f.Advice = "this server is not in a cluster: use a redis:// URL"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		f.Seen = fmt.Sprintf("no answer within %v: %v", d.connectTime(), err)
		f.Advice = "see whether the server hangs, and whether a firewall drops packets"
	default:
		f.Advice = "check the URL, and whether the server runs"
	}
	return f
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// locate finds a name whose keys lie on the node.
func (n *node) locate(ctx context.Context) {
	cluster, ok := n.ask.(*redis.ClusterClient)
	for i := range 100_000 {
		name := n.name
		if ok {
			name += "-" + strconv.Itoa(i)
		}
		k, err := protocol.KeysOf(n.prefix, name, lua.Mutex.Kind, false)
		if err != nil {
			return // newDoctor has checked the prefix, and the name is harmless
		}
		if ok {
			owner, err := cluster.MasterForKey(ctx, k.Meta)
			if err != nil {
				return
			}
			if owner != n.client {
				continue
			}
		}
		n.keys = &k
		return
	}
}

// slots looks at the cluster as its nodes see it.
func (d *doctor) slots(ctx context.Context, nodes []*node) {
	together(nodes, func(n *node) {
		text, err := n.client.ClusterInfo(ctx).Result()
		if err != nil {
			n.add(n, "cluster", missing("+cluster|info", err))
			return
		}
		n.add(n, "cluster", judgeCluster(fields(text)))
	})
}

func judgeCluster(info map[string]string) finding {
	seen := fmt.Sprintf("state %s, %s of 16384 slots assigned, %s failing", info["cluster_state"], info["cluster_slots_assigned"], info["cluster_slots_fail"])
	switch {
	case info["cluster_slots_assigned"] != "16384":
		return finding{Status: failure, Seen: seen, Advice: "assign all slots (redis-cli --cluster fix): names in the others cannot be locked"}
	case info["cluster_state"] != "ok" || info["cluster_slots_fail"] != "0":
		return finding{Status: failure, Seen: seen, Advice: "bring the primaries back that are gone, or promote their replicas"}
	case info["cluster_slots_pfail"] != "0":
		return finding{Status: warning, Seen: seen + ", " + info["cluster_slots_pfail"] + " suspected", Advice: "see which nodes cannot reach each other"}
	}
	return finding{Seen: seen}
}
