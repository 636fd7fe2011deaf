package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// maxMemoryUse is the share of maxmemory above which a warning is given; checksHelp has it as well.
const maxMemoryUse = 0.9

// serverInfo is what a server reports about itself.
type serverInfo struct {
	info      map[string]string // fields of INFO, or those of HELLO under the names that INFO gives them
	infoErr   error
	config    map[string]string
	configErr error
}

func (s serverInfo) infoField(name string) (string, error) { return value(s.info, s.infoErr, name) }
func (s serverInfo) configValue(name string) (string, error) {
	return value(s.config, s.configErr, name)
}

func value(values map[string]string, err error, name string) (string, error) {
	switch v, ok := values[name]; {
	case ok:
		return v, nil
	case err != nil:
		return "", err
	}
	return "", errNotReported
}

// number parses a value; err is the error of reading it, which it passes on.
func number(v string, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	i, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w as a number: %q", errNotReported, v)
	}
	return i, nil
}

// infoFields parses the reply of INFO or CLUSTER INFO.
func infoFields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = v
		}
	}
	return m
}

// checkServer checks the version, the role and the configuration.
func (n *node) checkServer(ctx context.Context) {
	s := &n.server
	text, err := n.client.Info(ctx).Result()
	s.info, s.infoErr = infoFields(text), err
	if redis.IsPermissionError(err) {
		if hello, err := n.client.Do(ctx, "hello").Result(); err == nil {
			s.hello(hello)
		}
	}
	s.config = map[string]string{}
	for _, name := range []string{"maxmemory-policy", "appendfsync", "save", "stop-writes-on-bgsave-error", "min-replicas-to-write"} {
		// One at a time, because the client takes one parameter.
		got, err := n.client.ConfigGet(ctx, name).Result()
		if err != nil {
			s.configErr = err
			break
		}
		if v, ok := got[name]; ok {
			s.config[name] = v
		}
	}
	kind := n.target.Kind()
	n.add(n, "version", s.version())
	n.add(n, "role", s.role(kind))
	n.add(n, "eviction", s.eviction())
	n.add(n, "memory", s.memory())
	n.add(n, "persistence", s.persistence())
	if !s.isReplica() {
		n.add(n, "replicas", s.replicas(kind))
	}
}

// hello takes the fields from the reply of HELLO, for users who lack the permission for INFO.
func (s *serverInfo) hello(reply any) {
	m, _ := reply.(map[any]any)
	names := map[string]string{"version": "redis_version", "mode": "redis_mode", "role": "role"}
	if m["server"] == "valkey" { // its own version; redis_version is the version of Redis that it is compatible with
		names["version"] = "valkey_version"
	}
	for from, to := range names {
		if v, ok := m[from].(string); ok {
			s.info[to] = v
		}
	}
}

// isReplica reports whether the server is a replica, which INFO calls slave.
func (s serverInfo) isReplica() bool { return s.info["role"] == "slave" || s.info["role"] == "replica" }

// mode is standalone, sentinel or cluster. The field has another name in Valkey.
func (s serverInfo) mode() string { return cmp.Or(s.info["redis_mode"], s.info["server_mode"]) }

// minVersion is the first version of Redis that has all commands and options that the scripts use.
var minVersion = []int64{7, 0}

func (s serverInfo) version() finding {
	v, err := s.infoField("redis_version")
	detail := "Redis " + v
	if valkey, ok := s.info["valkey_version"]; ok {
		detail = "Valkey " + valkey
		if err == nil {
			detail += ", compatible with Redis " + v
		}
		v, err = valkey, nil // all versions of Valkey are supported
	}
	if err != nil {
		return unavailable("+info", err)
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
		return finding{Status: statusUnknown, Detail: detail}
	}
	if slices.Compare(have[:2], minVersion) < 0 {
		return finding{
			Status: statusError, Detail: detail + ": waiting for a lock fails",
			Advice: fmt.Sprintf("use Redis %d.%d or later, or Valkey", minVersion[0], minVersion[1]),
		}
	}
	return finding{Detail: detail}
}

func (s serverInfo) role(kind string) finding {
	switch s.mode() {
	case "sentinel":
		return finding{Status: statusError, Detail: "this is a Sentinel", Advice: "use a redis+sentinel:// URL"}
	case "cluster":
		if kind != "cluster" {
			return finding{Status: statusError, Detail: "this is a node of a cluster", Advice: "use a redis+cluster:// URL"}
		}
	}
	if s.isReplica() {
		detail := "this is a replica"
		if host, ok := s.info["master_host"]; ok {
			detail += " of " + host + ":" + s.info["master_port"]
		}
		return finding{Status: statusError, Detail: detail, Advice: "use the URL of the primary, or one that finds the primary: redis+sentinel:// or redis+cluster://"}
	}
	if _, err := s.infoField("role"); err != nil {
		return unavailable("+info", err)
	}
	return finding{Detail: "primary"}
}

