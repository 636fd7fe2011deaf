package redlock_test

import (
	"os"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/redlock"
)

func TestMain(m *testing.M) {
	if os.Getenv(childServers) != "" {
		child()
		return
	}
	conformance.Main(m, primitive)
}

var primitive = conformance.Primitive{
	Kind:         "redlock",
	MajorityLock: true,
	Key:          func(name string) string { return "lock:" + name },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		return redlock.New([]*lockkeeper.Keeper{k}, name, &redlock.Options{
			TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime,
			ServerTimeout: o.TTL / 2, // the leases are short, and the machine may be busy
			MaxRetryDelay: 100 * time.Millisecond,
		})
	},
	Cases: conformance.Foreign,
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, primitive)
}
