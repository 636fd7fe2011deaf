package mutex_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/conform"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func TestMain(m *testing.M) { conform.Main(m, primitive) }

var primitive = conform.Primitive{
	Kind: "mutex",
	Key:  func(name string) string { return "lock:" + name },
	New: func(k *lockkeeper.Keeper, name string, o conform.Options) (conform.Locker, error) {
		return mutex.New(k, name, &mutex.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
	},
	Cases: conform.Foreign,
}

func TestConformance(t *testing.T) { conform.All(t, primitive) }
