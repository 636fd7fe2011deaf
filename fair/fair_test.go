package fair_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/conform"
)

func TestMain(m *testing.M) { conform.Main(m, primitive) }

var primitive = conform.Primitive{
	Kind: "fair",
	Key:  func(name string) string { return "{lock:" + name + "}:fair:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conform.Options) (conform.Locker, error) {
		return fair.New(k, name, &fair.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
	},
	Fair:  true,
	Cases: conform.Fair,
}

func TestConformance(t *testing.T) { conform.All(t, primitive) }
