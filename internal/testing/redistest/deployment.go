package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sentinel is a primary with replicas and three sentinels that watch it under the name "main".
type Sentinel struct {
	Primary  *Server
	Replicas []*Server
	Addrs    []string // of the sentinels
	t        TB
}

// StartSentinel starts a primary, replicas and three sentinels, which fail over a second after the primary fails.
func StartSentinel(t TB, replicas int) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t, Primary: Start(t)}
	for range replicas {
		s.Replicas = append(s.Replicas, StartReplica(t, s.Primary))
	}
	for range 3 {
		port, dir := FreePort(t), t.TempDir()
		conf := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %d 2\n"+
			"sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n", port, dir, s.Primary.Port)
		must(t, os.WriteFile(conf, []byte(text), 0o600))
		w := &Server{t: t, Port: port, Addr: "127.0.0.1:" + strconv.Itoa(port), Dir: dir}
		w.launch(conf, "--sentinel")
		t.Cleanup(w.Kill)
		// By default a sentinel asks a server for its role every 10 s only. Redis 7 and later let that be set.
		w.Await("PONG", func(ctx context.Context, c Client) (string, error) {
			_ = c.Do(ctx, "sentinel", "debug", "info-period", 200, "publish-period", 500).Err()
			return c.Ping(ctx).Result()
		})
		s.Addrs = append(s.Addrs, w.Addr)
	}
	for _, addr := range s.Addrs {
		w := &Server{t: t, Addr: addr, done: make(chan struct{})}
		w.Await("2 "+strconv.Itoa(replicas), func(ctx context.Context, c Client) (string, error) {
			cmd := redis.NewMapStringStringCmd(ctx, "sentinel", "master", "main")
			_ = c.Process(ctx, cmd)
			fields, err := cmd.Result()
			return fields["num-other-sentinels"] + " " + fields["num-slaves"], err
		})
	}
	return s
}

// StartReplica starts a replica of a server and returns when it is in sync.
func StartReplica(t TB, of *Server) *Server {
	t.Helper()
	r := Start(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(of.Port))
	r.awaitSync()
	return r
}

func (s *Server) awaitSync() {
	s.t.Helper()
	s.Await("up", func(ctx context.Context, c Client) (string, error) {
		return field(c.Info(ctx, "replication").Result())("master_link_status")
	})
}

// Client returns a client that follows the sentinels. It is closed with the test.
func (s *Sentinel) Client() *redis.Client {
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: s.Addrs})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// ClusterClient returns a client of the other kind, which also reads from replicas.
func (s *Sentinel) ClusterClient() *redis.ClusterClient {
	c := redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: s.Addrs})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Cluster is a Redis Cluster.
type Cluster struct {
	Primaries []*Server
	Replicas  [][]*Server // of each primary
	t         TB
}

// StartCluster starts a cluster with evenly distributed slots that fails over after a second.
func StartCluster(t TB, primaries, replicas int) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Replicas: make([][]*Server, primaries)}
	node := func() *Server {
		return Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-port", strconv.Itoa(FreePort(t)), "--cluster-replica-validity-factor", "0")
	}
	ctx := context.Background()
	var all []*Server
	for i := range primaries {
		p := node()
		get(t, p.Client().ClusterAddSlotsRange(ctx, i*16384/primaries, (i+1)*16384/primaries-1))
		get(t, p.Client().Do(ctx, "cluster", "set-config-epoch", i+1))
		c.Primaries = append(c.Primaries, p)
		all = append(all, p)
	}
	for i := range primaries {
		for range replicas {
			r := node()
			c.Replicas[i] = append(c.Replicas[i], r)
			all = append(all, r)
		}
	}
	bus := func(s *Server) string { return s.args[slices.Index(s.args, "--cluster-port")+1] }
	for _, s := range all[1:] {
		get(t, s.Client().Do(ctx, "cluster", "meet", "127.0.0.1", all[0].Port, bus(all[0])))
	}
	awaitAll := func(name, want string) { // a field of CLUSTER INFO
		for _, s := range all {
			s.Await(want, func(ctx context.Context, c Client) (string, error) {
				return field(c.ClusterInfo(ctx).Result())(name)
			})
		}
	}
	awaitAll("cluster_known_nodes", strconv.Itoa(len(all)))
	for i, p := range c.Primaries {
		id := p.id()
		for _, r := range c.Replicas[i] {
			r.Await("OK", func(ctx context.Context, c Client) (string, error) {
				return c.ClusterReplicate(ctx, id).Result()
			})
			r.awaitSync()
		}
	}
	awaitAll("cluster_state", "ok")
	return c
}

