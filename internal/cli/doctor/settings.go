package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/redis/go-redis/v9"
)

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
		// One at a time, as the client has it.
		got, err := n.client.ConfigGet(ctx, name).Result()
		if err != nil {
			f.configErr = err
			break
		}
		if v, ok := got[name]; ok {
			f.config[name] = v
		}
	}
	kind := n.target.Kind()
	n.add(n, "version", f.version())
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
	names := map[string]string{"version": "redis_version", "mode": "redis_mode", "role": "role"}
	if m["server"] == "valkey" { // with its own version, while redis_version is the one that it is compatible with
		names["version"] = "valkey_version"
	}
	for from, to := range names {
		if v, ok := m[from].(string); ok {
			f.info[to] = v
		}
	}
}

// replica says whether the server is one: INFO has another word for it than HELLO.
func (f facts) replica() bool { return f.info["role"] == "slave" || f.info["role"] == "replica" }

// mode is standalone, sentinel or cluster; Valkey has another name for the field.
func (f facts) mode() string { return cmp.Or(f.info["redis_mode"], f.info["server_mode"]) }

// oldest is the first version of Redis that has all commands, in the forms that the scripts use.
var oldest = []int64{7, 0}

func (f facts) version() finding {
	v, err := f.told("redis_version")
	seen := "Redis " + v
	if valkey, ok := f.info["valkey_version"]; ok {
		seen = "Valkey " + valkey
		if err == nil {
			seen += ", which has the commands of Redis " + v
		}
		v, err = valkey, nil // all of them have
	}
	if err != nil {
		return missing("+info", err)
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
	if slices.Compare(have[:2], oldest) < 0 {
		return finding{
			Status: failure, Seen: seen + ": whatever waits for a lock fails",
			Advice: fmt.Sprintf("use Redis %d.%d or later, or Valkey", oldest[0], oldest[1]),
		}
	}
	return finding{Seen: seen}
}

func (f facts) role(kind string) finding {
	switch f.mode() {
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
	case d <= lockkeeper.DefaultHeartbeatInterval:
		return finding{Status: warning, Seen: fmt.Sprintf("timeout %d: connections are closed after %v", seconds, d), Advice: fmt.Sprintf("set timeout 0, or to more than a heartbeat (%v)", lockkeeper.DefaultHeartbeatInterval)}
	}
	return finding{Seen: fmt.Sprintf("connections are closed after %v", d)}
}