func (s serverInfo) eviction() finding {
	policy, err := s.infoField("maxmemory_policy")
	if err != nil {
		var other error
		if policy, other = s.configValue("maxmemory-policy"); other != nil {
			return unavailable("+info", err)
		}
	}
	if policy == "noeviction" {
		return finding{Detail: policy}
	}
	advice := "set maxmemory-policy noeviction"
	if limit, err := number(s.infoField("maxmemory")); err == nil && limit == 0 {
		return finding{Status: statusWarning, Detail: policy + ", but no maxmemory", Advice: advice + " before maxmemory is set: a held lock could be evicted"}
	}
	return finding{Status: statusError, Detail: policy + ": a held lock can be evicted", Advice: advice}
}

func (s serverInfo) memory() finding {
	limit, err := number(s.infoField("maxmemory"))
	if err != nil {
		return unavailable("+info", err)
	}
	used, err := number(s.infoField("used_memory"))
	if err != nil {
		return unavailable("+info", err)
	}
	if limit == 0 {
		return finding{Detail: "no maxmemory"}
	}
	share := float64(used) / float64(limit)
	r := finding{Detail: fmt.Sprintf("%.0f%% of %.1f MB used", 100*share, float64(limit)/1e6)}
	switch {
	case share >= 1:
		r.Status, r.Advice = statusError, "raise maxmemory, or delete data: new locks are refused with OOM"
	case share >= maxMemoryUse:
		r.Status, r.Advice = statusWarning, "raise maxmemory: new locks are refused with OOM when the memory is full"
	}
	return r
}

func (s serverInfo) persistence() finding {
	aof, err := s.infoField("aof_enabled")
	if err != nil {
		return unavailable("+info", err)
	}
	const advice = "set appendonly yes and appendfsync everysec or always"
	if aof == "1" {
		if v := s.info["aof_last_write_status"]; v != "" && v != "ok" {
			return finding{Status: statusError, Detail: "append-only file; status of its last write: " + v, Advice: "check the log and the disk of the server: it refuses writes with MISCONF"}
		}
		fsync, err := s.configValue("appendfsync")
		switch {
		case err != nil:
			r := unavailable("+config|get", err)
			r.Detail = "append-only file; appendfsync: " + r.Detail
			return r
		case fsync == "no":
			return finding{Status: statusWarning, Detail: "append-only file, appendfsync no: a power loss loses all writes that the kernel has not flushed", Advice: advice}
		}
		return finding{Detail: "append-only file, appendfsync " + fsync}
	}
	save, err := s.configValue("save")
	snapshots := "snapshots: " + save
	switch {
	case err != nil:
		snapshots = "snapshots unknown"
	case save == "":
		snapshots = "no snapshots"
	}
	if v := s.info["rdb_last_bgsave_status"]; v != "" && v != "ok" && save != "" && s.config["stop-writes-on-bgsave-error"] == "yes" {
		return finding{Status: statusError, Detail: "no append-only file; status of the last snapshot: " + v, Advice: "check the log and the disk of the server: it refuses writes with MISCONF"}
	}
	return finding{Status: statusWarning, Detail: "no append-only file, " + snapshots + ": a restart loses held locks, which others can then acquire", Advice: advice}
}

func (s serverInfo) replicas(kind string) finding {
	connected, err := number(s.infoField("connected_slaves"))
	if err != nil {
		return unavailable("+info", err)
	}
	online := int64(0)
	for i := range connected {
		if strings.Contains(s.info["slave"+strconv.FormatInt(i, 10)], "state=online") {
			online++
		}
	}
	// INFO has this field only if min-replicas-to-write and min-replicas-max-lag are set.
	good, err := number(s.infoField("min_slaves_good_slaves"))
	enforced := err == nil
	required := int64(1) // if replicas are required, and their number is not reported
	if v, err := number(s.configValue("min-replicas-to-write")); err == nil {
		required = v
	}
	detail := fmt.Sprintf("connected: %d, online: %d, min-replicas-to-write: ", connected, online)
	switch {
	case !enforced:
		detail += "off"
	case s.configErr != nil:
		detail += "on"
	default:
		detail += strconv.FormatInt(required, 10)
	}
	switch {
	case enforced && good < required:
		return finding{Status: statusError, Detail: fmt.Sprintf("%s, satisfied by %d: writes are refused with NOREPLICAS", detail, good), Advice: "restart the missing replicas, or lower min-replicas-to-write"}
	case online < connected:
		return finding{Status: statusWarning, Detail: detail, Advice: "wait until all replicas are online, or check their logs"}
	case connected == 0 && kind == "server":
		return finding{Detail: detail + "; there is no failover"}
	case connected == 0:
		return finding{Status: statusWarning, Detail: detail, Advice: "add a replica: without one there is no failover from this primary"}
	case !enforced:
		return finding{Status: statusWarning, Detail: detail + ": a primary that is partitioned from its replicas continues to grant locks", Advice: "set min-replicas-to-write 1 and min-replicas-max-lag 10"}
	}
	return finding{Detail: detail}
}
