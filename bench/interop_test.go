package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// peer is the lock of another library.
type peer struct {
	try   func(rdb *redis.Client, key string) lock // once
	wait  func(rdb *redis.Client, key string) lock // asking every millisecond
	taken func(error) bool                         // another holds it
	gone  func(error) bool                         // it was not there to be released
}

func TestMutexAndRedsyncExcludeEachOther(t *testing.T) {
	exclude(t, peer{
		try: func(rdb *redis.Client, key string) lock { return redsyncLock(rdb, key, redsync.WithTries(1)) },
		wait: func(rdb *redis.Client, key string) lock {
			return redsyncLock(rdb, key, redsync.WithTries(100000), redsync.WithRetryDelay(time.Millisecond))
		},
		taken: isTaken,
		gone:  isTaken,
	})
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

func TestMutexAndRedislockExcludeEachOther(t *testing.T) {
	exclude(t, peer{
		try: func(rdb *redis.Client, key string) lock { return redislockLock(rdb, key, ttl, redislock.NoRetry()) },
		wait: func(rdb *redis.Client, key string) lock {
			return redislockLock(rdb, key, ttl, redislock.LinearBackoff(time.Millisecond))
		},
		taken: func(err error) bool { return errors.Is(err, redislock.ErrNotObtained) },
		gone:  func(err error) bool { return errors.Is(err, redislock.ErrLockNotHeld) },
	})
}

// world is a server, and a name that is the same key for both libraries.
type world struct {
	*testing.T
	peer
	s         *redistest.Server
	rdb       *redis.Client
	ctx       context.Context
	name, key string
	options   lockkeeper.Options
}

func exclude(t *testing.T, p peer) {
	s := redistest.Start(t)
	for _, c := range []struct {
		name string
		run  func(*world)
	}{
		{"peer holds", (*world).peerHolds},
		{"we hold", (*world).weHold},
		{"peer cannot release ours", (*world).peerReleasesOurs},
		{"we cannot release the peer's", (*world).weReleasePeers},
		{"both count", (*world).bothCount},
	} {
		for _, k := range []struct {
			name, key string
			options   lockkeeper.Options
		}{
			{"bare name", "orders:42", lockkeeper.Options{NoPrefix: true}},
			{"prefix", "shop:orders:42", lockkeeper.Options{Prefix: "shop:"}},
		} {
			t.Run(c.name+"/"+k.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				w := &world{T: t, peer: p, s: s, rdb: s.Client(), ctx: ctx, name: "orders:42", key: k.key, options: k.options}
				w.must(w.rdb.FlushDB(ctx).Err())
				// A peer does not say when it releases, so heartbeats find out. That they are quick does not matter to
				// what is tested, only to how long it takes.
				w.options.HeartbeatInterval, w.options.HeartbeatTimeout = 10*time.Millisecond, 5*time.Second
				c.run(w)
			})
		}
	}
}

func (w *world) must(err error) {
	if err != nil {
		w.Helper()
		w.Fatal(err)
	}
}

func (w *world) take(l lock) release {
	w.Helper()
	return must.Get(l(w.ctx))(w)
}

// mutex is ours, with a keeper and connections of its own.
func (w *world) mutex() *mutex.Mutex {
	w.Helper()
	return ours(w, w.s.Client(), w.options)(w.name)
}

// value is the token in the key, or "".
func (w *world) value() string {
	w.Helper()
	v, err := w.rdb.Get(w.ctx, w.key).Result()
	if err != redis.Nil {
		w.must(err)
	}
	return v
}

