package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// shareKey lets keepers contend for a mutex for some time, beside a client of another library, which asks for the same key by SET NX PX
// after 50 to 150 ms each time. It returns how many turns each side had.
func shareKey(t *testing.T, keepers int, o *mutex.Options) (ours, theirs int) {
	synctest.Test(t, func(t *testing.T) {
		const held = 20 * time.Millisecond
		s := lockkeepertest.New(t)
		ctx := must.Within(t, 6*time.Second)
		var holder sync.Mutex
		turn := func(n *int) {
			if !holder.TryLock() {
				t.Error("two holders")
				return
			}
			defer holder.Unlock()
			*n++
			time.Sleep(held)
		}
		var all sync.WaitGroup
		for range keepers {
			m := must.Get(mutex.New(s.Keeper(t, &lockkeeper.Options{HeartbeatInterval: 100 * time.Millisecond}), "shared", o))(t)
			all.Go(func() {
				for {
					lease, err := m.Lock(ctx)
					if err != nil {
						return
					}
					turn(&ours)
					must.Report(t, lease.Release(t.Context()))
				}
			})
		}
		client := s.Client(t)
		all.Go(func() {
			delays := rand.New(rand.NewPCG(1, 2))
			for ctx.Err() == nil {
				time.Sleep(50*time.Millisecond + time.Duration(delays.Int64N(int64(100*time.Millisecond)))) // as redsync does
				if err := client.SetArgs(ctx, "lock:shared", "theirs", redis.SetArgs{Mode: "NX", TTL: time.Minute}).Err(); err == nil {
					turn(&theirs)
					must.Report(t, client.Del(t.Context(), "lock:shared").Err())
				}
			}
		})
		all.Wait()
	})
	return ours, theirs
}

// TestYieldLetsOtherLibrariesIn: without the option a client that asks now and then never finds the key free.
func TestYieldLetsOtherLibrariesIn(t *testing.T) {
	for _, keepers := range []int{1, 3} {
		ours, theirs := shareKey(t, keepers, nil)
		check.That(t, theirs <= 1,
			"%d keepers: the other library had %d turns without Yield, so this test shows nothing", keepers, theirs)
		withYield, others := shareKey(t, keepers, &mutex.Options{Yield: 150 * time.Millisecond})
		check.That(t, others >= 4 && withYield >= ours/2,
			"%d keepers: %d and %d turns in 6 s with Yield, %d and %d without", keepers, withYield, others, ours, theirs)
	}
}

func TestKeyIsLeftFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const yield = 100 * time.Millisecond
		s := lockkeepertest.New(t)
		yields := must.Get(mutex.New(s.Keeper(t, nil), "x", &mutex.Options{Yield: yield}))(t)
		other := must.Get(mutex.New(s.Keeper(t, nil), "x", nil))(t)
		// after returns how long it takes until the mutex is granted to another keeper, which waits already or comes then.
		after := func(waits bool) time.Duration {
			lease := must.Get(yields.Lock(t.Context()))(t)
			granted := make(chan time.Time, 1)
			lock := func() {
				lease, err := other.Lock(t.Context())
				must.Report(t, err)
				at := time.Now()
				must.Report(t, lease.Release(t.Context()))
				granted <- at
			}
			if waits {
				go lock()
				synctest.Wait()
			}
			released := time.Now()
			must.OK(t, lease.Release(t.Context()))
			if !waits {
				go lock()
			}
			return (<-granted).Sub(released)
		}
		for _, waits := range []bool{true, false} {
			if d := after(waits); d < yield || d > yield+5*time.Millisecond {
				t.Errorf("waits %t: granted after %v", waits, d)
			}
			if d := after(waits); d > 5*time.Millisecond {
				t.Errorf("waits %t: left free again, for %v", waits, d)
			}
			time.Sleep(9 * yield)
		}
		must.OK(t, must.Get(yields.Lock(t.Context()))(t).Release(t.Context()))
		check.Is(t, check.ErrorOf(other.TryLock(t.Context())), lockkeeper.ErrNotAcquired, "the error")
		time.Sleep(yield)
		must.OK(t, must.Get(other.TryLock(t.Context()))(t).Release(t.Context()))
	})
}

func TestInvalidYieldIsRefused(t *testing.T) {
	k := lockkeepertest.New(t).Keeper(t, nil)
	for says, o := range map[string]mutex.Options{
		"Yield 1µs":  {Yield: time.Microsecond},
		"Yield -1s":  {Yield: -time.Second},
		"Yield 1m0s": {Yield: time.Minute},
	} {
		_, err := mutex.New(k, "x", &o)
		check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says), "%v instead of %s", err, says)
	}
}

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
	// Opens connections and loads scripts.
	must.OK(t, must.Get(l.Lock(context.Background()))(t).Release(context.Background()))
	acquires.Store(0) // the request itself is of the fast script; acquire repeats it for the replicas
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
	ctx := must.Within(t, 20*time.Second)
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
