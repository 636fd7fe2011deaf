package mutex_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func TestRetainedMutex(t *testing.T) {
	retaining.Test(t, func(k *lockkeeper.Keeper, o retaining.Options) (retaining.Lock, error) {
		l, err := mutex.New(k, "x", &mutex.Options{Retain: o.Retain, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
		return retaining.Lock{Inside: l.Lock, Alone: l.Lock, TryAlone: l.TryLock, Do: l.Do, Adopt: l.Adopt, Kind: mutex.Kind, Turns: true}, err
	})
}
