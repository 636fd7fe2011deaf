package admin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// breakable are primitives of which one request at a time holds the lock, with a short ttl, which decides when a keeper subscribes.
var breakable = []struct {
	kind lockkeeper.Kind
	open func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error)
}{
	{mutex.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		return mutex.New(k, "x", &mutex.Options{TTL: ttl})
	}},
	{fair.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		return fair.New(k, "x", &fair.Options{TTL: ttl})
	}},
	{rwlock.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		return rwlock.New(k, "x", &rwlock.Options{TTL: ttl})
	}},
	{semaphore.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		s, err := semaphore.New(k, "x", 2, &semaphore.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		return s.LockerN(2)
	}},
	{ratelimit.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		r, err := ratelimit.NewConcurrent(k, "x", 1_000_000, time.Minute, 1, &ratelimit.ConcurrentOptions{TTL: ttl})
		if err != nil {
			return nil, err
		}
		return r.Locker(), nil
	}},
}

// waiting is a call that waits in the background.
type waiting struct {
	lease *lockkeeper.Lease
	err   error
	done  chan struct{}
}

// lock waits for a lock in the background, and returns when the server has queued the request.
func (l *looker) lock(kind lockkeeper.Kind, lock lockkeeper.Locker) *waiting {
	l.Helper()
	before := len(l.waiters(kind))
	w := &waiting{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(background, time.Minute)
	go func() {
		defer close(w.done)
		w.lease, w.err = lock.Lock(ctx)
	}()
	l.Cleanup(func() { cancel(); <-w.done })
	l.eventually(func() bool { return len(l.waiters(kind)) > before })
	return w
}

func (l *looker) waiters(kind lockkeeper.Kind) []lockkeeper.Waiter {
	return must(admin.Inspect(background, l.Keeper, kind, "x")).Waiters
}

// isBroken checks that an error is one of a break.
func isBroken(t *testing.T, err, also error) {
	t.Helper()
	var b *lockkeeper.BrokenError
	if !errors.Is(err, also) || !errors.As(err, &b) || *b != (lockkeeper.BrokenError{Reason: "stuck for hours", By: "ops 1"}) {
		t.Errorf("the error is %v", err)
	}
}

var byOps = admin.BreakOptions{Reason: "stuck for hours", By: "ops 1"}

func withToken(token string) *admin.BreakOptions {
	o := byOps
	o.Token = token
	return &o
}

var all = &admin.BreakOptions{All: true, Reason: "stuck for hours", By: "ops 1"}

// TestBreakHolder checks that a holder whose keeper is subscribed is told at once, and the next waiter is granted the lock.
func TestBreakHolder(t *testing.T) {
	servers(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		for _, p := range breakable {
			t.Run(string(p.kind), func(t *testing.T) {
				ops, next := newLooker(t, rdb(), nil), newLooker(t, rdb(), nil)
				holder := newLooker(t, rdb(), nil)
				t.Cleanup(func() { flush(t, ops) })
				// The holder has waited, so its keeper is subscribed, also on a Cluster.
				first := must(must(p.open(ops.Keeper, time.Minute)).TryLock(background))
				w := holder.lock(p.kind, must(p.open(holder.Keeper, time.Minute)))
				if err := first.Release(background); err != nil {
					t.Fatal(err)
				}
				<-w.done
				lease := must(w.lease, w.err)
				ctx := lease.Context(background)
				waiter := next.lock(p.kind, must(p.open(next.Keeper, time.Minute)))

				b := must(admin.Break(background, ops.Keeper, p.kind, "x", withToken(lease.Token())))
				if len(b.Holders) != 1 || b.Holders[0].Token != lease.Token() || len(b.Waiters) != 0 || b.Notified != 1 {
					t.Errorf("%+v", b)
				}
				select {
				case <-lease.Done():
				case <-time.After(10 * time.Second): // less than a renewal takes
					t.Fatal("the holder was not told")
				}
				isBroken(t, lease.Err(), lockkeeper.ErrLost)
				<-ctx.Done()
				isBroken(t, context.Cause(ctx), lockkeeper.ErrLost)
				isBroken(t, lease.Release(background), lockkeeper.ErrLost)
				<-waiter.done
				if waiter.err != nil || waiter.lease.Fence() <= lease.Fence() {
					t.Fatalf("%v, fences %d and %d", waiter.err, waiter.lease.Fence(), lease.Fence())
				}
				again := must(admin.Break(background, ops.Keeper, p.kind, "x", withToken(lease.Token())))
				if len(again.Holders)+len(again.Waiters)+again.Notified != 0 {
					t.Errorf("a token that is gone: %+v", again)
				}
				if err := waiter.lease.Release(background); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

func flush(t *testing.T, l *looker) {
	if c, ok := l.rdb.(*redis.ClusterClient); ok {
		_ = c.ForEachMaster(background, func(ctx context.Context, n *redis.Client) error { return n.FlushAll(ctx).Err() })
		return
	}
	_ = l.rdb.FlushAll(background)
}

// TestBreakWaiter checks that a waiting call returns at once and leaves the queue, and the others keep their order.
func TestBreakWaiter(t *testing.T) {
	servers(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		for _, p := range breakable {
			t.Run(string(p.kind), func(t *testing.T) {
				ops := newLooker(t, rdb(), nil)
				t.Cleanup(func() { flush(t, ops) })
				lease := must(must(p.open(ops.Keeper, time.Minute)).TryLock(background))
				var calls []*waiting
				for range 3 {
					l := newLooker(t, rdb(), nil)
					calls = append(calls, l.lock(p.kind, must(p.open(l.Keeper, time.Minute))))
				}
				queue := ops.waiters(p.kind)
				b := must(admin.Break(background, ops.Keeper, p.kind, "x", withToken(queue[1].Token)))
				if len(b.Waiters) != 1 || b.Waiters[0].Token != queue[1].Token || len(b.Holders) != 0 || b.Notified != 1 {
					t.Errorf("%+v", b)
				}
				<-calls[1].done
				isBroken(t, calls[1].err, lockkeeper.ErrNotAcquired)
				if left := ops.waiters(p.kind); len(left) != 2 || left[0].Token != queue[0].Token || left[1].Token != queue[2].Token {
					t.Errorf("%+v", left)
				}
				for _, next := range []*waiting{calls[0], calls[2]} {
					if err := lease.Release(background); err != nil {
						t.Error(err)
					}
					<-next.done
					lease = must(next.lease, next.err)
				}
				if err := lease.Release(background); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// TestBreakAll checks that everybody is ended and nobody is granted the lock meanwhile.
func TestBreakAll(t *testing.T) {
	servers(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		for _, p := range breakable {
			t.Run(string(p.kind), func(t *testing.T) {
				ops := newLooker(t, rdb(), nil)
				t.Cleanup(func() { flush(t, ops) })
				holder := must(must(p.open(ops.Keeper, time.Minute)).TryLock(background))
				var calls []*waiting
				for range 3 {
					l := newLooker(t, rdb(), nil)
					calls = append(calls, l.lock(p.kind, must(p.open(l.Keeper, time.Minute))))
				}
				queue := ops.waiters(p.kind)
				b := must(admin.Break(background, ops.Keeper, p.kind, "x", all))
				if len(b.Holders) != 1 || len(b.Waiters) != 3 || b.Notified < 3 || b.Waiters[0].Token != queue[0].Token {
					t.Errorf("%+v", b)
				}
				for _, w := range calls {
					<-w.done
					isBroken(t, w.err, lockkeeper.ErrNotAcquired)
				}
				if in := must(admin.Inspect(background, ops.Keeper, p.kind, "x")); len(in.Holders)+len(in.Waiters) != 0 {
					t.Errorf("%+v", in)
				}
				next := must(must(p.open(ops.Keeper, time.Minute)).TryLock(background))
				if next.Fence() <= holder.Fence() {
					t.Errorf("fence %d after %d", next.Fence(), holder.Fence())
				}
			})
		}
	})
}

// TestBreakWithoutMessage checks that a holder and a waiter hear of a break, and who has made it, by a renewal and a heartbeat if the
// message is lost; and so does Extend.
func TestBreakWithoutMessage(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	for _, p := range breakable {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Cleanup(s.FlushAll)
			var dialer net.Dialer
			network := faultnet.New(func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", s.Addr())
			})
			cut := newLooker(t, redis.NewClient(network.Options(time.Second)), &lockkeeper.Options{HeartbeatInterval: 50 * time.Millisecond})
			ops := newLooker(t, redis.NewClient(&redis.Options{Addr: s.Addr()}), nil)
			lease := must(must(p.open(cut.Keeper, time.Second)).TryLock(background))
			w := cut.lock(p.kind, must(p.open(cut.Keeper, time.Second)))
			network.LoseMessages()
			must(admin.Break(background, ops.Keeper, p.kind, "x", all))
			<-lease.Done()
			<-w.done
			isBroken(t, lease.Err(), lockkeeper.ErrLost)
			isBroken(t, w.err, lockkeeper.ErrNotAcquired)

			lease = must(must(p.open(cut.Keeper, time.Minute)).TryLock(background))
			must(admin.Break(background, ops.Keeper, p.kind, "x", all))
			isBroken(t, lease.Extend(background, time.Minute), lockkeeper.ErrLost)
		})
	}
}

// adopter returns what adopts tokens of a primitive.
func adopter(kind lockkeeper.Kind, k *lockkeeper.Keeper) interface {
	Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error)
} {
	switch kind {
	case "mutex":
		return must(mutex.New(k, "x", nil))
	case "fair":
		return must(fair.New(k, "x", nil))
	case "rwlock":
		return must(rwlock.New(k, "x", nil))
	case "semaphore":
		return must(semaphore.New(k, "x", 2, nil))
	}
	return must(ratelimit.NewConcurrent(k, "x", 1_000_000, time.Minute, 1, nil))
}

// TestBreakWithoutMessageIsKnownAtTheEnd checks that who finds a lease gone that was broken, without having heard of that, learns who has
// broken it: by its release, also of an adopted lease, whose release writes a tombstone; and by an adoption, before and after that.
func TestBreakWithoutMessageIsKnownAtTheEnd(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	for _, p := range breakable {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Cleanup(s.FlushAll)
			var dialer net.Dialer
			network := faultnet.New(func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", s.Addr())
			})
			cut := newLooker(t, redis.NewClient(network.Options(time.Second)), nil)
			ops := newLooker(t, redis.NewClient(&redis.Options{Addr: s.Addr()}), nil)
			network.LoseMessages()

			lease := must(must(p.open(cut.Keeper, time.Minute)).TryLock(background))
			must(admin.Break(background, ops.Keeper, p.kind, "x", all))
			isBroken(t, lease.Release(background), lockkeeper.ErrLost)
			if err := lease.Release(background); err != nil {
				t.Errorf("the second release: %v", err)
			}

			adopt := adopter(p.kind, cut.Keeper).Adopt
			first := must(must(p.open(ops.Keeper, time.Minute)).TryLock(background))
			lease = must(adopt(background, first.Token()))
			must(admin.Break(background, ops.Keeper, p.kind, "x", all))
			_, err := adopt(background, first.Token())
			isBroken(t, err, lockkeeper.ErrLost)
			time.Sleep(2 * time.Millisecond) // the tombstone of the release lasts longer
			isBroken(t, lease.Release(background), lockkeeper.ErrLost)
			_, err = adopt(background, first.Token())
			isBroken(t, err, lockkeeper.ErrLost)
		})
	}
}

// TestBreakHolderThatNeverWaited checks that a keeper that was granted a lease is told, before it has renewed that, and that both keepers
// and the hook say so.
func TestBreakHolderThatNeverWaited(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	var mu sync.Mutex
	var log bytes.Buffer
	lost := make(chan error, 1)
	k := must(lockkeeper.New(rdb, &lockkeeper.Options{
		Logger: slog.New(slog.NewTextHandler(&locked{&mu, &log}, nil)),
		Hooks: lockkeeper.Hooks{
			Lost: func(e lockkeeper.Event) { lost <- e.Err },
		},
	}))
	defer k.Close()
	lease := must(must(mutex.New(k, "x", &mutex.Options{TTL: time.Hour})).TryLock(background))
	ops := newLooker(t, redis.NewClient(&redis.Options{Addr: s.Addr()}), nil)
	ops.eventually(func() bool { return len(s.PubSubChannels("*")) == 1 })
	if b := must(admin.Break(background, ops.Keeper, mutex.Kind, "x", withToken(lease.Token()))); b.Notified != 1 {
		t.Errorf("%+v", b)
	}
	isBroken(t, <-lost, lockkeeper.ErrLost)
	ops.eventually(func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), `a lease of this process was broken" kind=mutex name=x`) &&
			strings.Contains(log.String(), `by="ops 1" reason="stuck for hours"`)
	})
}

