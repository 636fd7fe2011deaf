package main

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
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/names"
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
	o := d.target.sentinel
	ctx, cancel := context.WithTimeout(ctx, d.connectTime())
	defer cancel()
	var all sync.WaitGroup
	for _, addr := range o.SentinelAddrs {
		all.Go(func() {
			s := redis.NewSentinelClient(&redis.Options{
				Addr: addr, Username: o.SentinelUsername, Password: o.SentinelPassword, TLSConfig: o.TLSConfig,
				DialTimeout: o.DialTimeout, MaxRetries: -1, DialerRetries: once, ContextTimeoutEnabled: true,
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
	return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "MISCONF") || redis.HasErrorPrefix(err, "ERR unknown command")
}

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
		k, err := names.For(n.prefix, name, lua.Mutex.Kind, false)
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

// facts is what a server says of itself.
type facts struct {
	info      map[string]string // of INFO, or the part of it that HELLO tells
	infoErr   error
	config    map[string]string
	configErr error
}

func (f facts) told(name string) (string, error) { return value(f.info, f.infoErr, name) }
func (f facts) set(name string) (string, error)  { return value(f.config, f.configErr, name) }

func value(values map[string]string, err error, name string) (string, error) {
	switch v, ok := values[name]; {
	case ok:
		return v, nil
	case err != nil:
		return "", err
	}
	return "", errUntold
}

// number is a field that is a number.
func number(v string, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	i, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w a number: %q", errUntold, v)
	}
	return i, nil
}

// fields reads what INFO and CLUSTER INFO answer.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = v
		}
	}
	return m
}

// settings asks the server what it is and how it is set.
func (n *node) settings(ctx context.Context) {
	f := &n.facts
	text, err := n.client.Info(ctx).Result()
	f.info, f.infoErr = fields(text), err
	if redis.IsPermissionError(err) {
		if hello, err := n.client.Do(ctx, "hello").Result(); err == nil {
			f.hello(hello)
		}
	}
	f.config = map[string]string{}
	for _, name := range []string{"maxmemory-policy", "appendfsync", "save", "stop-writes-on-bgsave-error", "min-replicas-to-write", "timeout"} {
		// One at a time: Redis 6.2 takes but one.
		got, err := n.client.ConfigGet(ctx, name).Result()
		if err != nil {
			f.configErr = err
			break
		}
		if v, ok := got[name]; ok {
			f.config[name] = v
		}
	}
	kind := n.target.kind()
	n.add(n, "version", f.version(kind))
	n.add(n, "role", f.role(kind))
	n.add(n, "eviction", f.eviction())
	n.add(n, "memory", f.memory())
	n.add(n, "persistence", f.persistence())
	if !f.replica() {
		n.add(n, "replicas", f.replicas(kind))
	}
	n.add(n, "idle", f.idle())
}

// hello takes what HELLO tells where INFO is not allowed.
func (f *facts) hello(reply any) {
	m, _ := reply.(map[any]any)
	for from, to := range map[string]string{"version": "redis_version", "mode": "redis_mode", "role": "role"} {
		if v, ok := m[from].(string); ok {
			if v == "replica" {
				v = "slave"
			}
			f.info[to] = v
		}
	}
}

func (f facts) replica() bool { return f.info["role"] == "slave" }

// Oldest servers that have all commands, on their own and in a cluster.
var (
	oldest        = []int64{6, 2}
	oldestCluster = []int64{7, 0}
)

func (f facts) version(kind string) finding {
	v, err := f.told("redis_version")
	if err != nil {
		return missing("+info", err)
	}
	seen := "Redis " + v
	if valkey, ok := f.info["valkey_version"]; ok {
		seen = "Valkey " + valkey + ", which has the commands of Redis " + v
	}
	need := oldest
	if kind == "cluster" {
		need = oldestCluster
	}
	var have []int64
	for _, part := range strings.SplitN(v, ".", 3) {
		i, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			break
		}
		have = append(have, i)
	}
	if len(have) < 2 {
		return finding{Status: unknown, Seen: seen}
	}
	if slices.Compare(have[:2], need) < 0 {
		return finding{Status: failure, Seen: seen, Advice: fmt.Sprintf("use %d.%d or later", need[0], need[1])}
	}
	return finding{Seen: seen}
}

