package lockkeeper_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/testing/growth"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// heldLease is a lease without a server.
type heldLease struct {
	lifecycle.Lifecycle
	name string
}

func (h *heldLease) Name() string                                { return h.name }
func (h *heldLease) Token() string                               { return h.name }
func (h *heldLease) Fence() uint64                               { return 1 }
func (h *heldLease) Deadline() time.Time                         { return time.Time{} }
func (h *heldLease) CheckDeadline()                              {}
func (h *heldLease) Extend(context.Context, time.Duration) error { return nil }

func (h *heldLease) Release(context.Context) error {
	h.End(lockkeeper.ErrReleased)()
	return nil
}

// freeLock is a lock without a server, which is free.
type freeLock string

func (l freeLock) Name() string { return string(l) }
func (l freeLock) Key() string  { return string(l) }

func (l freeLock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := &heldLease{name: string(l)}
	h.Begin(h)
	return access.Lease[lockkeeper.Lease](h, nil)
}

func (l freeLock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) { return l.Lock(ctx) }

// TestLockAllCostsTheSameForEachLock checks that a lock among many needs no more memory than one among few.
func TestLockAllCostsTheSameForEachLock(t *testing.T) {
	bytes := func(n int) func() int64 { // for each of n locks that are acquired together
		return func() int64 {
			lockers := make([]lockkeeper.Locker, n)
			for i := range lockers {
				lockers[i] = freeLock(fmt.Sprint("x", i))
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			must.OK(t, must.Get(lockkeeper.LockAll(t.Context(), lockers...))(t).Release(t.Context()))
			runtime.ReadMemStats(&after)
			return int64(after.TotalAlloc-before.TotalAlloc) / int64(n)
		}
	}
	growth.AtMost(t, 3, bytes(40), bytes(800))
}

// TestLeasesKeepNothingOfCalls checks that loops around Done, and around Context with a parent that never ends, need no memory that
// lasts as long as the leases.
func TestLeasesKeepNothingOfCalls(t *testing.T) {
	onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		x, y := kindsOf(t, k, "x"), kindsOf(t, k, "y")
		all := must.Get(lockkeeper.LockAll(context.Background(), x.mutex, x.fair, y.write))(t)
		one := all.Of(x.mutex)
		for what, call := range map[string]func(){
			"Leases.Done":    func() { all.Done() },
			"Leases.Context": func() { all.Context(context.Background()) },
			"Leases.Context, without cancel": func() {
				all.Context(context.WithValue(context.Background(), kinds{}, 1))
			},
			"Lease.Done":    func() { one.Done() },
			"Lease.Context": func() { one.Context(context.Background()) },
		} {
			objects := func() uint64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m.HeapObjects
			}
			const n = 20_000
			before := objects()
			for range n {
				call()
			}
			if after := objects(); after > before+n/4 {
				t.Errorf("%s leaves %d objects of %d calls", what, after-before, n)
			}
		}
		done, ctx, derived := all.Done(), all.Context(context.Background()), all.Context(t.Context())
		if all.Err() != nil || ctx.Err() != nil || derived.Err() != nil || lockkeeper.LeaseFromContext(ctx) == nil {
			t.Errorf("%v, %v, %v", all.Err(), ctx.Err(), derived.Err())
		}
		must.OK(t, one.Release(context.Background()))
		select { // at once, not some time later
		case <-done:
		default:
			t.Error("Done is open")
		}
		if context.Cause(ctx) == nil || context.Cause(derived) == nil || all.Context(context.Background()).Err() == nil {
			t.Error("a context has not ended")
		}
		must.OK(t, all.Release(context.Background()))
	})
}
