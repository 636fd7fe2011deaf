package bench_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const ttl = 30 * time.Second

// lock takes one name, and returns what gives it back. It is for one goroutine at a time.
type lock func(ctx context.Context) (release, error)

type release func() error

var errNotReleased = errors.New("the lock was not held any more")

// ours is the mutex of a name, in a keeper that is closed with the test.
func ours(t testing.TB, rdb *redis.Client, o lockkeeper.Options) func(name string) *mutex.Mutex {
	t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	k, err := lockkeeper.New(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return func(name string) *mutex.Mutex {
		m, err := mutex.New(k, name, &mutex.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}

// waiting is the mutex as a lock.
func waiting(m *mutex.Mutex) lock {
	return func(ctx context.Context) (release, error) {
		lease, err := m.Lock(ctx)
		if err != nil {
			return nil, err
		}
		// Not ctx: it says until when to wait for the lock, and may have ended.
		return func() error { return lease.Release(context.Background()) }, nil
	}
}

func redsyncLock(rdb *redis.Client, key string, opts ...redsync.Option) lock {
	opts = append([]redsync.Option{redsync.WithExpiry(ttl)}, opts...)
	m := redsync.New(goredis.NewPool(rdb)).NewMutex(key, opts...)
	return func(ctx context.Context) (release, error) {
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error {
			if ok, err := m.Unlock(); err != nil || ok {
				return err
			}
			return errNotReleased
		}, nil
	}
}

func redislockLock(rdb *redis.Client, key string, retry redislock.RetryStrategy) lock {
	c := redislock.New(rdb)
	return func(ctx context.Context) (release, error) {
		l, err := c.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: retry})
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	}
}

// rueidisLocks is the locks of a locker, which is closed with the test.
func rueidisLocks(t testing.TB, addr string) func(name string) lock {
	t.Helper()
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    ttl,
		// How long an attempt may take. With the default, 20 ms, some would be abandoned on a busy machine.
		TryNextAfter: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return func(name string) lock {
		return func(ctx context.Context) (release, error) {
			_, cancel, err := l.WithContext(ctx, name)
			if err != nil {
				return nil, err
			}
			return func() error {
				cancel() // it waits for the server
				return nil
			}, nil
		}
	}
}

// calls is how often the server has run these commands, for clients or in scripts, since its statistics were reset.
func calls(t testing.TB, rdb *redis.Client, commands ...string) int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for line := range strings.Lines(info) {
		name, fields, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if !slices.Contains(commands, name) {
			continue
		}
		count, _, _ := strings.Cut(strings.TrimPrefix(fields, "calls="), ",")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatalf("commandstats: %q", line)
		}
		sum += n
	}
	return sum
}