func (f facts) role(kind string) finding {
	switch f.info["redis_mode"] {
	case "sentinel":
		return finding{Status: failure, Seen: "this is a Sentinel", Advice: "use a redis+sentinel:// URL"}
	case "cluster":
		if kind != "cluster" {
			return finding{Status: failure, Seen: "this is a node of a cluster", Advice: "use a redis+cluster:// URL"}
		}
	}
	if f.replica() {
		seen := "this is a replica"
		if host, ok := f.info["master_host"]; ok {
			seen += " of " + host + ":" + f.info["master_port"]
		}
		return finding{Status: failure, Seen: seen, Advice: "use the URL of the primary, or one that finds it: redis+sentinel://, redis+cluster://"}
	}
	if _, err := f.told("role"); err != nil {
		return missing("+info", err)
	}
	return finding{Seen: "primary"}
}

func (f facts) eviction() finding {
	policy, err := f.told("maxmemory_policy")
	if err != nil {
		var other error
		if policy, other = f.set("maxmemory-policy"); other != nil {
			return missing("+info", err)
		}
	}
	if policy == "noeviction" {
		return finding{Seen: policy}
	}
	advice := "set maxmemory-policy noeviction"
	if limit, err := number(f.told("maxmemory")); err == nil && limit == 0 {
		return finding{Status: warning, Seen: policy + ", but no maxmemory", Advice: advice + " before a maxmemory is set: a lock that is held could be evicted"}
	}
	return finding{Status: failure, Seen: policy + ": a lock that is held can be evicted", Advice: advice}
}

func (f facts) memory() finding {
	limit, err := number(f.told("maxmemory"))
	if err != nil {
		return missing("+info", err)
	}
	used, err := number(f.told("used_memory"))
	if err != nil {
		return missing("+info", err)
	}
	if limit == 0 {
		return finding{Seen: "no maxmemory"}
	}
	share := float64(used) / float64(limit)
	r := finding{Seen: fmt.Sprintf("%.0f%% of %.1f MB are used", 100*share, float64(limit)/1e6)}
	switch {
	case share >= 1:
		r.Status, r.Advice = failure, "raise maxmemory, or delete something: new locks are refused with OOM"
	case share >= fullMemory:
		r.Status, r.Advice = warning, "raise maxmemory: when it is full, new locks are refused with OOM"
	}
	return r
}

func (f facts) persistence() finding {
	aof, err := f.told("aof_enabled")
	if err != nil {
		return missing("+info", err)
	}
	const advice = "set appendonly yes and appendfsync everysec or always"
	if aof == "1" {
		if v := f.info["aof_last_write_status"]; v != "" && v != "ok" {
			return finding{Status: failure, Seen: "the last write to the append-only file: " + v, Advice: "see the server's log and its disk: it refuses writes with MISCONF"}
		}
		fsync, err := f.set("appendfsync")
		switch {
		case err != nil:
			r := missing("+config|get", err)
			r.Seen = "append-only file; appendfsync: " + r.Seen
			return r
		case fsync == "no":
			return finding{Status: warning, Seen: "append-only file, appendfsync no: a power loss takes what the kernel had not written", Advice: advice}
		}
		return finding{Seen: "append-only file, appendfsync " + fsync}
	}
	save, err := f.set("save")
	snapshots := "snapshots: " + save
	switch {
	case err != nil:
		snapshots = "snapshots are not known"
	case save == "":
		snapshots = "no snapshots"
	}
	if v := f.info["rdb_last_bgsave_status"]; v != "" && v != "ok" && save != "" && f.config["stop-writes-on-bgsave-error"] == "yes" {
		return finding{Status: failure, Seen: "no append-only file; the last snapshot: " + v, Advice: "see the server's log and its disk: it refuses writes with MISCONF"}
	}
	return finding{Status: warning, Seen: "no append-only file, " + snapshots + ": a restart gives away locks that are held", Advice: advice}
}

