package lockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// connect returns a client, here of a server within the process.
func connect() (rdb *redis.Client, disconnect func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	server.ClockTTL(true) // leases end
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

// One keeper per process, a mutex per name, and the work in a function.
func Example() {
	ctx := context.Background()
	rdb, disconnect := connect()
	defer disconnect()

	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()

	m, err := mutex.New(k, "orders:42", nil)
	if err != nil {
		log.Fatal(err)
	}
	err = m.Do(ctx, func(ctx context.Context, fence uint64) error {
		fmt.Println("nobody else works on order 42")
		return nil
	})
	fmt.Println(err)
	// Output:
	// nobody else works on order 42
	// <nil>
}

// The work gets a context that ends with the lease, and says why.
func ExampleLease_Context() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "report", &mutex.Options{TTL: 20 * time.Millisecond, NoRenewal: true})

	lease, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	work := lease.Context(ctx)
	<-work.Done() // the work takes longer than the lease lasts
	fmt.Println(work.Err())
	fmt.Println(errors.Is(context.Cause(work), lockkeeper.ErrLost))
	// Output:
	// context canceled
	// true
}

// A store that remembers the largest fence refuses a holder that has not noticed its loss yet.
func ExampleLease_Fence() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "ledger", &mutex.Options{TTL: 20 * time.Millisecond, NoRenewal: true})

	var largest uint64
	write := func(text string, fence uint64) {
		if fence < largest {
			fmt.Println("refused:", text)
			return
		}
		largest = fence
		fmt.Println("written:", text)
	}

	first, _ := m.Lock(ctx)
	<-first.Done() // it is lost
	second, _ := m.Lock(ctx)
	write("by the second holder", second.Fence())
	write("by the first holder", first.Fence())
	// Output:
	// written: by the second holder
	// refused: by the first holder
}

// Hooks feed metrics: here, how many acquisitions succeeded and how many leases were lost.
func ExampleHooks() {
	ctx := context.Background()
	rdb, disconnect := connect()
	defer disconnect()

	var acquired, refused, lost atomic.Int64
	k, _ := lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.Hooks{
		AcquireDone: func(e lockkeeper.Event) {
			if e.Err != nil {
				refused.Add(1)
			} else {
				acquired.Add(1)
			}
		},
		Lost: func(lockkeeper.Event) { lost.Add(1) },
	}})
	defer k.Close()
	m, _ := mutex.New(k, "orders:42", nil)

	lease, _ := m.TryLock(ctx)
	_, _ = m.TryLock(ctx)
	_ = lease.Release(ctx)
	fmt.Println(acquired.Load(), "acquired,", refused.Load(), "refused,", lost.Load(), "lost")
	// Output:
	// 1 acquired, 1 refused, 0 lost
}

// Transfer between two accounts, each with a lock of its own: the order of the arguments does not matter.
func ExampleLockAll() {
	k, end := example.Keeper()
	defer end()
	ctx := context.Background()
	from, _ := mutex.New(k, "account:7", nil)
	to, _ := mutex.New(k, "account:3", nil)

	leases, err := lockkeeper.LockAll(ctx, from, to)
	if err != nil {
		log.Fatal(err)
	}
	defer leases.Release(ctx)
	work := leases.Context(ctx) // ends when one of the locks is lost
	fmt.Println(work.Err(), leases.Of(from).Fence() > 0, leases.Of(to).Fence() > 0)
	// Output: <nil> true true
}

// Code that a lock protects finds its lease in its context.
func ExampleLeaseFromContext() {
	k, end := example.Keeper()
	defer end()
	save := func(ctx context.Context) error {
		lease := lockkeeper.LeaseFromContext(ctx)
		fmt.Println("saving under", lease.Name(), "with a fence:", lease.Fence() > 0)
		return lease.Err() // nil while the lock is held
	}
	m, _ := mutex.New(k, "orders:42", nil)
	err := m.Do(context.Background(), func(ctx context.Context, _ uint64) error { return save(ctx) })
	fmt.Println(err)
	// Output:
	// saving under orders:42 with a fence: true
	// <nil>
}

// A keeper takes a client of any kind: of a single server, of Sentinel, or of a Cluster.
func ExampleNew() {
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer single.Close()
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"10.0.0.1:26379", "10.0.0.2:26379"}})
	defer sentinel.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.1.1:6379", "10.0.1.2:6379"}})
	defer cluster.Close()

	for _, rdb := range []redis.UniversalClient{single, sentinel, cluster} {
		k, err := lockkeeper.New(rdb, nil) // connects when a lock is first used
		if err != nil {
			log.Fatal(err)
		}
		defer k.Close() // before the client, which it needs
	}
}

// Options of a keeper: a label that people see, a limit for outages, and two replicas that must have each grant.
func ExampleOptions() {
	rdb, disconnect := connect()
	defer disconnect()
	k, _ := lockkeeper.New(rdb, &lockkeeper.Options{
		Prefix:     "billing:",
		Owner:      "invoiced on web-1",
		LongWait:   time.Minute, // logs who holds a lock that is waited for longer than this
		Retry:      lockkeeper.RetryPolicy{MaxElapsed: 5 * time.Second},
		ReplicaAck: lockkeeper.ReplicaAck{Replicas: 2, Timeout: 200 * time.Millisecond},
	})
	fmt.Println(k.Close())

	_, err := lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatInterval: time.Millisecond})
	fmt.Println("out of range:", errors.Is(err, lockkeeper.ErrInvalid))
	// Output:
	// <nil>
	// out of range: true
}

// A refusal and an outage are different errors.
func Example_errors() {
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "orders:42", nil)
	holder, _ := m.Lock(context.Background())
	defer holder.Release(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := m.Lock(ctx)
	switch {
	case errors.Is(err, lockkeeper.ErrNotAcquired):
		fmt.Println("held elsewhere for 50 ms:", errors.Is(err, context.DeadlineExceeded))
	case errors.Is(err, lockkeeper.ErrUnavailable):
		fmt.Println("Redis does not answer:", err)
	case err != nil:
		fmt.Println("requires intervention:", err)
	}
	// Output:
	// held elsewhere for 50 ms: true
}

// Without renewal, a step that hangs loses the lock: each step extends the lease.
func ExampleLease_Extend() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "import", &mutex.Options{TTL: time.Minute, NoRenewal: true})

	lease, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	for range 3 {
		// A step of the work is here.
		if err := lease.Extend(ctx, time.Minute); err != nil {
			log.Fatal(err) // ErrLost: stop working
		}
	}
	fmt.Println("a minute from now:", time.Until(lease.Deadline()).Round(10*time.Second))
	// Output:
	// a minute from now: 1m0s
}

// TryLockAll does not wait: it acquires all locks or none.
func ExampleTryLockAll() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	from, _ := mutex.New(k, "account:7", nil)
	to, _ := mutex.New(k, "account:3", nil)

	held, _ := to.Lock(ctx)
	_, err := lockkeeper.TryLockAll(ctx, from, to)
	fmt.Println("held elsewhere:", errors.Is(err, lockkeeper.ErrNotAcquired))
	_ = held.Release(ctx)
	leases, err := lockkeeper.TryLockAll(ctx, from, to)
	fmt.Println(len(leases.All()), err)
	fmt.Println(leases.Release(ctx))
	// Output:
	// held elsewhere: true
	// 2 <nil>
	// <nil>
}
