// Package interop tests that a mutex and the locks of other languages' libraries exclude each other on one key, and
// that what docs/interop.md says does not work fails as it says.
//
// The clients in python, node and java are small programs around a lock of each library, and TestMain makes one of
// this test binary. A client has three arguments: the library, the server's address, and the name of the lock. It
// reads commands from standard input and answers each with one line, which is "error: ..." after an exception:
//
//	try                         takes the lock if it is free: acquired, refused
//	lock                        waits for it: acquired
//	release                     gives it back: released, not held
//	count COUNTER ROUNDS PAUSE  adds one to a counter under the lock, with pauses of so many ms outside: counted
//	reset                       redis_lock.reset_all of python-redis-lock: reset
//
// A round of count reads the number, appends the library to the list COUNTER:order, and writes the number plus one; so
// a round of another process in between is lost.
package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// ttl is long enough for a loaded machine. No test waits for it to pass.
const ttl = 10 * time.Second

// options are those of a keeper whose mutexes share keys with other libraries. Others do not say that they release a
// lock, so heartbeats find out; that they are quick does not matter to what is tested, only to how long it takes.
func options() *lockkeeper.Options {
	return &lockkeeper.Options{NoPrefix: true, HeartbeatInterval: 10 * time.Millisecond, HeartbeatTimeout: 5 * time.Second}
}

func TestMain(m *testing.M) {
	if args := os.Getenv("LOCKKEEPER_INTEROP_CLIENT"); args != "" {
		address, key, _ := strings.Cut(args, " ")
		if err := client(address, key); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// client is the client of this library. It knows count only, since the tests have keepers of their own.
func client(address, key string) error {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = rdb.Close() }()
	k, err := lockkeeper.New(rdb, options())
	if err != nil {
		return err
	}
	defer k.Close()
	m, err := mutex.New(k, key, &mutex.Options{TTL: ttl})
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		rounds, _ := strconv.Atoi(words[2])
		pause, _ := strconv.Atoi(words[3])
		for range rounds {
			err := m.Do(context.Background(), func(ctx context.Context, _ uint64) error { return addOne(ctx, rdb, words[1]) })
			if err != nil {
				fmt.Println("error:", err)
				return err
			}
			time.Sleep(time.Duration(pause) * time.Millisecond)
		}
		fmt.Println("counted")
	}
	return in.Err()
}

func addOne(ctx context.Context, rdb *redis.Client, counter string) error {
	n, err := rdb.Get(ctx, counter).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	if err := rdb.RPush(ctx, counter+":order", "lockkeeper").Err(); err != nil { // a round trip, in which others can interfere
		return err
	}
	return rdb.Set(ctx, counter, n+1, 0).Err()
}