func (f facts) replicas(kind string) finding {
	connected, err := number(f.told("connected_slaves"))
	if err != nil {
		return missing("+info", err)
	}
	online := int64(0)
	for i := range connected {
		if strings.Contains(f.info["slave"+strconv.FormatInt(i, 10)], "state=online") {
			online++
		}
	}
	// INFO has the field only if min-replicas-to-write and min-replicas-max-lag are set.
	good, err := number(f.told("min_slaves_good_slaves"))
	asked := err == nil
	least := int64(1) // if it is asked for, and how many is not told
	if v, err := number(f.set("min-replicas-to-write")); err == nil {
		least = v
	}
	seen := fmt.Sprintf("connected: %d, in step: %d, min-replicas-to-write: ", connected, online)
	switch {
	case !asked:
		seen += "off"
	case f.configErr != nil:
		seen += "on"
	default:
		seen += strconv.FormatInt(least, 10)
	}
	switch {
	case asked && good < least:
		return finding{Status: failure, Seen: fmt.Sprintf("%s, met by %d: writes are refused with NOREPLICAS", seen, good), Advice: "bring the replicas back, or lower min-replicas-to-write"}
	case online < connected:
		return finding{Status: warning, Seen: seen, Advice: "wait until all replicas are in step, or see their logs"}
	case connected == 0 && kind == "server":
		return finding{Seen: seen + "; nothing fails over"}
	case connected == 0:
		return finding{Status: warning, Seen: seen, Advice: "add a replica: nobody can take over from this primary"}
	case !asked:
		return finding{Status: warning, Seen: seen + ": a primary that is cut off goes on granting", Advice: "set min-replicas-to-write 1 and min-replicas-max-lag 10"}
	}
	return finding{Seen: seen}
}

func (f facts) idle() finding {
	seconds, err := number(f.set("timeout"))
	if err != nil {
		return missing("+config|get", err)
	}
	d := time.Duration(seconds) * time.Second
	switch {
	case d == 0:
		return finding{Seen: "connections are not closed for idleness"}
	case d <= lockkeeper.DefaultHeartbeat:
		return finding{Status: warning, Seen: fmt.Sprintf("timeout %d: connections are closed after %v", seconds, d), Advice: fmt.Sprintf("set timeout 0, or to more than a heartbeat (%v)", lockkeeper.DefaultHeartbeat)}
	}
	return finding{Seen: fmt.Sprintf("connections are closed after %v", d)}
}

// usedCommand is one that the library sends. A server that cannot tell of a right by ACL DRYRUN is sent the command itself:
// for names of the doctor's own, and in a form that changes nothing.
type usedCommand struct {
	args     []any
	harmless []any // nil: args are; none: it is tried elsewhere
	cluster  bool  // takes a cluster
	wake     bool  // without it waiters ask at heartbeats
}

// none is the harmless form of a command that other checks try.
var none = []any{}