// locked is a buffer that is written by several goroutines.
type locked struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// TestBreakRetained checks that what a process grants by a lease that it retains ends with it.
func TestBreakRetained(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	client := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: s.Addr()}) }
	ops, l := newLooker(t, client(), nil), newLooker(t, client(), nil)
	rw := must(rwlock.New(l.Keeper, "x", &rwlock.Options{Retain: true}))
	var leases []*lockkeeper.Lease
	l.eventually(func() bool { // until two reads share a lease
		leases = append(leases, must(rw.RLock(background)))
		n := len(leases)
		return n > 1 && leases[n-1].Token() == leases[n-2].Token()
	})
	must(admin.Break(background, ops.Keeper, rwlock.Kind, "x", all))
	for _, lease := range leases {
		<-lease.Done()
		isBroken(t, lease.Err(), lockkeeper.ErrLost)
	}
	must(must(rwlock.New(ops.Keeper, "x", nil)).TryLock(background))
}

// TestBreakRetainedMutex checks that a lease that a process retains between its turns ends, whether a turn is in progress or not.
func TestBreakRetainedMutex(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	client := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: s.Addr()}) }
	ops, l := newLooker(t, client(), nil), newLooker(t, client(), nil)
	m := must(mutex.New(l.Keeper, "x", &mutex.Options{Retain: true}))
	other := must(mutex.New(ops.Keeper, "x", nil))
	var turn *lockkeeper.Lease
	l.eventually(func() bool { // until two turns share a lease
		first := must(m.Lock(background))
		if err := first.Release(background); err != nil {
			t.Fatal(err)
		}
		turn = must(m.Lock(background))
		shared := turn.Token() == first.Token()
		if !shared {
			_ = turn.Release(background)
		}
		return shared
	})
	must(admin.Break(background, ops.Keeper, mutex.Kind, "x", withToken(turn.Token())))
	<-turn.Done()
	isBroken(t, turn.Err(), lockkeeper.ErrLost)
	theirs := must(other.TryLock(background))
	if _, err := m.TryLock(background); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		t.Errorf("a turn in a lease that was broken: %v", err)
	}
	_ = theirs.Release(background)

	_ = turn.Release(background)
	var token string
	l.eventually(func() bool { // until a lease outlives its turn
		lease := must(m.Lock(background))
		_ = lease.Release(background)
		holders := must(admin.Inspect(background, ops.Keeper, mutex.Kind, "x")).Holders
		if len(holders) == 1 {
			token = holders[0].Token
		}
		return len(holders) == 1
	})
	if b := must(admin.Break(background, ops.Keeper, mutex.Kind, "x", withToken(token))); len(b.Holders) != 1 {
		t.Errorf("%+v", b)
	}
	ops.eventually(func() bool { // the process learns of it, and does not grant turns any more
		theirs, err := other.TryLock(background)
		if err == nil {
			_ = theirs.Release(background)
			lease := must(m.Lock(background))
			defer func() { _ = lease.Release(background) }()
			return lease.Token() != token
		}
		return false
	})
}

