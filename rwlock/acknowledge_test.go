package rwlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// withReplicas returns what opens a lock, in a process of its own, on a server of which so many replicas acknowledge.
func withReplicas(t *testing.T, acknowledge func() int) func(lockkeeper.ReplicaAck) *rwlock.Lock {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		if command != "WAIT" {
			return false
		}
		c.WriteInt(acknowledge())
		return true
	})
	return func(a lockkeeper.ReplicaAck) *rwlock.Lock {
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: a}))(t)
		t.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
		return must.Get(rwlock.New(k, "x", nil))(t)
	}
}

// TestUnacknowledgedConversionLosesLease checks that the old lease has ended and the new one is released.
func TestUnacknowledgedConversionLosesLease(t *testing.T) {
	var replicas atomic.Int64
	open := withReplicas(t, func() int { return int(replicas.Load()) })
	l, other := open(lockkeeper.ReplicaAck{Replicas: 1, Timeout: 50 * time.Millisecond}), open(lockkeeper.ReplicaAck{})
	for how, x := range map[string]struct {
		acquire func(context.Context) (*lockkeeper.Lease, error)
		convert func(context.Context, *lockkeeper.Lease) (*lockkeeper.Lease, error)
	}{"downgrade": {l.Lock, l.Downgrade}, "upgrade": {l.RLock, l.Upgrade}} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		replicas.Store(1)
		old := must.Get(x.acquire(ctx))(t)
		replicas.Store(0)
		_, err := x.convert(ctx, old)
		var not *lockkeeper.NotAcknowledgedError
		if !errors.As(err, &not) || !errors.Is(old.Err(), lockkeeper.ErrLost) {
			t.Errorf("%s: %v; the old lease: %v", how, err, old.Err())
		}
		must.OK(t, must.Get(other.Lock(ctx))(t).Release(ctx))
	}
}

// TestConversionAwaitsReplicaAckAfterCancel checks that a cancelled conversion still waits for replicas: the server
// has ended the old lease, so only the new one is left.
func TestConversionAwaitsReplicaAckAfterCancel(t *testing.T) {
	var ends atomic.Pointer[context.CancelFunc]
	l := withReplicas(t, func() int {
		if cancel := ends.Load(); cancel != nil {
			(*cancel)()
			time.Sleep(20 * time.Millisecond) // gives a call that does not wait the time to return
		}
		return 1
	})(lockkeeper.ReplicaAck{Replicas: 1})
	lease := must.Get(l.Lock(t.Context()))(t)
	for _, convert := range []func(context.Context, *lockkeeper.Lease) (*lockkeeper.Lease, error){l.Downgrade, l.Upgrade} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ends.Store(&cancel)
		lease = must.Get(convert(ctx, lease))(t)
		if err := lease.Err(); err != nil || ctx.Err() == nil {
			t.Fatalf("the lease: %v, the context: %v", err, ctx.Err())
		}
	}
	must.Report(t, lease.Release(t.Context()))
}
