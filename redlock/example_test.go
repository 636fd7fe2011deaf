package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

// newKeepers returns a keeper for each of three servers, here within the process.
func newKeepers() (keepers []*lockkeeper.Keeper, servers []*miniredis.Miniredis, end func()) {
	var ends []func()
	for range 3 {
		server, err := miniredis.Run()
		if err != nil {
			log.Fatal(err)
		}
		server.ClockTTL(true) // leases end
		// With one attempt to connect, instead of five, a server that is down is noticed at once.
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), DialerRetries: 1})
		k, err := lockkeeper.New(rdb, nil)
		if err != nil {
			log.Fatal(err)
		}
		keepers, servers = append(keepers, k), append(servers, server)
		ends = append(ends, func() {
			_ = k.Close()
			_ = rdb.Close()
			server.Close()
		})
	}
	return keepers, servers, func() {
		for _, f := range ends {
			f()
		}
	}
}

// The lock works while one server of three is down.
func ExampleLock_Do() {
	keepers, servers, end := newKeepers()
	defer end()
	l, err := redlock.New(keepers, "orders:42", nil)
	if err != nil {
		log.Fatal(err)
	}
	servers[1].Close()
	err = l.Do(context.Background(), func(ctx context.Context, fence uint64) error {
		fmt.Println("charging, with a fence:", fence > 0)
		return ctx.Err() // nil as long as a majority holds
	})
	fmt.Println(err)
	// Output:
	// charging, with a fence: true
	// <nil>
}

// An error distinguishes a lock that is held elsewhere from servers that do not answer.
func ExampleError() {
	ctx := context.Background()
	keepers, servers, end := newKeepers()
	defer end()
	l, _ := redlock.New(keepers, "orders:42", nil)

	lease, _ := l.Lock(ctx)
	_, err := l.TryLock(ctx)
	fmt.Println("somebody else holds it:", errors.Is(err, lockkeeper.ErrNotAcquired))
	_ = lease.Release(ctx)

	servers[0].Close()
	servers[2].Close()
	_, err = l.TryLock(ctx)
	fmt.Println("somebody else holds it:", errors.Is(err, lockkeeper.ErrNotAcquired))
	var each *redlock.Error
	if errors.As(err, &each) {
		for i, s := range each.Servers {
			fmt.Printf("server %d agreed: %v\n", i+1, s.Err == nil)
		}
	}
	// Output:
	// somebody else holds it: true
	// somebody else holds it: false
	// server 1 agreed: false
	// server 2 agreed: true
	// server 3 agreed: false
}

// Each server has a client and a keeper of its own. All processes use the same servers.
func ExampleNew() {
	var keepers []*lockkeeper.Keeper
	for _, addr := range []string{"10.0.1.1:6379", "10.0.2.1:6379", "10.0.3.1:6379"} {
		rdb := redis.NewClient(&redis.Options{
			Addr:          addr,
			DialerRetries: 1, // a server that is down is noticed at once
		})
		defer rdb.Close()
		k, err := lockkeeper.New(rdb, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer k.Close()
		keepers = append(keepers, k)
	}
	l, err := redlock.New(keepers, "orders:42", &redlock.Options{
		TTL:           10 * time.Second,
		ServerTimeout: 100 * time.Millisecond,
		// A server that restarts without its data takes no part while leases may be held that it has forgotten:
		MinUptime: 10 * time.Second, // the longest TTL of this name
	})
	fmt.Println(l.Name(), err)

	_, err = redlock.New(keepers[:2], "orders:42", nil)
	fmt.Println("two servers:", errors.Is(err, lockkeeper.ErrInvalid))
	// Output:
	// orders:42 <nil>
	// two servers: true
}

// Lock waits until its context ends. The lease ends the work if it is lost, and each write carries its fence.
func ExampleLock_Lock() {
	keepers, _, end := newKeepers()
	defer end()
	l, _ := redlock.New(keepers, "orders:42", nil)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := l.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	write := func(ctx context.Context, fence uint64) {
		fmt.Println("written:", ctx.Err() == nil && fence > 0)
	}
	write(lease.Context(ctx), lease.Fence())
	// Output:
	// written: true
}

// Holder returns who holds the lock at a majority of the servers.
func ExampleLock_Holder() {
	ctx := context.Background()
	keepers, _, end := newKeepers()
	defer end()
	l, _ := redlock.New(keepers, "orders:42", nil)

	lease, _ := l.Lock(ctx)
	defer lease.Release(ctx)
	holder, held, err := l.Holder(ctx)
	fmt.Println(held, holder.Token == lease.Token(), err)
	// Output:
	// true true <nil>
}
