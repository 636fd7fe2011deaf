package faults

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// TestPowerLossForgetsLastWrites cuts the append-only file of a killed server back to a former length, as a power failure does to the
// writes that everysec has not made durable. A grant that is forgotten can be given again, with a larger fence; a release that is
// forgotten leaves the lock taken until its ttl has passed.
func TestPowerLossForgetsLastWrites(t *testing.T) {
	const ttl = 3 * time.Second
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	keepers := make([]*lockkeeper.Keeper, 2)
	for i := range keepers {
		k := must.Get(lockkeeper.New(s.Client(), &lockkeeper.Options{Logger: silent}))(t)
		t.Cleanup(func() { _ = k.Close() })
		keepers[i] = k
	}
	lock := func(k *lockkeeper.Keeper, name string, o mutex.Options) (*lockkeeper.Lease, error) {
		t.Helper()
		m := must.Get(mutex.New(k, name, &o))(t)
		return m.TryLock(t.Context())
	}
	held := func(name string, o mutex.Options) *lockkeeper.Lease {
		t.Helper()
		return must.Get(lock(keepers[0], name, o))(t)
	}
	kept := held("kept", mutex.Options{TTL: time.Minute})
	released := held("released", mutex.Options{TTL: time.Minute, NoRenewal: true})
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	must.That(t, err == nil && len(files) == 1, "%q, %v", files, err)
	size := func() int64 { // all that was answered has been written by then
		info := must.Get(os.Stat(files[0]))(t)
		return info.Size()
	}
	durable := size()
	lost := held("lost", mutex.Options{TTL: ttl})
	must.OK(t, released.Release(t.Context()))
	must.That(t, size() != durable, "nothing was written")
	s.Kill()
	must.OK(t, os.Truncate(files[0], durable))
	s.Restart()

	second, err := lock(keepers[1], "lost", mutex.Options{TTL: ttl})
	if err != nil {
		t.Fatal("the grant was not forgotten:", err)
	}
	check.That(t, second.Fence() > lost.Fence(), "fence %d after %d", second.Fence(), lost.Fence())
	select {
	case <-lost.Done():
	case <-time.After(ttl):
	}
	check.Is(t, lost.Err(), lockkeeper.ErrLost, "the first holder")
	check.Is(t, second.Err(), nil, "the second holder")
	check.Is(t, check.ErrorOf(lock(keepers[1], "released", mutex.Options{})), lockkeeper.ErrNotAcquired, "the release was not forgotten")
	check.Is(t, kept.Extend(t.Context(), time.Minute), nil, "a lease of before")
}
