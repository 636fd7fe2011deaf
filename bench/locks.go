package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
	"go.uber.org/zap"
)

// ttl is that of all leases, unless a case says otherwise.
const ttl = 30 * time.Second

// pause is how long those libraries that poll wait before they ask again.
const pause = 10 * time.Millisecond

// lock takes one name, and returns what gives it back. It is for one goroutine at a time.
type lock func(ctx context.Context) (release, error)

type release func() error

var errNotReleased = errors.New("the lock was not held any more")

// target is where locks are kept: one Redis server, a cluster, or etcd, as the library needs.
type target struct {
	redis   string   // a URL, as redis.ParseURL takes it
	cluster []string // addresses; if there are any, redis is not used
	etcd    string   // a URL; "" if there is none
}

// rdb is a client of go-redis with connections of its own, which is closed with t.
func (a target) rdb(t redistest.TB) redis.UniversalClient {
	t.Helper()
	var c redis.UniversalClient
	if a.cluster != nil {
		c = redis.NewClusterClient(&redis.ClusterOptions{Addrs: a.cluster})
	} else {
		o, err := redis.ParseURL(a.redis)
		if err != nil {
			t.Fatalf("%q: %v", a.redis, err)
		}
		c = redis.NewClient(o)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// rueidis says to a client of rueidis where to connect.
func (a target) rueidis(t redistest.TB) rueidis.ClientOption {
	t.Helper()
	if a.cluster != nil {
		return rueidis.ClientOption{InitAddress: a.cluster}
	}
	o, err := rueidis.ParseURL(a.redis)
	if err != nil {
		t.Fatalf("%q: %v", a.redis, err)
	}
	return o
}

// client is a library in one process: it has connections of its own.
type client struct {
	lock func(name string) lock
	// left is how long the server lets a lease last that is not renewed.
	left func(ctx context.Context, name string) (time.Duration, error)
	// inLine is how many wait for a name, as the server sees it; nil if it does not know.
	inLine func(ctx context.Context, name string) (int, error)
}

// library is one of those that are compared.
type library struct {
	name     string
	module   string // whose version is printed; "" for this one
	settings string
	etcd     bool     // it needs etcd instead of Redis
	renewals int      // how often in a ttl it renews a lease that is held; 0 if it does not
	inLine   bool     // its waiters are in a queue at the server
	local    bool     // of those of one process only the first does
	commands []string // what its clients send, beside what all send; what only scripts call has other names
	open     func(t redistest.TB, at target, ttl time.Duration) client
}

// everyones is the commands that any client may send.
var everyones = []string{"eval", "evalsha", "subscribe", "ssubscribe", "unsubscribe", "sunsubscribe", "ping", "hello"}

// libraries is all of them. The first is what the others are compared with.
var libraries = []library{
	{
		name: "lockkeeper mutex", settings: "defaults", renewals: 3, inLine: true, local: true,
		open: keeperLocks("mutex"),
	},
	{
		name: "lockkeeper fair", settings: "defaults", renewals: 3, inLine: true,
		open: keeperLocks("fair"),
	},
	{
		name: "redsync", module: "github.com/go-redsync/redsync/v4",
		settings: "one pool; tries again every 10 ms, without end",
		commands: []string{"set"},
		open: func(t redistest.TB, at target, ttl time.Duration) client {
			rdb := at.rdb(t)
			return client{
				lock: func(name string) lock {
					return redsyncLock(rdb, name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30), redsync.WithRetryDelay(pause))
				},
				left: leftOf(rdb, ""),
			}
		},
	},
	{
		name: "redislock", module: "github.com/bsm/redislock",
		settings: "LinearBackoff of 10 ms",
		open: func(t redistest.TB, at target, ttl time.Duration) client {
			rdb := at.rdb(t)
			return client{
				lock: func(name string) lock { return redislockLock(rdb, name, ttl, redislock.LinearBackoff(pause)) },
				left: leftOf(rdb, ""),
			}
		},
	},
	{
		name: "rueidislock", module: "github.com/redis/rueidis", renewals: 2,
		settings: "KeyMajority 1, NoLoopTracking, TryNextAfter 5 s",
		commands: []string{"client|tracking", "client|caching", "get"},
		open: func(t redistest.TB, at target, ttl time.Duration) client {
			return client{
				lock: rueidisLocks(t, at.rueidis(t), ttl),
				left: leftOf(at.rdb(t), "rueidislock:0:"),
			}
		},
	},
	{
		name: "etcd", module: "go.etcd.io/etcd/client/v3", etcd: true, renewals: 3, inLine: true,
		settings: "concurrency.Mutex, a session per contender, one server with its data in memory",
		open:     etcdLocks,
	},
}

// quiet keeps a keeper from logging.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// keeper is one with these connections, which is closed with t.
func keeper(t redistest.TB, rdb redis.UniversalClient, o lockkeeper.Options) *lockkeeper.Keeper {
	t.Helper()
	o.Logger = quiet
	k, err := lockkeeper.New(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// keeperLocks is a primitive of ours, by its kind.
func keeperLocks(kind string) func(t redistest.TB, at target, ttl time.Duration) client {
	return func(t redistest.TB, at target, ttl time.Duration) client {
		rdb := at.rdb(t)
		k := keeper(t, rdb, lockkeeper.Options{})
		own := func(name, suffix string) string { return "{lock:" + name + "}:" + kind + ":" + suffix }
		c := client{
			lock: func(name string) lock {
				var l benchmarks.Locker
				var err error
				if kind == "mutex" {
					l, err = mutex.New(k, name, &mutex.Options{TTL: ttl})
				} else {
					l, err = fair.New(k, name, &fair.Options{TTL: ttl})
				}
				if err != nil {
					t.Fatal(err)
				}
				return waiting(l)
			},
			inLine: func(ctx context.Context, name string) (int, error) {
				n, err := rdb.ZCount(ctx, own(name, "queue"), "-inf", protocol.BehindWaiters).Result()
				return int(n), err
			},
		}
		if kind == "mutex" {
			c.left = leftOf(rdb, protocol.DefaultPrefix)
		} else {
			c.left = func(ctx context.Context, name string) (time.Duration, error) {
				return leftOf(rdb, "")(ctx, own(name, "holders"))
			}
		}
		return c
	}
}

// waiting is one of our locks as a lock.
func waiting(l benchmarks.Locker) lock {
	return func(ctx context.Context) (release, error) {
		lease, err := l.Lock(ctx)
		if err != nil {
			return nil, err
		}
		// Not ctx: it says until when to wait for the lock, and may have ended.
		return func() error { return lease.Release(lasting) }, nil
	}
}

// leftOf is for a lease that is one key with an expiry.
func leftOf(rdb redis.UniversalClient, prefix string) func(ctx context.Context, name string) (time.Duration, error) {
	return func(ctx context.Context, name string) (time.Duration, error) {
		d, err := rdb.PTTL(ctx, prefix+name).Result()
		if err == nil && d <= 0 {
			err = errors.New(prefix + name + " is not held, or has no end")
		}
		return d, err
	}
}

func redsyncLock(rdb redis.UniversalClient, key string, opts ...redsync.Option) lock {
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

func redislockLock(rdb redis.UniversalClient, key string, ttl time.Duration, retry redislock.RetryStrategy) lock {
	c := redislock.New(rdb)
	return func(ctx context.Context) (release, error) {
		// Without a deadline it would give up after the ttl.
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		l, err := c.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: retry})
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(lasting) }, nil
	}
}

// rueidisLocks is the locks of a locker, which is closed with t.
func rueidisLocks(t redistest.TB, at rueidis.ClientOption, ttl time.Duration) func(name string) lock {
	t.Helper()
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   at,
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

// etcdClient is a client of etcd, which is closed with t.
func etcdClient(t redistest.TB, at target) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{at.etcd}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// etcdLocks is the mutexes of one session, whose lease all of them share. A name that is asked for a second time gets a
// session of its own, because two of one session count as one contender.
func etcdLocks(t redistest.TB, at target, ttl time.Duration) client {
	t.Helper()
	c := etcdClient(t, at)
	session := func() *concurrency.Session {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	first := session()
	var mu sync.Mutex
	used := map[string]bool{}
	return client{
		lock: func(name string) lock {
			mu.Lock()
			s, again := first, used[name]
			used[name] = true
			mu.Unlock()
			if again {
				s = session()
			}
			m := concurrency.NewMutex(s, name)
			return func(ctx context.Context) (release, error) {
				if err := m.Lock(ctx); err != nil {
					return nil, err
				}
				return func() error { return m.Unlock(lasting) }, nil
			}
		},
		left: func(ctx context.Context, name string) (time.Duration, error) {
			holder, err := c.Get(ctx, name+"/", clientv3.WithFirstCreate()...)
			if err != nil {
				return 0, err
			}
			if len(holder.Kvs) == 0 {
				return 0, errors.New(name + " is not held")
			}
			// The time is in whole seconds, rounded down: when the number changes it is exact.
			for last := int64(-1); ; {
				l, err := c.TimeToLive(ctx, clientv3.LeaseID(holder.Kvs[0].Lease))
				if err != nil {
					return 0, err
				}
				if l.TTL < last {
					return time.Duration(last) * time.Second, nil
				}
				last = l.TTL
			}
		},
		inLine: func(ctx context.Context, name string) (int, error) {
			all, err := c.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				return 0, err
			}
			return int(max(all.Count-1, 0)), nil // the first has it
		},
	}
}

// readWrite is a library that lets readers in together.
type readWrite struct {
	library
	openRW func(t redistest.TB, at target) (read, write func(name string) lock)
}

var readWrites = []readWrite{
	{
		library: library{name: "lockkeeper rwlock", settings: "defaults"},
		openRW:  keeperRW,
	},
	{
		library: library{
			name: "etcd", module: "go.etcd.io/etcd/client/v3", etcd: true,
			settings: "recipe.RWMutex, a session per contender, one server with its data in memory",
		},
		openRW: func(t redistest.TB, at target) (read, write func(name string) lock) {
			s, err := concurrency.NewSession(etcdClient(t, at), concurrency.WithTTL(int(ttl/time.Second)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			// They do not take a context, so a wait cannot be cancelled.
			return func(name string) lock {
					return func(context.Context) (release, error) {
						m := recipe.NewRWMutex(s, name)
						return m.RUnlock, m.RLock()
					}
				}, func(name string) lock {
					return func(context.Context) (release, error) {
						m := recipe.NewRWMutex(s, name)
						return m.Unlock, m.Lock()
					}
				}
		},
	},
}

// keeperRW is our read-write lock.
func keeperRW(t redistest.TB, at target) (read, write func(name string) lock) {
	k := keeper(t, at.rdb(t), lockkeeper.Options{})
	of := func(name string) *rwlock.Lock {
		l, err := rwlock.New(k, name, &rwlock.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	return func(name string) lock { return waiting(benchmarks.Func(of(name).RLock)) },
		func(name string) lock { return waiting(of(name)) }
}

// count sums up how often a server has run what clients of this library send, and for how many microseconds.
func (l library) count(all map[string]benchmarks.Stat) benchmarks.Stat {
	var sum benchmarks.Stat
	for _, list := range [][]string{everyones, l.commands} {
		for _, name := range list {
			sum.Calls += all[name].Calls
			sum.Micros += all[name].Micros
		}
	}
	return sum
}