// usedCommands is what docs/operations.md lists.
func usedCommands(keys *names.Keys, plain string) []usedCommand {
	key, channel, sharded := keys.Meta, plain, keys.Channels()+"doctor"
	return []usedCommand{
		{args: inspection(keys, true)},
		{args: inspection(keys, false)},
		{args: []any{"time"}},
		{args: []any{"exists", key}},
		{args: []any{"get", key}},
		{args: []any{"get", plain}},
		{args: []any{"set", key, "v", "px", "1"}, harmless: []any{"set", key, "v", "px", "x"}}, // not a number
		{args: []any{"set", plain, "v", "px", "1"}, harmless: []any{"set", plain, "v", "px", "x"}},
		{args: []any{"del", key}},
		{args: []any{"pexpire", key, "1"}},
		{args: []any{"pttl", key}},
		{args: []any{"hget", key, "f"}},
		{args: []any{"hmget", key, "f"}},
		{args: []any{"hset", key, "f", "v"}, harmless: []any{"hset", key, "f", "v", "f"}}, // without a value
		{args: []any{"hdel", key, "f"}},
		{args: []any{"zadd", key, "1", "m"}, harmless: []any{"zadd", key, "x", "m"}}, // not a number
		{args: []any{"zrem", key, "m"}},
		{args: []any{"zrange", key, "0", "0"}},
		{args: []any{"zrank", key, "m"}},
		{args: []any{"zscore", key, "m"}},
		{args: []any{"zmscore", key, "m"}},
		{args: []any{"zcard", key}},
		{args: []any{"zcount", key, "0", "1"}},
		{args: []any{"publish", channel, ""}, wake: true},
		{args: []any{"pubsub", "numsub", channel}, wake: true},
		{args: []any{"subscribe", channel}, harmless: none, wake: true},
		{args: []any{"unsubscribe", channel}, harmless: none, wake: true},
		{args: []any{"spublish", sharded, ""}, wake: true, cluster: true},
		{args: []any{"pubsub", "shardnumsub", sharded}, wake: true, cluster: true},
		{args: []any{"ssubscribe", sharded}, harmless: none, wake: true, cluster: true},
		{args: []any{"sunsubscribe", sharded}, harmless: none, wake: true, cluster: true},
		{args: []any{"ping"}},
		{args: []any{"hello"}},
		{args: []any{"cluster", "slots"}, cluster: true},
		{args: []any{"cluster", "shards"}, cluster: true},
	}
}

// rule is the ACL rule that allows the command.
func (c usedCommand) rule() string {
	if c.args[0] == "pubsub" || c.args[0] == "cluster" {
		return fmt.Sprintf("+%v|%v", c.args[0], c.args[1])
	}
	return fmt.Sprintf("+%v", c.args[0])
}

// rights looks whether the user may do what the library does.
func (n *node) rights(ctx context.Context) {
	if n.keys == nil {
		return
	}
	user := n.client.Options().Username
	if user == "" {
		user = "default"
	}
	dry, first := true, n.client.Do(ctx, "acl", "dryrun", user, "ping")
	if first.Err() != nil {
		dry = false
	}
	var lack []string
	status := fine
	plain := n.prefix + n.name
	for _, c := range usedCommands(n.keys, plain) {
		if c.cluster && n.target.cluster == nil {
			continue
		}
		var refusal string
		if dry {
			answer, err := n.client.Do(ctx, append([]any{"acl", "dryrun", user}, c.args...)...).Text()
			switch {
			case err != nil && replied(err): // the command does not exist
				refusal = err.Error()
			case err != nil:
				n.add(n, "rights", missing("+acl|dryrun", err))
				return
			case answer != "OK":
				refusal = answer
			}
		} else {
			args := c.args
			if c.harmless != nil {
				args = c.harmless
			}
			if len(args) == 0 {
				continue
			}
			err := n.client.Do(ctx, args...).Err()
			switch {
			case redis.IsPermissionError(err), redis.HasErrorPrefix(err, "ERR unknown"):
				refusal = err.Error()
			case err != nil && !errors.Is(err, redis.Nil) && !replied(err):
				n.add(n, "rights", missing("", err))
				return
			}
		}
		if refusal == "" {
			continue
		}
		rule := c.rule()
		switch {
		case strings.Contains(refusal, " key"):
			rule = "~" + n.prefix + "* ~{" + n.prefix + "*"
		case strings.Contains(refusal, " channel"):
			rule = "&" + n.prefix + "* &{" + n.prefix + "*"
		}
		if !slices.Contains(lack, rule) {
			lack = append(lack, rule)
		}
		if c.wake {
			status = max(status, warning)
		} else {
			status = failure
		}
	}
	how := "all that are needed, by ACL DRYRUN"
	if !dry {
		how = "all that are needed, by trying"
	}
	if len(lack) == 0 {
		n.add(n, "rights", finding{Seen: fmt.Sprintf("the user %q has %s", user, how)})
		return
	}
	f := finding{Status: status, Seen: fmt.Sprintf("the user %q lacks rights", user), Right: strings.Join(lack, " ")}
	f.Advice = fmt.Sprintf("ACL SETUSER %s %s", user, f.Right)
	if status == warning {
		f.Seen += "; waiters are not told, and ask at their heartbeats"
	}
	n.add(n, "rights", f)
}

