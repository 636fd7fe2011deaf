package semaphore_test

import (
	"context"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

// primitive is a semaphore of which everybody wants all permits: so it must be as good a lock as the others. What it does
// besides is in conformance.Permits.
var primitive = conformance.Primitive{
	Kind: "semaphore",
	Key:  func(name string) string { return "{lock:" + name + "}:semaphore:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		s, err := semaphore.New(k, name, 3, &semaphore.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
		if err != nil {
			return nil, err
		}
		all, err := s.LockerN(3)
		return whole{all, s}, err
	},
	Fair:  true,
	Cases: conformance.Permits,
}

// whole is all of a semaphore.
type whole struct {
	lockkeeper.Locker
	*semaphore.Semaphore
}

func (w whole) Name() string { return w.Locker.Name() }
func (w whole) Key() string  { return w.Locker.Key() }

func (w whole) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return w.Semaphore.DoN(ctx, 3, fn)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}