// Addrs returns the addresses of the primaries.
func (c *Cluster) Addrs() []string {
	var list []string
	for _, p := range c.Primaries {
		list = append(list, p.Addr)
	}
	return list
}

// Client returns a client of the cluster. It is closed with the test.
func (c *Cluster) Client() *redis.ClusterClient {
	k := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	c.t.Cleanup(func() { _ = k.Close() })
	return k
}

// MoveSlot migrates the slot of a key, with all keys in it, to another primary, as resharding does, and returns
// that primary. It calls the first of meanwhile when the migration has begun and no key has moved yet, and the
// second when half of the keys have moved.
func (c *Cluster) MoveSlot(key string, meanwhile ...func()) *Server {
	c.t.Helper()
	ctx := context.Background()
	slot := get(c.t, c.Primaries[0].Client().ClusterKeySlot(ctx, key))
	// The target claims the slot with an epoch above all that it knows of. If an earlier migration is not known on
	// all primaries yet, that epoch may be too low, and in the end no primary would own the slot.
	for _, p := range c.Primaries {
		p.Await("agreed", func(ctx context.Context, k Client) (string, error) {
			epoch, err := field(k.ClusterInfo(ctx).Result())("cluster_current_epoch")
			for _, q := range c.Primaries {
				if e, err := field(q.Client().ClusterInfo(ctx).Result())("cluster_current_epoch"); err != nil || e != epoch {
					return e + " and " + epoch, err
				}
			}
			return "agreed", err
		})
	}
	i := slices.IndexFunc(c.Primaries, func(p *Server) bool { return p.owns(slot) })
	if i < 0 {
		c.t.Fatalf("no primary owns the slot of %q", key)
	}
	from := c.Primaries[i]
	to := c.Primaries[0]
	if from == to {
		to = c.Primaries[1]
	}
	source, target := from.Client(), to.Client()
	get(c.t, target.Do(ctx, "cluster", "setslot", slot, "importing", from.id()))
	get(c.t, source.Do(ctx, "cluster", "setslot", slot, "migrating", to.id()))
	next := func() {
		if len(meanwhile) > 0 {
			meanwhile[0]()
			meanwhile = meanwhile[1:]
		}
	}
	next()
	for {
		keys := get(c.t, source.ClusterGetKeysInSlot(ctx, int(slot), 100))
		if len(keys) == 0 {
			break
		}
		if len(meanwhile) > 0 {
			keys = keys[:len(keys)/2]
		}
		for _, k := range keys {
			get(c.t, source.Migrate(ctx, "127.0.0.1", strconv.Itoa(to.Port), k, 0, 5*time.Second))
		}
		next()
	}
	for _, s := range []*Server{to, from} {
		get(c.t, s.Client().Do(ctx, "cluster", "setslot", slot, "node", to.id()))
	}
	return to
}

// get returns the reply to a command.
func get[T any](t TB, cmd interface{ Result() (T, error) }) T {
	t.Helper()
	v, err := cmd.Result()
	must(t, err)
	return v
}

// id returns the server's name in its cluster.
func (s *Server) id() string {
	return get(s.t, s.Client().Do(context.Background(), "cluster", "myid")).(string)
}

// owns reports whether the server considers itself the primary of a slot.
func (s *Server) owns(slot int64) bool {
	id := s.id()
	return slices.ContainsFunc(get(s.t, s.Client().ClusterShards(context.Background())), func(shard redis.ClusterShard) bool {
		return slices.ContainsFunc(shard.Nodes, func(n redis.Node) bool { return n.ID == id }) &&
			slices.ContainsFunc(shard.Slots, func(r redis.SlotRange) bool { return r.Start <= slot && slot <= r.End })
	})
}

// field returns a function that picks a field from the reply to INFO or CLUSTER INFO.
func field(info string, err error) func(name string) (string, error) {
	return func(name string) (string, error) {
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
				return v, err
			}
		}
		return "", err
	}
}