// TestBreakRedlock checks that a redlock is lost when it is broken on a majority of its servers, and not on one alone.
func TestBreakRedlock(t *testing.T) {
	var ks, ops []*lockkeeper.Keeper
	for range 3 {
		s := miniredis.RunT(t)
		s.ClockTTL(true)
		for _, list := range []*[]*lockkeeper.Keeper{&ks, &ops} {
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
			k := must(lockkeeper.New(rdb, nil))
			t.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
			*list = append(*list, k)
		}
	}
	lock := must(redlock.New(ks, "x", &redlock.Options{TTL: 3 * time.Second}))
	lease := must(lock.Lock(background))
	// A majority has granted it; without the third one's reply, a break at one server could leave none.
	onAll := func(lease *lockkeeper.Lease) {
		for _, k := range ops {
			for len(must(admin.Inspect(background, k, redlock.Kind, "x")).Holders) == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		if err := lease.Extend(background, 3*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	onAll(lease)
	must(admin.Break(background, ops[0], redlock.Kind, "x", withToken(lease.Token())))
	if err := lease.Extend(background, 4*time.Second); err != nil {
		t.Errorf("broken on one of three servers: %v", err)
	}
	must(admin.Break(background, ops[1], redlock.Kind, "x", withToken(lease.Token())))
	if b := must(admin.Break(background, ops[2], redlock.Kind, "x", withToken(lease.Token()))); len(b.Holders) != 1 {
		t.Errorf("%+v", b)
	}
	<-lease.Done()
	isBroken(t, lease.Err(), lockkeeper.ErrLost)
	isBroken(t, lease.Release(background), lockkeeper.ErrLost)

	theirs := must(must(redlock.New(ops, "x", nil)).TryLock(background))
	onAll(theirs)
	again := must(lock.Adopt(background, theirs.Token()))
	for _, k := range ops {
		must(admin.Break(background, k, redlock.Kind, "x", withToken(theirs.Token())))
	}
	_, err := lock.Adopt(background, theirs.Token())
	isBroken(t, err, lockkeeper.ErrLost)
	// Its holder has lost a majority at the second break, and may have released the third part before that was broken.
	var parts *redlock.Error
	if errors.As(err, &parts) {
		told := 0
		for _, part := range parts.Servers {
			var broken *lockkeeper.BrokenError
			if errors.As(part.Err, &broken) && errors.Is(part.Err, lockkeeper.ErrLost) {
				told++
			}
		}
		if told < 2 {
			t.Errorf("%d of 3 servers say who has broken the lease: %v", told, err)
		}
	}
	isBroken(t, again.Release(background), lockkeeper.ErrLost)
	if err := must(must(redlock.New(ks, "x", nil)).TryLock(background)).Release(background); err != nil {
		t.Error(err)
	}
}

// TestBreakOnce checks that a job whose lease is broken is not recorded as done.
func TestBreakOnce(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	client := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: s.Addr()}) }
	ops, l := newLooker(t, client(), nil), newLooker(t, client(), nil)
	job := must(once.New(l.Keeper, "x", time.Hour, &once.Options{TTL: time.Second}))
	_, err := job.Do(background, func(ctx context.Context, _ uint64) error {
		b := must(admin.Break(background, ops.Keeper, once.Kind, "x", all))
		if len(b.Holders) != 1 {
			t.Errorf("%+v", b)
		}
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, lockkeeper.ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	isBroken(t, err, lockkeeper.ErrLost)
	// It learns of the break only by its record, which is refused.
	var dialer net.Dialer
	network := faultnet.New(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", s.Addr())
	})
	network.LoseMessages()
	cut := newLooker(t, redis.NewClient(network.Options(time.Second)), nil)
	_, err = must(once.New(cut.Keeper, "x", time.Hour, nil)).Do(background, func(context.Context, uint64) error {
		must(admin.Break(background, ops.Keeper, once.Kind, "x", all))
		return nil
	})
	isBroken(t, err, lockkeeper.ErrLost)
	if r := must(job.Status(background)); r.Outcome != once.None {
		t.Errorf("after the break: %+v", r)
	}
}

// TestBreakDuringExtend checks that a lease is lost whether the break comes before an Extend, after it, or between its request and
// the answer.
func TestBreakDuringExtend(t *testing.T) {
	for _, p := range breakable {
		t.Run(string(p.kind), func(t *testing.T) {
			onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
				k, ops := s.Keeper(t, nil), s.Keeper(t, nil)
				lock := must(p.open(k, time.Second))
				for range 20 {
					lease := must(lock.TryLock(background))
					extended := make(chan error)
					go func() { extended <- lease.Extend(background, 2*time.Second) }()
					must(admin.Break(background, ops, p.kind, "x", withToken(lease.Token())))
					if err := <-extended; err != nil && !errors.Is(err, lockkeeper.ErrLost) {
						t.Errorf("Extend: %v", err)
					}
					<-lease.Done()
					if err := lease.Err(); !errors.Is(err, lockkeeper.ErrLost) {
						t.Error(err)
					}
					if held := must(admin.Inspect(background, ops, p.kind, "x")).Holders; p.kind != "ratelimit" && len(held) != 0 {
						t.Errorf("held after the break: %+v", held)
					}
				}
			})
		})
	}
}