// wakeups sends itself a message on a channel of its own.
func (n *node) wakeups(ctx context.Context) {
	if n.keys == nil {
		return
	}
	f, err := n.message(ctx)
	if err != nil {
		f = missing("", err)
		switch {
		case redis.IsPermissionError(err):
			f.Status, f.Seen = warning, err.Error()
			f.Right = "+publish +subscribe &" + n.prefix + "* &{" + n.prefix + "*"
			if n.target.cluster != nil {
				f.Right = "+spublish +ssubscribe &" + n.prefix + "* &{" + n.prefix + "*"
			}
			f.Advice = "give the right: waiters are not told when it is their turn, and ask at their heartbeats"
		case replied(err):
			f.Status = warning
			f.Advice = "use a server that has the command: waiters are not told when it is their turn, and ask at their heartbeats"
		}
	}
	n.add(n, "wakeups", f)
}

func (n *node) message(ctx context.Context) (finding, error) {
	var (
		sub     *redis.PubSub
		publish func(context.Context, string, any) *redis.IntCmd
		what    string
	)
	if n.target.cluster == nil {
		sub, publish, what = n.client.Subscribe(ctx, n.prefix+"wake:"+n.name), n.client.Publish, "a message"
	} else {
		sub, publish, what = n.client.SSubscribe(ctx, n.keys.Channels()+"doctor"), n.client.SPublish, "a sharded message"
	}
	defer func() { _ = sub.Close() }()
	var sent time.Time
	for {
		got, err := receive(ctx, sub)
		if err != nil {
			return finding{}, err
		}
		switch got := got.(type) {
		case *redis.Subscription:
			if got.Kind != "subscribe" && got.Kind != "ssubscribe" {
				return finding{}, fmt.Errorf("%s", got.Kind)
			}
			sent = time.Now()
			heard, err := publish(ctx, got.Channel, "doctor").Result()
			if err != nil {
				return finding{}, err
			}
			if heard == 0 {
				return finding{Status: failure, Seen: what + " reached nobody, though the server had acknowledged the subscription", Advice: "connect without the proxy that answers in the server's place"}, nil
			}
		case *redis.Message:
			took := ms(time.Since(sent))
			return finding{Seen: fmt.Sprintf("%s came after %.2f ms", what, took), Values: map[string]float64{"message_ms": took}}, nil
		}
	}
}

// receive waits for what comes next until ctx ends.
func receive(ctx context.Context, sub *redis.PubSub) (any, error) {
	end, _ := ctx.Deadline()
	left := time.Until(end)
	if left <= 0 {
		return nil, context.DeadlineExceeded
	}
	return sub.ReceiveTimeout(ctx, left)
}

// inspection is the command that runs a script which only looks.
func inspection(keys *names.Keys, byText bool) []any {
	script := lua.Mutex.Inspect
	var all []any
	for _, k := range keys.All() {
		all = append(all, k)
	}
	command := lua.InspectArgs(script.AppendCommand(nil, all...), lua.InspectHolders, 0, 1)
	if byText {
		command[0], command[1] = "eval", script.Text
	}
	return command
}

func (n *node) inspect(ctx context.Context, byText bool) error {
	return n.client.Do(ctx, inspection(n.keys, byText)...).Err()
}