func (w *world) peerHolds() {
	inLine := make(chan struct{}, 1)
	w.options.Hooks.Queued = func(lockkeeper.Event) {
		select {
		case inLine <- struct{}{}:
		default:
		}
	}
	m := w.mutex()
	release := w.take(w.try(w.rdb, w.key))
	if lease, err := m.TryLock(w.ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		w.Fatalf("TryLock while the peer holds: %v, %v; want ErrNotAcquired", lease, err)
	}

	type result struct {
		lease *lockkeeper.Lease
		err   error
	}
	got := make(chan result, 1)
	go func() {
		lease, err := m.Lock(w.ctx)
		got <- result{lease, err}
	}()
	select {
	case <-inLine:
	case r := <-got:
		w.Fatalf("Lock while the peer holds: %v, %v; want it to wait", r.lease, r.err)
	}
	// Heartbeats ask again, and are refused as well.
	scripts := func(ctx context.Context, rdb *redis.Client) (int, error) {
		all, err := benchmarks.Stats(ctx, rdb)
		return all["evalsha"].Calls, err
	}
	before := must.Get(scripts(w.ctx, w.rdb))(w)
	w.s.Await("beaten", func(ctx context.Context, rdb *redis.Client) (string, error) {
		if n, err := scripts(ctx, rdb); err != nil || n < before+3 {
			return "", err
		}
		return "beaten", nil
	})
	select {
	case r := <-got:
		w.Fatalf("Lock while the peer holds: %v, %v; want it to wait", r.lease, r.err)
	default:
	}
	w.must(release())
	r := <-got
	w.must(r.err)
	if v := w.value(); v != r.lease.Token() {
		w.Errorf("the key holds %q, want our token %q", v, r.lease.Token())
	}
	w.must(r.lease.Release(w.ctx))
}

func (w *world) weHold() {
	try := w.try(w.rdb, w.key)
	lease := must.Get(w.mutex().Lock(w.ctx))(w)
	if _, err := try(w.ctx); !w.taken(err) {
		w.Fatalf("the peer's try while we hold: %v; want it refused", err)
	}
	w.must(lease.Release(w.ctx))
	w.must(w.take(try)())
}

// The lock passes from one to the other while the first still thinks that it holds it, as if its lease had run out.
func (w *world) peerReleasesOurs() {
	release := w.take(w.try(w.rdb, w.key))
	w.must(w.rdb.Del(w.ctx, w.key).Err())
	lease := must.Get(w.mutex().TryLock(w.ctx))(w)
	if err := release(); !w.gone(err) {
		w.Errorf("the peer's release while we hold: %v; want it refused", err)
	}
	w.must(lease.Extend(w.ctx, ttl))
	w.must(lease.Release(w.ctx))
}

func (w *world) weReleasePeers() {
	lease := must.Get(w.mutex().TryLock(w.ctx))(w)
	w.must(w.rdb.Del(w.ctx, w.key).Err())
	release := w.take(w.try(w.rdb, w.key))
	token := w.value()
	if err := lease.Release(w.ctx); !errors.Is(err, lockkeeper.ErrLost) {
		w.Errorf("our Release while the peer holds: %v; want ErrLost", err)
	}
	if v := w.value(); v != token {
		w.Errorf("after our Release the key holds %q, want the peer's token %q", v, token)
	}
	w.must(release())
}

// bothCount has goroutines of both libraries count on one variable. In every round each of them adds one. They begin
// together behind a first holder, of the one library and then of the other, so that each has to follow the other.
func (w *world) bothCount() {
	const rounds, each = 30, 4
	var locks []lock // ours are the even ones
	here := w.mutex()
	for i := range each {
		m := here // some share a keeper, and therefore a place in the queue
		if i >= each/2 {
			m = w.mutex()
		}
		locks = append(locks, waiting(m), w.wait(w.s.Client(), w.key))
	}

	// Nothing but the lock protects these two.
	count, last := 0, 0
	follows := [2][2]int{}
	enter := func(i int) {
		seen := count
		must.Report(w, w.rdb.Ping(w.ctx).Err()) // time for others to interfere
		count = seen + 1
		follows[last%2][i%2]++
		last = i
	}
	for round := range rounds {
		first := round % len(locks)
		release := w.take(locks[first])
		var wg sync.WaitGroup
		for i, l := range locks {
			if i == first {
				continue
			}
			wg.Go(func() {
				release, err := l(w.ctx)
				if err != nil {
					w.Error(err)
					return
				}
				enter(i)
				must.Report(w, release())
			})
		}
		enter(first)
		w.must(release())
		wg.Wait()
	}
	if want := rounds * len(locks); count != want {
		w.Errorf("counted to %d, want %d", count, want)
	}
	if follows[0][1] == 0 || follows[1][0] == 0 {
		w.Errorf("the peer followed us %d times, and we the peer %d times; want both", follows[0][1], follows[1][0])
	}
}
