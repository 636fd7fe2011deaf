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
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// TestAConversionThatIsNotAcknowledgedLosesTheLease: the server has ended the old one, and the new one is given back.
func TestAConversionThatIsNotAcknowledgedLosesTheLease(t *testing.T) {
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
				k, err := lockkeeper.New(rdb, o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = k.Close(); _ = rdb.Close() })
				l, err := rwlock.New(k, "x", &rwlock.Options{TTL: 20 * time.Second, NoRenewal: true})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			acknowledged := &lockkeeper.Options{Acknowledge: lockkeeper.Acknowledgement{Replicas: 1, Within: 50 * time.Millisecond}}
			l, other := keeper(acknowledged), keeper(nil)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			replicas.Store(1)
			var old *lockkeeper.Lease
			var err error
			if how == "upgrade" {
				old, err = l.RLock(ctx)
			} else {
				old, err = l.Lock(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
			replicas.Store(0)
			if how == "upgrade" {
				_, err = l.Upgrade(ctx, old)
			} else {
				_, err = l.Downgrade(ctx, old)
			}
			var not *lockkeeper.NotAcknowledgedError
			if !errors.As(err, &not) {
				t.Fatalf("%v", err)
			}
			if err := old.Err(); !errors.Is(err, lockkeeper.ErrLost) {
				t.Errorf("the old lease is believed: %v", err)
			}
			second, err := other.Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := second.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
