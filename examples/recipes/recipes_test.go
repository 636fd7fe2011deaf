package recipes

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// What all examples use: a server within the process, and two keepers, which stand for two processes.
var (
	ctx        = context.Background()
	addr       string
	rdb        *redis.Client
	k, another *lockkeeper.Keeper
)

func TestMain(m *testing.M) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	server.ClockTTL(true) // leases end
	addr = server.Addr()
	rdb = redis.NewClient(&redis.Options{Addr: addr})
	k, another = newKeeper("web-1"), newKeeper("web-2")
	code := m.Run()
	_ = k.Close()
	_ = another.Close()
	_ = rdb.Close()
	server.Close()
	os.Exit(code)
}

func newKeeper(owner string) *lockkeeper.Keeper {
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{Owner: owner})
	if err != nil {
		log.Fatal(err)
	}
	return k
}

func newMutex(k *lockkeeper.Keeper, name string) *mutex.Mutex {
	m, err := mutex.New(k, name, nil)
	if err != nil {
		log.Fatal(err)
	}
	return m
}

// held locks a mutex of the other keeper, and returns its lease.
func held(name string) *lockkeeper.Lease {
	lease, err := newMutex(another, name).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	return lease
}

func Example_connect() {
	k, err := connect(addr)
	fmt.Println(k.Close(), err)
	fmt.Println(service(ctx, redis.NewClient(&redis.Options{Addr: addr})))
	// Output:
	// <nil> <nil>
	// stops
	// <nil>
}

func Example_pay() {
	m := newMutex(k, "pay")
	lease := held(m.Name())
	fmt.Println(payWithin(ctx, m, "42"))
	_ = lease.Release(ctx)
	fmt.Println(payWithin(ctx, m, "43"), pay(ctx, k, "44"))
	// Output:
	// busy
	// charges 43
	// charges 44
	// <nil> <nil>
}

func Example_transfer() {
	fmt.Println(transfer(ctx, newMutex(k, "account:7"), newMutex(k, "account:8")))
	// Output:
	// moves money
	// <nil>
}

func Example_nightly() {
	fmt.Println(nightly(ctx, k), nightly(ctx, another))
	fmt.Println(lead(ctx, k), encode(ctx, k), callPartner(ctx, k))
	// Output:
	// makes the report
	// <nil> <nil>
	// schedules
	// works
	// calls
	// <nil> <nil> <nil>
}

func Example_limitedClient() {
	server := httptest.NewServer(nil)
	defer server.Close()
	client, err := limitedClient(k)
	if err != nil {
		log.Fatal(err)
	}
	response, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Println(response.Status)
	// Output:
	// 404 Not Found
}

func Example_price() {
	rdb.Del(ctx, "price")
	m := newMutex(k, "price")
	fmt.Println(price(ctx, rdb, m))
	fmt.Println(price(ctx, rdb, m))
	// Output:
	// computes
	// 12.50 <nil>
	// 12.50 <nil>
}

func Example_catalog() {
	lock, err := rwlock.New(k, "catalog", &rwlock.Options{Linger: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	c := &catalog{lock: lock}
	_, _ = c.read(ctx)
	_, _ = c.read(ctx) // by the same lease, so it loads nothing
	fmt.Println(c.write(ctx, "a new catalog"))
	_, _ = c.read(ctx)
	// Output:
	// loads
	// stores a new catalog
	// <nil>
	// loads
}

func Example_begin() {
	token, err := begin(ctx, k)
	fmt.Println(strings.HasPrefix(token, k.ID()), err)
	fmt.Println(finish(ctx, another, token))
	fmt.Println(errors.Is(finish(ctx, another, token), lockkeeper.ErrLost)) // it was released
	first := newKeeper("first")
	token, _ = begin(ctx, first)
	fmt.Println(first.Close(), errors.Is(finish(ctx, another, token), lockkeeper.ErrLost)) // Close releases it
	// Output:
	// true <nil>
	// works
	// <nil>
	// true
	// <nil> true
}
