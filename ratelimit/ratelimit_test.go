package ratelimit_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

func TestMain(m *testing.M) { conformance.Main(m, primitive) }

// primitive is a limiter with leases. The cases of all locks are run with the semaphore, whose scripts these are.
var primitive = conformance.Primitive{
	Kind: "ratelimit",
	Key:  func(name string) string { return "{lock:" + name + "}:ratelimit:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		l, err := ratelimit.New(k, name, math.MaxInt32/4, time.Second, &ratelimit.Options{
			MaxConcurrent: 1, TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime,
		})
		return one{l}, err
	},
	Fair:  true,
	Cases: conformance.RateLimits,
}

// one is a limiter of which one permit is held at a time.
type one struct{ *ratelimit.Limiter }

func (l one) Lock(ctx context.Context) (*lockkeeper.Lease, error)    { return l.Acquire(ctx) }
func (l one) TryLock(ctx context.Context) (*lockkeeper.Lease, error) { return l.TryAcquire(ctx) }

func (l one) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	list, err := l.Limiter.Waiters(ctx)
	var all []lockkeeper.Waiter
	for _, x := range list {
		all = append(all, x.Waiter)
	}
	return all, err
}

func TestConformance(t *testing.T) { conformance.RunOwn(t, primitive) }

// TestProcesses: with leases a limiter is as good a lock as the others, also between real processes.
func TestProcesses(t *testing.T) { conformance.Processes(t, primitive) }

func TestDocumentedACL(t *testing.T) { conformance.Rights(t, primitive) }
