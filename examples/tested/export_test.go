package tested

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// start starts an exporter in a process of its own, and returns a function that waits for its end.
func start(t *testing.T, s *lockkeepertest.Server, name string, store *Store, o *lockkeeper.Options) (wait func() error) {
	t.Helper()
	e, err := NewExporter(name, s.Keeper(t, o), store)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- e.Run(t.Context()) }()
	return func() error { return <-ended }
}

func TestExporterGoesOnAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		var r lockkeepertest.Recorder
		store := new(Store)
		wait := start(t, s, "a", store, &lockkeeper.Options{Hooks: r.Hooks()})
		time.Sleep(30*perPage + perPage/2)
		s.LoseLease(t, lockName)
		r.Require(t, "Lost", lockName)
		s.RequireHeld(t, lockName) // again
		if err := wait(); err != nil {
			t.Error(err)
		}
		if n, err := store.Pages(store.fence); n != pages || err != nil {
			t.Errorf("%d pages, %v", n, err)
		}
		s.RequireFree(t, lockName)
	})
}

func TestLateExporterIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		store := new(Store)
		wait := start(t, s, "a", store, nil)
		time.Sleep(5 * perPage)
		thief := s.StealLock(t, lockName) // a does not know it yet
		if _, err := store.Pages(thief.Fence()); err != nil {
			t.Error(err)
		}
		if err := store.Add(store.fence-1, "a"); !errors.Is(err, ErrStale) {
			t.Errorf("a late write: %v", err)
		}
		if err := thief.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestSecondExporterTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		store := new(Store)
		a := start(t, s, "a", store, nil)
		s.RequireHeld(t, lockName)
		b := start(t, s, "b", store, nil)
		s.RequireWaiting(t, lockName, 1)
		s.CrashHolder(t, lockName)
		if err := b(); err != nil {
			t.Error(err)
		}
		if first, last := store.By(0), store.By(pages-1); first != "a" || last != "b" {
			t.Errorf("the first page is by %s, the last by %s", first, last)
		}
		if err := a(); !errors.Is(err, lockkeeper.ErrUnavailable) { // in the test it goes on, without a server
			t.Errorf("the crashed one: %v", err)
		}
	})
}

func TestShortOutageDoesNotMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		began := time.Now()
		wait := start(t, s, "a", new(Store), nil)
		s.RequireHeld(t, lockName)
		s.Unreachable()
		time.Sleep(15 * time.Second) // less than is left of 30 s after a renewal
		s.Restore()
		if err := wait(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > (pages+1)*perPage {
			t.Errorf("it took %v", d)
		}
	})
}

func TestStoreRefusesStaleFences(t *testing.T) {
	lockkeepertest.CheckFencing(t, func(*testing.T) lockkeepertest.Store {
		store := new(Store)
		return lockkeepertest.Store{
			Write: func(_ context.Context, fence uint64, value string) error { return store.Add(fence, value) },
			Read: func(_ context.Context, fence uint64) (string, error) {
				n, err := store.Pages(fence)
				if err != nil || n == 0 {
					return "", err
				}
				return store.By(n - 1), nil
			},
			Stale: ErrStale,
		}
	})
}
