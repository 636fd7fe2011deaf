package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// TestLeaseKeepsItsFenceBesideCallersWithoutLeases changes the limits to those of a Limiter while a lease is held, whose permit
// returns by the clock meanwhile.
func TestLeaseKeepsItsFenceBesideCallersWithoutLeases(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx := context.Background()
		rdb := redis.NewClient(s.Network().Options(time.Second))
		k, err := lockkeeper.New(rdb, nil)
		must(err)
		with, err := ratelimit.NewConcurrent(k, "api", 2, time.Second, 2, nil)
		must(err)
		without, err := ratelimit.New(k, "api", 6, time.Second, nil)
		must(err)
		lease, err := with.TryAcquire(ctx)
		must(err)
		for range 3 {
			if r, err := without.Allow(ctx); err != nil || !r.Allowed {
				t.Fatal(r, err)
			}
			time.Sleep(1100 * time.Millisecond)
		}
		another, err := with.TryAcquire(ctx) // Holders lists leases again
		must(err)
		holders, err := with.Holders(ctx)
		must(err)
		found := false
		for _, h := range holders {
			if h.Token == lease.Token() {
				found = true
				if h.Fence != lease.Fence() {
					t.Errorf("its fence is %d, was %d", h.Fence, lease.Fence())
				}
			}
		}
		if !found {
			t.Errorf("the lease is not among %v", holders)
		}
		must(another.Release(ctx))
		must(lease.Release(ctx))
		must(k.Close())
		must(rdb.Close())
	})
}
