package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// countsReplicas waits until so many replicas of a primary count for min-replicas-to-write.
func countsReplicas(t *testing.T, primary *redistest.Server, want string) {
	t.Helper()
	rdb := primary.Client()
	eventually(t, "replicas that count: "+want, func() bool {
		return rdb.InfoMap(ctx, "replication").Item("Replication", "min_slaves_good_slaves") == want
	})
}

func TestDoctorChecksReplicas(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t, "--repl-ping-replica-period", "1", "--min-replicas-max-lag", "1")
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(s.Port))
	eventually(t, "the replica is online", func() bool {
		return strings.Contains(s.Client().Info(ctx, "replication").Val(), "state=online")
	})
	r := examine(t, 1, url)
	r.wantAllOKExcept("replicas")
	r.want("replicas", "warning", "continues to grant", "min-replicas-to-write 1")
	set(t, s, "min-replicas-to-write", "1")
	countsReplicas(t, s, "1")
	examine(t, 0, url).want("replicas", "ok", "min-replicas-to-write: 1")

	r = examine(t, 2, "redis://"+replica.Addr)
	r.want("role", "error", fmt.Sprintf("a replica of 127.0.0.1:%d", s.Port), "primary")
	r.want("lock", "unknown", "replica")

	replica.Freeze()
	countsReplicas(t, s, "0")
	examine(t, 2, url, "--timeout", "3s").want("replicas", "error", "NOREPLICAS")
	wantNoKeys(t, s.Client())
}

func TestDoctorOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	var all []redistest.Client
	for i, p := range c.Primaries {
		all = append(all, p.Client(), c.Replicas[i][0].Client())
		set(t, p, "appendonly", "yes")
		set(t, p, "min-replicas-to-write", "1")
	}
	for _, p := range c.Primaries {
		countsReplicas(t, p, "1")
	}
	url := "redis+cluster://" + c.Primaries[0].Addr + "?addr=" + c.Primaries[1].Addr
	r := examine(t, 0, url)
	r.wantAllOKExcept()
	r.want("cluster", "ok", "16384 of 16384")
	r.want("pubsub", "ok", "sharded")
	wantNoKeys(t, all...)
	if f := r.want("eviction", "ok"); len(f.Nodes) != 3 { // equal findings of the three primaries are merged
		t.Errorf("the finding of eviction is about %q", f.Nodes)
	}
	examine(t, 0, url, "--prefix", "app:{x}:").wantAllOKExcept() // all its keys are in one slot

	set(t, c.Primaries[1], "maxmemory-policy", "allkeys-lru")
	set(t, c.Primaries[2], "min-replicas-to-write", "0")
	do(t, c.Primaries[2], "acl", "setuser", "default", "-ssubscribe")
	r = examine(t, 1, url)
	r.want("eviction", "ok")
	if f := r.want("eviction", "warning"); !slices.Equal(f.Nodes, []string{c.Primaries[1].Addr}) {
		t.Errorf("the warning of eviction is about %q", f.Nodes)
	}
	r.want("replicas", "warning")
	r.want("permissions", "warning", "+ssubscribe")
	r.want("pubsub", "warning", "+ssubscribe")

	examine(t, 2, "redis://"+c.Primaries[0].Addr).want("role", "error", "redis+cluster://")
	oneNode(t, c)
	do(t, c.Primaries[0], "cluster", "delslots", 0)
	examine(t, 2, url, "--timeout", "5s").want("cluster", "error", "16383 of 16384")
	_, single := goodServer(t)
	examine(t, 69, strings.Replace(single, "redis://", "redis+cluster://", 1)).want("connection", "error", "redis:// URL")
}

// oneNode checks what commands say at a node of a cluster that is used as a single server.
func oneNode(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	rdb := c.Client()
	defer rdb.Close()
	url := "redis://" + c.Primaries[0].Addr
	here, there := "", ""
	for i := 0; here == "" || there == ""; i++ {
		name := "x" + strconv.Itoa(i)
		node, err := rdb.MasterForKey(ctx, "lock:"+name)
		must.OK(t, err)
		if node.Options().Addr == c.Primaries[0].Addr {
			here = name
		} else {
			there = name
		}
	}
	const advice = "redis+cluster://"
	for _, args := range [][]string{
		{"run", "--redis", url, there, "--", "true"}, {"run", "--try", "--redis", url, there, "--", "true"},
		{"run", "--once-per", "1h", "--redis", url, there, "--", "true"}, {"show", "--redis", url, there}, {"wait", "--redis", url, there},
		{"break", "--redis", url, there, "--all", "--yes", "--reason", "x"},
	} {
		began := time.Now()
		command(t, args...).ends(exit.Unreachable, "MOVED", "use a redis.ClusterClient", advice)
		took := time.Since(began)
		check.That(t, took < 9*time.Second, "%s took %v, and retries of a Lock end after 10s", args[0], took)
	}
	command(t, "run", "--redis", url, here, "--", "true").ends(0)
	command(t, "ls", "--redis", url).ends(0, "only its locks are listed", advice)
	command(t, "ls", "--json", "--redis", url).ends(0, "only its locks are listed", advice)
	command(t, "top", "--once", "--redis", url).ends(0).prints("only its locks are listed", advice)
	command(t, "top", "--once", "--json", "--redis", url).ends(0, "only its locks are listed", advice)
	all := command(t, "ls", "--redis", "redis+cluster://"+c.Primaries[0].Addr).ends(0)
	check.That(t, all.err.Len() == 0, "ls of a cluster says %s", &all.err)
}

func TestDoctorOnSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1)
	set(t, s.Primary, "appendonly", "yes")
	set(t, s.Primary, "min-replicas-to-write", "1")
	countsReplicas(t, s.Primary, "1")
	url := "redis+sentinel://" + s.Addrs[0] + "?addr=" + s.Addrs[1] + "&addr=" + s.Addrs[2] + "&master_name="
	r := examine(t, 0, url+"main")
	r.wantAllOKExcept()
	r.want("sentinel", "ok", "quorum", s.Primary.Addr)
	wantNoKeys(t, s.Primary.Client())
	examine(t, 1, url+"main&addr=127.0.0.1:1").want("sentinel", "warning", "refused")
	examine(t, 69, url+"other", "--timeout", "3s").want("sentinel", "error", `"other"`, "master_name")
	examine(t, 2, "redis://"+s.Addrs[0], "--timeout", "3s").want("role", "error", "redis+sentinel://")
	command(t, "run", "--redis", url+"main", "x", "--", "true").ends(0)
	command(t, "run", "--redis", url+"other", "--wait", "1s", "x", "--", "true").ends(exit.Unreachable, "correct master_name")
	for _, addr := range s.Addrs[1:] {
		w := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		_ = w.Do(ctx, "shutdown", "nosave").Err() // the server closes the connection without a reply
		_ = w.Close()
	}
	eventually(t, "the sentinels have no quorum", func() bool {
		w := redis.NewSentinelClient(&redis.Options{Addr: s.Addrs[0]})
		defer func() { _ = w.Close() }()
		return redis.HasErrorPrefix(w.CkQuorum(ctx, "main").Err(), "NOQUORUM")
	})
	examine(t, 2, url+"main").want("sentinel", "error", "NOQUORUM")
}
