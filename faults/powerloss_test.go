package faults

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
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
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	size := func() int64 { // all that was answered has been written by then
		info := must.Get(os.Stat(files[0]))(t)
		return info.Size()
	}
	durable := size()
	lost := held("lost", mutex.Options{TTL: ttl})
	must.OK(t, released.Release(t.Context()))
	if size() == durable {
		t.Fatal("nothing was written")
	}
	s.Kill()
	must.OK(t, os.Truncate(files[0], durable))
	s.Restart()

	second, err := lock(keepers[1], "lost", mutex.Options{TTL: ttl})
	if err != nil {
		t.Fatal("the grant was not forgotten:", err)
	}
	if second.Fence() <= lost.Fence() {
		t.Errorf("fence %d after %d", second.Fence(), lost.Fence())
	}
	select {
	case <-lost.Done():
	case <-time.After(ttl):
	}
	if err := lost.Err(); !errors.Is(err, lockkeeper.ErrLost) {
		t.Errorf("the first holder: %v", err)
	}
	if err := second.Err(); err != nil {
		t.Errorf("the second holder: %v", err)
	}
	if _, err := lock(keepers[1], "released", mutex.Options{}); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		t.Errorf("the release was not forgotten: %v", err)
	}
	if err := kept.Extend(t.Context(), time.Minute); err != nil {
		t.Errorf("a lease of before: %v", err)
	}
}
