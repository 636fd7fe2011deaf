package fair_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
)

// TestMain is not inlined: otherwise the generated main package would compile the generic code of go-redis again.
//
//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

var primitive = conformance.Primitive{
	Kind: "fair",
	Key:  func(name string) string { return "{lock:" + name + "}:fair:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		return fair.New(k, name, &fair.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
	},
	Fair: true,
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}