// TestBreakForeign checks that the key of another library is deleted, and that takings by the clock are not ended.
func TestBreakForeign(t *testing.T) {
	s := miniredis.RunT(t)
	ops := newLooker(t, redis.NewClient(&redis.Options{Addr: s.Addr()}), nil)
	_ = s.Set("lock:x", "their token")
	if b := must(admin.Break(background, ops.Keeper, mutex.Kind, "x", all)); len(b.Holders) != 1 || b.Notified != 0 || s.Exists("lock:x") {
		t.Errorf("%+v", b)
	}
	r := must(ratelimit.New(ops.Keeper, "x", 2, time.Minute, nil))
	must(r.Allow(background))
	if b := must(admin.Break(background, ops.Keeper, ratelimit.Kind, "x", all)); len(b.Holders) != 0 || must(r.Available(background)) != 1 {
		t.Errorf("%+v", b)
	}
	s.Del("lock:x")
	s.HSet("lock:x", "a", "b")
	if _, err := admin.Break(background, ops.Keeper, mutex.Kind, "x", all); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Error(err)
	}
}

// Permits that return by the clock are not held, so a break asks the server for none of them, however many there are.
func TestBreakSkipsPermitsThatReturnByTheClock(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer func() { _ = rdb.Close() }()
	k := must(lockkeeper.New(rdb, nil))
	defer func() { _ = k.Close() }()
	r := must(ratelimit.New(k, "x", 100, time.Minute, nil))
	for range 50 {
		must(r.Allow(background))
	}
	if i := must(admin.Inspect(background, k, ratelimit.Kind, "x")); !i.Limits.ByClock() || len(i.Holders) != 50 || i.Holders[0].ExpiresIn > time.Minute+time.Second {
		t.Errorf("%+v %+v", i.Limits, i.Holders[0])
	}
	before := m.CommandCount()
	b := must(admin.Break(background, k, ratelimit.Kind, "x", &admin.BreakOptions{All: true}))
	if n := m.CommandCount() - before; len(b.Holders) != 0 || n > 100 { // those of the script that lists them included
		t.Errorf("%d holders were broken with %d commands", len(b.Holders), n)
	}
}

