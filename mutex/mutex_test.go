package mutex_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/mutex"
)

//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

var primitive = conformance.Primitive{
	Kind: "mutex",
	Key:  func(name string) string { return "lock:" + name },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		return mutex.New(k, name, &mutex.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
	},
	Cases: conformance.Foreign,
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}
