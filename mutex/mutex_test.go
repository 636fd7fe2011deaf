package mutex_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
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

func TestRetainedMutex(t *testing.T) {
	retaining.Test(t, func(k *lockkeeper.Keeper, o retaining.Options) (retaining.Lock, error) {
		l, err := mutex.New(k, "x", &mutex.Options{Retain: o.Retain, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
		return retaining.Lock{Inside: l.Lock, Alone: l.Lock, TryAlone: l.TryLock, Do: l.Do, Adopt: l.Adopt, Kind: mutex.Kind, Turns: true}, err
	})
}
