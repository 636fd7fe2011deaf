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

// TestUnacknowledgedConversionLosesLease checks that the old lease has ended and the new one is released.
func TestUnacknowledgedConversionLosesLease(t *testing.T) {
	for _, how := range []string{"downgrade", "upgrade"} {
		t.Run(how, func(t *testing.T) {
			m := miniredis.RunT(t)
			m.ClockTTL(true)
			var replicas atomic.Int64
			m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
				if command == "WAIT" {
					c.WriteInt(int(replicas.Load()))
					return true
				}
				return false
			})
			keeper := func(o *lockkeeper.Options) *rwlock.Lock {
				rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
				k := must.Get(lockkeeper.New(rdb, o))(t)
				t.Cleanup(func() { _ = k.Close(); _ = rdb.Close() })
				return must.Get(rwlock.New(k, "x", &rwlock.Options{TTL: 20 * time.Second, NoRenewal: true}))(t)
			}
			acknowledged := &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 50 * time.Millisecond}}
			l, other := keeper(acknowledged), keeper(nil)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			acquire, convert := l.Lock, l.Downgrade
			if how == "upgrade" {
				acquire, convert = l.RLock, l.Upgrade
			}
			replicas.Store(1)
			old := must.Get(acquire(ctx))(t)
			replicas.Store(0)
			_, err := convert(ctx, old)
			var not *lockkeeper.NotAcknowledgedError
			if !errors.As(err, &not) {
				t.Fatalf("%v", err)
			}
			if err := old.Err(); !errors.Is(err, lockkeeper.ErrLost) {
				t.Errorf("the old lease is still held: %v", err)
			}
			second := must.Get(other.Lock(ctx))(t)
			must.Report(t, second.Release(ctx))
		})
	}
}

// TestConversionAwaitsReplicaAckAfterCancel checks that a cancelled conversion still waits for replicas: the server
// has ended the old lease, so only the new one is left.
func TestConversionAwaitsReplicaAckAfterCancel(t *testing.T) {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	var ends atomic.Pointer[context.CancelFunc]
	m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		if command != "WAIT" {
			return false
		}
		if cancel := ends.Load(); cancel != nil {
			(*cancel)()
			time.Sleep(20 * time.Millisecond) // gives a call that does not wait the time to return
		}
		c.WriteInt(1)
		return true
	})
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1}}))(t)
	t.Cleanup(func() { _ = k.Close(); _ = rdb.Close() })
	l := must.Get(rwlock.New(k, "x", nil))(t)
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
