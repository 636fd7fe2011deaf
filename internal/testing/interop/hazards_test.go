package interop

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// TestPythonRedisLockIsNotWokenByOurRelease: a waiter of python-redis-lock sleeps until one of its own kind releases,
// and for ever if its lock has no expiry and it has no timeout.
func TestPythonRedisLockIsNotWokenByOurRelease(t *testing.T) {
	w := newWorld(t, library{language: python, name: "python-redis-lock without expire", prefix: "lock:"})
	lease := must.Get(w.mutex(lockkeeper.Hooks{}).Lock(w.ctx))(w)
	they := w.start()
	they.send("lock")
	blocked := func(ctx context.Context, rdb redistest.Client) (string, error) {
		info, err := rdb.Info(ctx, "clients").Result()
		if strings.Contains(info, "\r\nblocked_clients:1\r\n") {
			return "blocked", err
		}
		return info, err
	}
	w.s.Await("blocked", blocked)
	must.OK(w, lease.Release(w.ctx))
	if got, err := blocked(w.ctx, w.rdb); got != "blocked" { // the release would have woken it before it was answered
		t.Errorf("after our release the waiter is not blocked: %s, %v", got, err)
	}
	w.requireValue("")
	must.OK(w, w.rdb.LPush(w.ctx, "lock-signal:"+lockName, 1).Err()) // as a release of its own kind does
	they.answer("acquired")
}

// TestPythonRedisLockResetAllEndsOurLeases: reset_all deletes every key that begins with "lock:", the prefix of both
// libraries, and so the leases of mutexes and of names with a hash tag; their holders are told. Another prefix is safe.
func TestPythonRedisLockResetAllEndsOurLeases(t *testing.T) {
	w := newWorld(t, library{language: python, name: "python-redis-lock", prefix: "lock:"})
	usual, other := w.keeper(nil), w.keeper(&lockkeeper.Options{Prefix: "shop:lock:"})
	mutexOf := func(k *lockkeeper.Keeper, name string) *lockkeeper.Lease {
		return must.Get(must.Get(mutex.New(k, name, &mutex.Options{TTL: ttl}))(w).Lock(w.ctx))(w)
	}
	fairOf := func(name string) *lockkeeper.Lease {
		return must.Get(must.Get(fair.New(usual, name, &fair.Options{TTL: ttl}))(w).Lock(w.ctx))(w)
	}
	lost := map[string]*lockkeeper.Lease{"mutex": mutexOf(usual, "job"), "fair lock with a hash tag": fairOf("{tenant}:job")}
	kept := map[string]*lockkeeper.Lease{"fair lock": fairOf("job"), "mutex with another prefix": mutexOf(other, "job")}

	w.start().ask("reset", "reset")
	for name, lease := range lost {
		select {
		case <-lease.Done(): // told by its next renewal
		case <-w.ctx.Done():
			t.Fatalf("the holder of the %s has not been told", name)
		}
		err := lease.Err()
		check.That(t, errors.Is(err, lockkeeper.ErrLost) && !errors.Is(err, lockkeeper.ErrUnavailable), "%s: %v, want ErrLost", name, err)
	}
	for name, lease := range kept {
		err := lease.Extend(w.ctx, ttl)
		check.That(t, err == nil, "%s: %v, want it held", name, err)
	}
}

// TestRedissonLocksFailLoudly: Redisson's locks are hashes. On the key of a mutex both sides get WRONGTYPE, so that
// neither believes that it holds what the other holds.
func TestRedissonLocksFailLoudly(t *testing.T) {
	for _, name := range []string{"Redisson RLock", "Redisson fair lock", "Redisson spin lock"} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			w := newWorld(t, library{language: java, name: name})
			m, they := w.mutex(lockkeeper.Hooks{}), w.start()
			lease := must.Get(m.Lock(w.ctx))(w)
			they.ask("try", "error: org.redisson.client.RedisException: WRONGTYPE")
			must.OK(w, lease.Release(w.ctx))

			they.ask("try", "acquired")
			for _, lock := range []func(context.Context) (*lockkeeper.Lease, error){m.TryLock, m.Lock} {
				lease, err := lock(w.ctx)
				check.That(t, err != nil && strings.Contains(err.Error(), "WRONGTYPE") && !errors.Is(err, lockkeeper.ErrNotAcquired),
					"while they hold: %v, %v; want WRONGTYPE", lease, err)
			}
			they.ask("release", "released")
		})
	}
}
