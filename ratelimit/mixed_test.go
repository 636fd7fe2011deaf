package ratelimit_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// TestLeaseKeepsItsFenceBesideCallersWithoutLeases changes the limits to those of a Limiter while a lease is held, whose permit
// returns by the clock meanwhile.
func TestLeaseKeepsItsFenceBesideCallersWithoutLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkeepertest.New(t).Keeper(t, nil)
		with := must.Get(ratelimit.NewConcurrent(k, "api", 2, time.Second, 2, nil))(t)
		without := must.Get(ratelimit.New(k, "api", 6, time.Second, nil))(t)
		lease := must.Get(with.TryAcquire(t.Context()))(t)
		for range 3 {
			if r, err := without.Allow(t.Context()); err != nil || !r.Allowed {
				t.Fatal(r, err)
			}
			time.Sleep(1100 * time.Millisecond)
		}
		another := must.Get(with.TryAcquire(t.Context()))(t) // Holders lists leases again
		fences := map[string]uint64{}
		for _, h := range must.Get(with.Holders(t.Context()))(t) {
			fences[h.Token] = h.Fence
		}
		if fences[lease.Token()] != lease.Fence() {
			t.Errorf("the lease's fence is %d, was %d", fences[lease.Token()], lease.Fence())
		}
		must.OK(t, another.Release(t.Context()))
		must.OK(t, lease.Release(t.Context()))
	})
}

// TestAnswerAsTheCallerLeaves lets answers come when the context of the call ends, before, and after that: nothing is written any more to
// what the caller has been given, which the race detector would find.
func TestAnswerAsTheCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		l := must.Get(ratelimit.New(s.Keeper(t, nil), "api", 1000, time.Minute, nil))(t)
		must.Get(l.Allow(t.Context()))(t) // the server knows the scripts from now on
		s.SlowAnswers(time.Millisecond)
		answered := 0
		for i := range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
			r, err := l.Allow(ctx)
			switch {
			case err == nil && r.Allowed && r.Limit == 1000:
				answered++
			case err == nil || !errors.Is(err, context.DeadlineExceeded) || r != (ratelimit.Result{}):
				t.Errorf("%d: %+v, %v", i, r, err)
			}
			time.Sleep(10 * time.Millisecond)
			cancel()
		}
		if answered == 0 || answered == 60 {
			t.Errorf("%d of 60 calls were answered in time", answered)
		}
	})
}

// TestReplicaAckOfLostPermit checks that a call returns although the server has lost its permit before replicas could have it.
func TestReplicaAckOfLostPermit(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		rdb := redis.NewClient(s.Network().Options(time.Second))
		defer func() { must.OK(s, rdb.Close()) }()
		must.OK(s, rdb.Ping(context.Background()).Err()) // the server exists from now on
		var loses atomic.Bool
		s.Mini.Server().SetPreHook(func(c *server.Peer, command string, args ...string) bool {
			if command == "EVALSHA" && args[0] == lua.RateLimit.Acquire.SHA && loses.Load() { // it repeats the request, for the replicas
				s.Mini.FlushAll()
			}
			if command == "WAIT" {
				c.WriteInt(1)
			}
			return command == "WAIT"
		})
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1}}))(s)
		l := must.Get(ratelimit.New(k, "x", 10, time.Minute, nil))(s)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for range 2 { // the first loads the scripts
			must.Get(l.Allow(ctx))(s)
		}
		loses.Store(true)
		if _, err := l.Allow(ctx); !errors.Is(err, lockkeeper.ErrLost) || ctx.Err() != nil {
			s.Errorf("error %v, want ErrLost", err)
		}
		must.OK(s, k.Close())
	})
}
