package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// TestCancelDuringReplicaAckReleasesGrant delays the request that waits for replicas until after the release.
func TestCancelDuringReplicaAckReleasesGrant(t *testing.T) {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	var acquires atomic.Int64
	acquires.Store(100)
	late, gone := make(chan struct{}), make(chan struct{})
	m.Server().SetPreHook(func(c *server.Peer, command string, args ...string) bool {
		if command == "EVALSHA" && args[0] == lua.Mutex.Acquire.SHA && acquires.Add(1) == 1 {
			close(late)
			<-gone
		}
		if command == "WAIT" {
			c.WriteInt(1)
			return true
		}
		return false
	})
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1}}))(t)
	defer func() { _ = rdb.Close() }()
	l := must.Get(mutex.New(k, "x", nil))(t)
	must.OK(t, must.Get(l.Lock(context.Background()))(t).Release(context.Background())) // opens connections and loads scripts
	acquires.Store(0)                                                                   // the request itself is of the fast script; acquire repeats it for the replicas
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-late
		cancel()
	}()
	if _, err := l.Lock(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); m.Exists("lock:x"); time.Sleep(time.Millisecond) { // it is released in the background
		if time.Now().After(end) {
			t.Error("the lock is held by a lease that nobody has")
			break
		}
	}
	close(gone)
	must.Report(t, k.Close()) // it waits for releases under way
	if owner, err := m.Get("lock:x"); err == nil {
		t.Errorf("the lock is held by %s for %v more, which nobody has", owner, m.TTL("lock:x"))
	}
}

// TestReplicaAckMajorityIsPerPrimary checks that on a Cluster the replicas of each primary are counted.
func TestReplicaAckMajorityIsPerPrimary(t *testing.T) {
	counts := []int{3, 1}
	var addrs []string
	for _, n := range counts {
		m := miniredis.RunT(t)
		m.ClockTTL(true)
		m.Server().SetPreHook(func(c *server.Peer, command string, args ...string) bool {
			switch {
			case command == "WAIT":
				c.WriteInt(n) // all of them
				return true
			case command == "INFO" && len(args) > 0 && args[0] == "replication":
				c.WriteBulk(fmt.Sprintf("# Replication\r\nconnected_slaves:%d\r\n", n))
				return true
			}
			return false
		})
		addrs = append(addrs, m.Addr())
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{
			{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: addrs[0]}}},
			{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: addrs[1]}}},
		}, nil
	}})
	defer func() { _ = rdb.Close() }()
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Majority: true}}))(t)
	defer func() { _ = k.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	onPrimary := func(primary int) (name string) {
		for i := 0; ; i++ {
			name = fmt.Sprint("n", i)
			node := must.Get(rdb.MasterForKey(ctx, "lock:"+name))(t)
			if strings.HasSuffix(addrs[primary], node.Options().Addr) {
				return name
			}
			if i > 200 {
				t.Fatalf("%v is none of %v", node.Options().Addr, addrs)
			}
		}
	}
	for _, primary := range []int{1, 0, 1} {
		l := must.Get(mutex.New(k, onPrimary(primary), nil))(t)
		must.OK(t, must.Get(l.TryLock(ctx))(t).Release(ctx))
	}
}
