package rwlock_test

import (
	"context"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

// primitive is the lock for writing, which must pass the tests of every lock. conformance.ReadWrite has the tests of
// readers.
var primitive = conformance.Primitive{
	Kind: "rwlock",
	Key:  func(name string) string { return "{lock:" + name + "}:rwlock:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		l, err := rwlock.New(k, name, &rwlock.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
		return writing{l}, err
	},
	Fair:  true,
	Cases: conformance.ReadWrite,
}

type rw = rwlock.Lock

// writing adapts the lock for writing to conformance.Locker.
type writing struct{ *rw }

func (w writing) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return w.DoWrite(ctx, fn)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}

func TestLingerOnServers(t *testing.T) {
	t.Parallel()
	conformance.Linger(t)
}