// loadScripts sees whether scripts run and are kept. The cache keeps what it keeps for every client of this version.
func (n *node) loadScripts(ctx context.Context) {
	if n.keys == nil {
		return
	}
	f := finding{Status: failure, Advice: "allow EVAL and EVALSHA: every step of a lock is a script", Right: "+eval +evalsha"}
	if err := n.inspect(ctx, true); err != nil {
		f.Seen = "EVAL: " + err.Error()
		if !redis.IsPermissionError(err) {
			f.Right = ""
		}
		n.add(n, "scripts", f)
		return
	}
	if err := n.inspect(ctx, false); err != nil {
		f.Seen = "EVALSHA: " + err.Error()
		if !redis.IsPermissionError(err) {
			f.Right = ""
		}
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			f.Status, f.Seen, f.Advice = warning, "the server does not keep scripts", "end what flushes them: each step of a lock is sent twice now"
		}
		n.add(n, "scripts", f)
		return
	}
	count := 0
	for _, set := range lua.Sets {
		for _, s := range set.Scripts() {
			sha, err := n.client.ScriptLoad(ctx, s.Text).Result()
			switch {
			case redis.IsPermissionError(err): // the library does without
			case err != nil:
				n.add(n, "scripts", finding{Status: failure, Seen: s.Name + ": " + err.Error(), Advice: "use a server whose Lua is that of Redis"})
				return
			case sha != s.SHA:
				n.add(n, "scripts", finding{Status: failure, Seen: s.Name + ": the server calls it " + sha + ", not " + s.SHA, Advice: "use a server that names scripts as Redis does"})
				return
			default:
				count++
			}
		}
	}
	n.loaded = "EVALSHA works"
	if count > 0 {
		n.loaded += fmt.Sprintf(", %d scripts load", count)
	}
}

// lookForScripts sees, at the end, whether the scripts are still there.
func (n *node) lookForScripts(ctx context.Context) {
	if n.loaded == "" {
		return
	}
	err := n.inspect(ctx, false)
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		n.add(n, "scripts", finding{Status: warning, Seen: n.loaded + ", but they were flushed meanwhile", Advice: "end what calls SCRIPT FLUSH: a step of a lock is sent twice after each"})
	case err != nil:
		n.add(n, "scripts", missing("+evalsha", err))
	default:
		n.add(n, "scripts", finding{Seen: n.loaded})
	}
}

// clock compares the server's clock with this machine's.
func (n *node) clock(ctx context.Context) {
	var samples []offset
	for end := time.Now().Add(n.timeout / 10); len(samples) < clockSamples && (len(samples) < 3 || time.Now().Before(end)); {
		before := time.Now()
		server, err := n.client.Time(ctx).Result()
		if err != nil {
			n.add(n, "clock", missing("+time", err))
			return
		}
		trip := time.Since(before)
		samples = append(samples, offset{server.Sub(before.Add(trip / 2)), trip / 2})
	}
	n.add(n, "clock", judgeClock(samples))
}

// offset is by how much the server's clock is ahead, give or take.
type offset struct{ ahead, give time.Duration }

func judgeClock(samples []offset) finding {
	best := samples[0]
	low, high := best.ahead-best.give, best.ahead+best.give // where all samples agree
	first, last := best.ahead, best.ahead
	for _, s := range samples {
		if s.give < best.give {
			best = s
		}
		low, high = max(low, s.ahead-s.give), min(high, s.ahead+s.give)
		first, last = min(first, s.ahead), max(last, s.ahead)
	}
	f := finding{
		Seen: fmt.Sprintf("ahead of this machine by %.2f ms, give or take %.2f ms; spread %.2f ms", ms(best.ahead), ms(best.give), ms(last-first)),
		Values: map[string]float64{
			"offset_ms": ms(best.ahead), "give_ms": ms(best.give), "spread_ms": ms(last - first),
		},
	}
	// TIME is cut to the microsecond, and two clocks that are slewed move against each other a little.
	const slack = 2 * time.Millisecond
	switch {
	case low > high+slack:
		f.Status = warning
		f.Seen += "; one of the two clocks has jumped meanwhile"
		f.Advice = "let the clocks be slewed, not stepped: leases end by the server's"
	case best.ahead > clockApart+best.give || best.ahead < -clockApart-best.give:
		f.Status = warning
		f.Advice = "run NTP on both machines, slewing: no lock depends on the difference, but a clock that is corrected by a jump ends leases early"
	}
	return f
}

