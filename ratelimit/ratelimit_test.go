package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

// primitive is a limiter of which one permit is held at a time, so it must be as good a lock as the others. What it does besides
// is in conformance.RateLimits.
var primitive = conformance.Primitive{
	Kind: "ratelimit",
	Key:  func(name string) string { return "{lock:" + name + "}:ratelimit:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		l, err := ratelimit.NewConcurrent(k, name, math.MaxInt32/4, window, 1, &ratelimit.ConcurrentOptions{
			TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime,
		})
		if err != nil {
			return nil, err
		}
		return withLeases{l.Locker(), l}, nil
	},
	Fair:   true,
	Window: window,
	Cases:  conformance.RateLimits,
}

// leaseless is a limiter without leases that grants one permit in each window.
var leaseless = conformance.Primitive{
	Kind: "ratelimit",
	Key:  primitive.Key,
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		l, err := ratelimit.New(k, name, 1, o.TTL, nil)
		return withoutLeases{l}, err
	},
	Fair:   true,
	Window: window,
	Only:   conformance.Leaseless,
	Slow:   []string{"08_wait_cancelled_during_grant_cleans_up", "30_waiters_served_in_order"}, // they take many windows
}

const window = time.Second

// withLeases is a ConcurrentLimiter as a lock.
type withLeases struct {
	lockkeeper.Locker
	*ratelimit.ConcurrentLimiter
}

func (l withLeases) Name() string { return l.Locker.Name() }
func (l withLeases) Key() string  { return l.Locker.Key() }

// withoutLeases is a limiter as a lock whose lease is nil, which behaves like one that was released.
type withoutLeases struct{ *ratelimit.Limiter }

func (l withoutLeases) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return nil, l.Wait(ctx) }

func (withoutLeases) Adopt(context.Context, string) (*lockkeeper.Lease, error) {
	return nil, errors.New("there are no leases")
}

func (l withoutLeases) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	r, err := l.Allow(ctx)
	if err == nil && !r.Allowed {
		err = lockkeeper.ErrNotAcquired
	}
	return nil, err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}

func TestConformanceWithoutLeases(t *testing.T) {
	t.Parallel()
	conformance.Run(t, leaseless)
}
