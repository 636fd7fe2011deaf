package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

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