func TestBreakInvalid(t *testing.T) {
	l := newLooker(t, noServer(t), nil)
	for what, o := range map[string]admin.BreakOptions{
		"neither Token nor All": {}, `Token "t"`: {Token: "t", All: true},
		"Reason has 257 bytes": {All: true, Reason: strings.Repeat("x", 257)}, `Reason "a\nb"`: {All: true, Reason: "a\nb"},
		"By has 257 bytes": {All: true, By: strings.Repeat("x", 257)}, `By "\xff"`: {All: true, By: "\xff"},
	} {
		if b, err := admin.Break(background, l.Keeper, mutex.Kind, "x", &o); b != nil || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, %v", what, b, err)
		}
	}
	if _, err := admin.Break(background, l.Keeper, mutex.Kind, "x", nil); !errors.Is(err, lockkeeper.ErrInvalid) {
		t.Errorf("without options: %v", err)
	}
	if _, err := admin.Break(background, l.Keeper, "lock", "x", all); !errors.Is(err, lockkeeper.ErrInvalid) {
		t.Error(err)
	}
	for want, e := range map[string]lockkeeper.BrokenError{`broken by "a"`: {By: "a"}, `broken by "a": b`: {By: "a", Reason: "b"}} {
		if got := fmt.Sprint(&e); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
