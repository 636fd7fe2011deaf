package lockkeepertest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// afterReport calls f when failuresOf has returned.
func afterReport(t testing.TB, f func()) { t.(*recorder).TB.Cleanup(f) }

// TestLeaksAreReported: and nothing that is not a leak.
func TestLeaksAreReported(t *testing.T) {
	t.Parallel()
	try := func(t testing.TB, k *lockkeeper.Keeper) *lockkeeper.Lease {
		m := must.Get(mutex.New(k, "x", nil))(t)
		return must.Get(m.TryLock(context.Background()))(t)
	}
	read := func(t testing.TB, s *lockkeepertest.Server, linger time.Duration) {
		l := must.Get(rwlock.New(s.Keeper(t, nil), "x", &rwlock.Options{Linger: linger}))(t)
		_ = l.DoRead(t.Context(), func(context.Context, uint64) error { return nil })
	}
	for what, x := range map[string]struct {
		test func(t testing.TB, s *lockkeepertest.Server)
		want string // "" for nothing
	}{
		"released":    {func(t testing.TB, s *lockkeepertest.Server) { _ = try(t, s.Keeper(t, nil)).Release(t.Context()) }, ""},
		"nothing":     {func(t testing.TB, s *lockkeepertest.Server) { s.Keeper(t, nil) }, ""},
		"held":        {func(t testing.TB, s *lockkeepertest.Server) { try(t, s.Keeper(t, nil)) }, `mutex "lock:x" is held`},
		"unreachable": {func(t testing.TB, s *lockkeepertest.Server) { try(t, s.Keeper(t, nil)); s.Unreachable() }, `mutex "lock:x" is held`},
		"crashed":     {func(t testing.TB, s *lockkeepertest.Server) { try(t, s.Keeper(t, nil)); s.CrashHolder(t, "x") }, ""},
		"stolen":      {func(t testing.TB, s *lockkeepertest.Server) { try(t, s.Keeper(t, nil)); s.StealLock(t, "x") }, ""},
		"lost":        {func(t testing.TB, s *lockkeepertest.Server) { try(t, s.Keeper(t, nil)); s.LoseLease(t, "x") }, ""},
		"permits": {func(t testing.TB, s *lockkeepertest.Server) {
			sem := must.Get(semaphore.New(s.Keeper(t, &lockkeeper.Options{NoPrefix: true}), "a{b}c", 3, nil))(t)
			_, _ = sem.TryAcquireN(t.Context(), 2)
		}, `semaphore "a{b}c" is held`},
		"lingers":        {func(t testing.TB, s *lockkeepertest.Server) { read(t, s, time.Second) }, ""},
		"lingers longer": {func(t testing.TB, s *lockkeepertest.Server) { read(t, s, 5*time.Second) }, `rwlock "lock:x" is held`},
		"keeper": {func(t testing.TB, s *lockkeepertest.Server) {
			k := must.Get(lockkeeper.New(s.Client(t), nil))(t)
			try(t, k)
			afterReport(t, func() { _ = k.Close() })
		}, `mutex "lock:x" is held`},
		"waiter": {func(t testing.TB, s *lockkeepertest.Server) {
			k := must.Get(lockkeeper.New(s.Client(t), nil))(t)
			lease := try(t, s.Keeper(t, nil))
			m, _ := mutex.New(k, "x", nil)
			afterReport(t, func() { _ = k.Close() })
			go func() { _, _ = m.Lock(context.Background()) }()
			s.RequireWaiting(t, "x", 1)
			_ = lease.Extend(t.Context(), time.Minute)
			s.LoseLease(t, "x")
			foreign := s.Client(t)
			_ = foreign.Set(t.Context(), "lock:x", "someone", time.Minute)
		}, "goroutine of a keeper"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // goroutines of the other tests do not count
			got := failuresOf(t, func(t testing.TB) { x.test(t, newOn(t, "")) })
			all := strings.Join(got, "\n")
			check.That(t, (x.want != "" || len(got) == 0) && strings.Contains(all, x.want), "reported: %q, want %q", got, x.want)
		})
	}
}
