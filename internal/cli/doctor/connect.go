package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// checkSentinels asks each sentinel for the primary and the quorum.
func (d *doctor) checkSentinels(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.connectTimeout())
	defer cancel()
	var wg sync.WaitGroup
	for _, addr := range d.target.Sentinel.SentinelAddrs {
		wg.Go(func() { d.add(&node{addr: addr}, "sentinel", d.sentinel(ctx, addr)) })
	}
	wg.Wait()
}

func (d *doctor) sentinel(ctx context.Context, addr string) finding {
	o := d.target.Sentinel
	s := redis.NewSentinelClient(&redis.Options{
		Addr: addr, Username: o.SentinelUsername, Password: o.SentinelPassword, TLSConfig: o.TLSConfig,
		DialTimeout: o.DialTimeout, MaxRetries: -1, DialerRetries: redisurl.DialAttempts, ContextTimeoutEnabled: true,
	})
	defer func() { _ = s.Close() }()
	primary, err := s.GetMasterAddrByName(ctx, o.MasterName).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return finding{Status: statusError, Detail: fmt.Sprintf("it does not monitor a primary named %q", o.MasterName), Advice: "correct master_name in the URL"}
	case redis.IsPermissionError(err):
		return unavailable("+sentinel|get-master-addr-by-name", err)
	case err != nil:
		return finding{Status: statusWarning, Detail: "no answer: " + err.Error(), Advice: "start this sentinel, or remove it from the URL"}
	}
	detail := fmt.Sprintf("the primary of %q is %s", o.MasterName, strings.Join(primary, ":"))
	switch err := s.CkQuorum(ctx, o.MasterName).Err(); {
	case err == nil:
		return finding{Detail: detail + "; the sentinels have a quorum"}
	case redis.HasErrorPrefix(err, "NOQUORUM"):
		return finding{Status: statusError, Detail: detail + "; " + err.Error(), Advice: "start the missing sentinels: without a quorum there is no failover"}
	default:
		f := unavailable("+sentinel|ckquorum", err)
		f.Detail = detail + "; quorum: " + f.Detail
		return f
	}
}

// connect returns the primaries that answer.
func (d *doctor) connect(ctx context.Context) []*node {
	ctx, cancel := context.WithTimeout(ctx, d.connectTimeout())
	defer cancel()
	var primaries []*node
	if cluster, ok := d.probe.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		err := cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			primaries = append(primaries, &node{doctor: d, client: c, addr: c.Options().Addr})
			return nil
		})
		if err != nil {
			d.add(nil, "connection", d.connectError(err))
			return nil
		}
	} else {
		c := d.probe.(*redis.Client)
		primaries = append(primaries, &node{doctor: d, client: c, addr: c.Options().Addr})
	}
	errs := make([]error, len(primaries))
	onEach(primaries, func(n *node) { errs[slices.Index(primaries, n)] = n.client.Ping(ctx).Err() })
	var nodes []*node
	for i, n := range primaries {
		if err := errs[i]; err != nil && !canBeChecked(err) {
			n.add(n, "connection", d.connectError(err))
			continue
		}
		n.add(n, "connection", finding{Detail: "the server answers"})
		n.findKeys(ctx)
		nodes = append(nodes, n)
	}
	return nodes
}

// canBeChecked reports whether the other checks are useful after PING failed with err: they are if the user lacks
// permissions or the server refuses writes.
func canBeChecked(err error) bool {
	return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "MISCONF") || isUnknownCommand(err)
}

// connectError is the finding about a server that cannot be checked any further.
func (d *doctor) connectError(err error) finding {
	f := finding{Status: statusError, Detail: err.Error()}
	hint := connect.Hint(err, d.target.TLS())
	switch {
	case redis.IsLoadingError(err):
		f.Advice = "wait until the server has loaded its data"
	case redis.IsAuthError(err):
		f.Advice = "correct the user and the password in the URL"
	case redis.HasErrorPrefix(err, "BUSY"):
		f.Advice = "find the long-running script, and stop it with SCRIPT KILL"
	case redis.IsPermissionError(err):
		f.Advice, f.ACLRules = "permit the user to list the nodes of the cluster", "+cluster|slots +cluster|shards"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		f.Detail = fmt.Sprintf("no answer within %v: %v", d.connectTimeout(), err)
		f.Advice = "check whether the server hangs, and whether a firewall drops packets"
		if hint != "" {
			f.Advice += "; " + hint
		}
	case hint != "":
		f.Advice = hint
	default:
		f.Advice = "check the URL, and whether the server is running"
	}
	return f
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// findKeys sets n.keys and n.sharded to those of a lock name that the node serves.
func (n *node) findKeys(ctx context.Context) {
	cluster, isCluster := n.probe.(*redis.ClusterClient)
	for i := range 100_000 {
		name := n.lockName
		if isCluster {
			name += "-" + strconv.Itoa(i)
		}
		k, err := protocol.KeysOf(n.prefix, name, lua.Mutex.Kind, false)
		if err != nil {
			return // cannot happen: newDoctor has validated the prefix, and the name is valid
		}
		if isCluster {
			owner, err := cluster.MasterForKey(ctx, k.Meta)
			if err != nil {
				return
			}
			if owner != n.client {
				continue
			}
		}
		n.keys, n.sharded = &k, protocol.ChannelPrefix(n.prefix, name)+"doctor"
		return
	}
}

// checkCluster checks the slots as each node sees them.
func (d *doctor) checkCluster(ctx context.Context, nodes []*node) {
	onEach(nodes, func(n *node) {
		text, err := n.client.ClusterInfo(ctx).Result()
		if err != nil {
			n.add(n, "cluster", unavailable("+cluster|info", err))
			return
		}
		n.add(n, "cluster", evaluateCluster(infoFields(text)))
	})
}

func evaluateCluster(info map[string]string) finding {
	detail := fmt.Sprintf("state %s, %s of 16384 slots assigned, %s failing", info["cluster_state"], info["cluster_slots_assigned"], info["cluster_slots_fail"])
	switch {
	case info["cluster_slots_assigned"] != "16384":
		return finding{Status: statusError, Detail: detail, Advice: "assign all slots (redis-cli --cluster fix): locks whose names are in other slots cannot be acquired"}
	case info["cluster_state"] != "ok" || info["cluster_slots_fail"] != "0":
		return finding{Status: statusError, Detail: detail, Advice: "restart the failed primaries, or promote their replicas"}
	case info["cluster_slots_pfail"] != "0":
		return finding{Status: statusWarning, Detail: detail + ", " + info["cluster_slots_pfail"] + " possibly failing", Advice: "check which nodes cannot reach each other"}
	}
	return finding{Detail: detail}
}