// latency measures round trips.
func (n *node) latency(ctx context.Context) {
	ping, err := n.measure(func() error { return n.client.Ping(ctx).Err() })
	if err != nil {
		n.add(n, "latency", missing("+ping", err))
		return
	}
	script := ping
	if n.loaded != "" {
		script, err = n.measure(func() error {
			err := n.inspect(ctx, false)
			if redis.HasErrorPrefix(err, "NOSCRIPT") { // the scripts' check tells of it
				return nil
			}
			return err
		})
		if err != nil {
			n.add(n, "latency", missing("+evalsha", err))
			return
		}
	}
	f := judgeLatency(ping)
	f.Seen = fmt.Sprintf("PING %.2f ms, p99 %.2f ms", ms(median(ping)), ms(p99(ping)))
	f.Values = map[string]float64{"ping_median_ms": ms(median(ping)), "ping_p99_ms": ms(p99(ping))}
	if n.loaded != "" {
		f.Seen += fmt.Sprintf("; a script %.2f ms, p99 %.2f ms", ms(median(script)), ms(p99(script)))
		f.Values["script_median_ms"], f.Values["script_p99_ms"] = ms(median(script)), ms(p99(script))
	}
	n.add(n, "latency", f)
}

// measure does something a hundred times, or as often as it can in a tenth of the timeout, and returns the times in
// order.
func (n *node) measure(do func() error) ([]time.Duration, error) {
	var list []time.Duration
	for end := time.Now().Add(n.timeout / 10); len(list) < pings && (len(list) < 3 || time.Now().Before(end)); {
		start := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		list = append(list, time.Since(start))
	}
	slices.Sort(list)
	return list, nil
}

func median(sorted []time.Duration) time.Duration { return sorted[len(sorted)/2] }
func p99(sorted []time.Duration) time.Duration    { return sorted[(len(sorted)*99-1)/100] }
func ms(d time.Duration) float64                  { return float64(d.Microseconds()) / 1000 }

func judgeLatency(ping []time.Duration) finding {
	switch {
	case p99(ping) >= lockkeeper.DefaultHeartbeat:
		return finding{Status: failure, Advice: fmt.Sprintf("find out what holds the server or the network up: heartbeats are due every %v", lockkeeper.DefaultHeartbeat)}
	case median(ping) > slowMedian:
		return finding{Status: warning, Advice: "use a server in the same region: every lock costs a round trip or two"}
	case p99(ping) > slowP99:
		return finding{Status: warning, Advice: "find out what holds the server up now and then (SLOWLOG, LATENCY, its disk)"}
	}
	return finding{}
}

// client looks at the timeouts that the URL gives a client.
func (d *doctor) client() {
	var read, dial time.Duration
	switch c := d.rdb.(type) {
	case *redis.ClusterClient:
		read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
	case *redis.Client:
		read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
	}
	if d.target.cluster != nil && dial == 0 {
		dial = 5 * time.Second // the nodes' default
	}
	d.add(nil, "client", judgeClient(read, dial))
}

func judgeClient(read, dial time.Duration) finding {
	seen := fmt.Sprintf("read_timeout %v, dial_timeout %v", read, dial)
	switch {
	case read <= 0:
		return finding{Status: warning, Seen: "no read_timeout", Advice: "set one: a server that hangs takes a connection of the pool for ever"}
	case read > longTimeout || dial > longTimeout:
		return finding{Status: warning, Seen: seen, Advice: fmt.Sprintf("set both to no more than %v: a lease of %v is renewed at a third of it, and a server that hangs leaves no time for a second attempt", longTimeout, lockkeeper.DefaultTTL)}
	}
	return finding{Seen: seen}
}

