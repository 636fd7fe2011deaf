// Interopclient is a process that uses a lock of a Go library: interopclient LIBRARY HOST:PORT NAME.
//
// It reads commands and answers each with one line; internal/testing/interop/interop_test.go documents them.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
)

const (
	retry = 5 * time.Millisecond
	ttl   = 10 * time.Second
)

var ctx = context.Background()

// lock is a lock of a library.
type lock interface {
	acquire(wait bool) (bool, error) // whether it was acquired
	release() (bool, error)          // whether it was held
}

func main() {
	library, address, name := os.Args[1], os.Args[2], os.Args[3]
	rdb := redis.NewClient(&redis.Options{Addr: address})
	l := map[string]lock{
		"redsync":   &redsyncLock{rs: redsync.New(goredis.NewPool(rdb)), name: name},
		"redislock": &redislockLock{client: redislock.New(rdb), name: name},
	}[library]
	if library == "lockkeeper" {
		l = newOurs(rdb, name)
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		answer, err := run(l, rdb, library, strings.Fields(in.Text()))
		if err != nil {
			answer = "error: " + err.Error()
		}
		fmt.Println(answer)
	}
}

func run(l lock, rdb *redis.Client, library string, command []string) (answer string, err error) {
	switch command[0] {
	case "try", "lock":
		return choose("acquired", "refused")(l.acquire(command[0] == "lock"))
	case "release":
		return choose("released", "not held")(l.release())
	case "count":
		rounds, _ := strconv.Atoi(command[2])
		pause, _ := strconv.Atoi(command[3])
		for range rounds {
			if err := addOne(l, rdb, command[1], library); err != nil {
				return "", err
			}
			time.Sleep(time.Duration(pause) * time.Millisecond)
		}
		return "counted", nil
	}
	return "", errors.New("unknown command")
}

func choose(yes, no string) func(bool, error) (string, error) {
	return func(ok bool, err error) (string, error) {
		if ok {
			return yes, err
		}
		return no, err
	}
}

func addOne(l lock, rdb *redis.Client, counter, library string) error {
	if ok, err := l.acquire(true); !ok {
		return fmt.Errorf("refused: %w", err)
	}
	n, err := rdb.Get(ctx, counter).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	if err := rdb.RPush(ctx, counter+":order", library).Err(); err != nil { // a round trip, in which others can interfere
		return err
	}
	if err := rdb.Set(ctx, counter, n+1, 0).Err(); err != nil {
		return err
	}
	if ok, err := l.release(); !ok {
		return fmt.Errorf("the lock was lost: %w", err)
	}
	return nil
}

// ours is a mutex.
type ours struct {
	*mutex.Mutex
	held *lockkeeper.Lease
}

func newOurs(rdb *redis.Client, name string) *ours {
	// Others do not say that they release a lock, so heartbeats find out.
	opts := &lockkeeper.Options{NoPrefix: true, HeartbeatInterval: 2 * retry, HeartbeatTimeout: ttl / 2}
	k, err := lockkeeper.New(rdb, opts)
	if err != nil {
		log.Fatal(err)
	}
	m, err := mutex.New(k, name, &mutex.Options{TTL: ttl})
	if err != nil {
		log.Fatal(err)
	}
	return &ours{Mutex: m}
}

func (l *ours) acquire(wait bool) (ok bool, err error) {
	if wait {
		l.held, err = l.Lock(ctx)
	} else {
		l.held, err = l.TryLock(ctx)
	}
	if errors.Is(err, lockkeeper.ErrNotAcquired) {
		return false, nil
	}
	return err == nil, err
}

func (l *ours) release() (bool, error) {
	err := l.held.Release(ctx)
	if errors.Is(err, lockkeeper.ErrLost) {
		return false, nil
	}
	return err == nil, err
}

type redsyncLock struct {
	rs   *redsync.Redsync
	name string
	held *redsync.Mutex
}

func (l *redsyncLock) acquire(wait bool) (bool, error) {
	tries := 1
	if wait {
		tries = 1 << 30
	}
	l.held = l.rs.NewMutex(l.name, redsync.WithExpiry(ttl), redsync.WithTries(tries), redsync.WithRetryDelay(retry))
	err := l.held.Lock()
	if isTaken(err) {
		return false, nil
	}
	return err == nil, err
}

func (l *redsyncLock) release() (bool, error) {
	ok, err := l.held.Unlock()
	if isTaken(err) {
		return false, nil
	}
	return ok, err
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

type redislockLock struct {
	client *redislock.Client
	name   string
	held   *redislock.Lock
}

func (l *redislockLock) acquire(wait bool) (ok bool, err error) {
	strategy := redislock.NoRetry()
	if wait {
		strategy = redislock.LinearBackoff(retry)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // without a deadline it gives up after the ttl
	defer cancel()
	l.held, err = l.client.Obtain(ctx, l.name, ttl, &redislock.Options{RetryStrategy: strategy})
	if errors.Is(err, redislock.ErrNotObtained) {
		return false, nil
	}
	return err == nil, err
}

func (l *redislockLock) release() (bool, error) {
	err := l.held.Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return false, nil
	}
	return err == nil, err
}