// lease takes a lock, hands it over between two keepers a few times, and gives it back.
func (d *doctor) lease(ctx context.Context, nodes []*node) {
	for _, n := range nodes {
		if f := n.facts.role(d.target.kind()); f.Status == failure {
			d.add(nil, "lease", finding{Status: unknown, Seen: "not tried: " + f.Seen})
			return
		}
	}
	times, heard, err := d.handOver(ctx)
	if err != nil {
		f := finding{Status: failure, Seen: err.Error(), Advice: "mend the errors above first"}
		if redis.IsOOMError(err) {
			f.Advice = "raise maxmemory: new locks are refused"
		}
		d.add(nil, "lease", f)
		return
	}
	slices.Sort(times)
	longest := times[len(times)-1]
	f := finding{
		Seen:   fmt.Sprintf("acquired, handed over %d times and released; a hand-off took %.2f ms, the longest %.2f ms", len(times), ms(median(times)), ms(longest)),
		Values: map[string]float64{"handoff_median_ms": ms(median(times)), "handoff_max_ms": ms(longest), "handoffs": float64(len(times)), "wakeups_heard": float64(heard)},
	}
	if heard < len(times) {
		f.Status = warning
		f.Seen += fmt.Sprintf("; only %d wake-ups were heard", heard)
		f.Advice = "see the checks wakeups and rights: who is not woken asks at its heartbeat"
	}
	d.add(nil, "lease", f)
}

// handOver returns how long each hand-off took, and how many were told by a message.
func (d *doctor) handOver(ctx context.Context) (times []time.Duration, heard int, err error) {
	waiting, woken := make(chan struct{}, 100), make(chan struct{}, 100)
	note := func(c chan struct{}) func(lockkeeper.Event) {
		return func(lockkeeper.Event) {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout/2)
	defer cancel()
	var keepers []*lockkeeper.Keeper
	var locks []*fair.Lock
	defer func() { d.tidy(keepers) }()
	for range 2 {
		k, err := d.keeper(lockkeeper.Hooks{Waiting: note(waiting), WakeupHeard: note(woken)})
		if err != nil {
			return nil, 0, err
		}
		keepers = append(keepers, k)
		l, err := fair.New(k, d.name, &fair.Options{TTL: 10 * time.Second})
		if err != nil {
			return nil, 0, err
		}
		locks = append(locks, l)
	}
	type result struct {
		lease *lockkeeper.Lease
		err   error
		at    time.Time
	}
	held, err := locks[0].Lock(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range handOffs {
		for len(waiting) > 0 { // a place that changed
			<-waiting
		}
		next := make(chan result, 1)
		go func() {
			l, err := locks[(i+1)%2].Lock(ctx)
			next <- result{l, err, time.Now()}
		}()
		select {
		case <-waiting:
		case r := <-next:
			if r.err == nil {
				r.err = errors.New("two keepers hold the lock")
			}
			return nil, 0, r.err
		}
		start := time.Now()
		if err := held.Release(ctx); err != nil {
			return nil, 0, err
		}
		r := <-next
		if r.err != nil {
			return nil, 0, r.err
		}
		held = r.lease
		times = append(times, r.at.Sub(start))
		select {
		case <-woken:
			heard++
		default:
			return times, heard, held.Release(ctx) // each further one would take a heartbeat
		}
	}
	return times, heard, held.Release(ctx)
}

// tidy closes the keepers, which gives back what they hold, and deletes the keys of the lock. What it cannot delete ends
// by itself, about a minute later.
func (d *doctor) tidy(keepers []*lockkeeper.Keeper) {
	closed := make(chan struct{})
	go func() {
		var all sync.WaitGroup
		for _, k := range keepers {
			all.Go(func() { _ = k.Close() })
		}
		all.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(d.tidyTime() / 2):
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.tidyTime()/2)
	defer cancel()
	if keys, err := names.For(d.prefix, d.name, lua.Fair.Kind, false); err == nil {
		_ = d.ask.Del(ctx, keys.All()...).Err()
	}
}
