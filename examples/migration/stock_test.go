// Package migration tests a service before and after its move from redsync to Lockkeeper, and both side by side.
package migration

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/examples/migration/after"
	"github.com/lockkeeper/lockkeeper/examples/migration/before"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

type stock interface {
	http.Handler
	Reserve(ctx context.Context, sku string, n int) error
	Move(ctx context.Context, from, to string, n int) error
	Left(ctx context.Context, sku string) (int, error)
	Stocktake(ctx context.Context, count func(context.Context) error) error
	Hold(ctx context.Context, sku string, d time.Duration) (ticket string, err error)
	Finish(ctx context.Context, sku, ticket string) error
	Holder(ctx context.Context, sku string) (string, error)
	Close() error
}

type version struct {
	name              string
	open              func(host string, rdb *redis.Client, expiry time.Duration) (stock, error)
	busy, lost, short error
}

var (
	old = version{"before", func(host string, rdb *redis.Client, expiry time.Duration) (stock, error) {
		return before.New(host, rdb, expiry)
	}, before.ErrBusy, before.ErrLockLost, before.ErrShort}
	new = version{"after", func(host string, rdb *redis.Client, expiry time.Duration) (stock, error) {
		return after.New(host, rdb, expiry)
	}, after.ErrBusy, after.ErrLockLost, after.ErrShort}
)

// expiry is short, so that the tests can wait for it, and long enough for a busy machine.
const expiry = time.Second

// process is one process of the service.
type process struct {
	version
	stock
}

func (v version) start(t *testing.T, s *redistest.Server, host string) process {
	t.Helper()
	p := must.Get(v.open(host, redistest.Connect(s), expiry))(t)
	t.Cleanup(func() { _ = p.Close() })
	return process{v, p}
}

// unlessBusy repeats a call until it does not find that a lock is held.
func (p process) unlessBusy(t *testing.T, call func(ctx context.Context) error) {
	for {
		if err := call(t.Context()); !errors.Is(err, p.busy) {
			must.Report(t, err)
			return
		}
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// each runs a test of one process of each version.
func each(t *testing.T, run func(t *testing.T, s *redistest.Server, p process)) {
	for _, v := range []version{old, new} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			run(t, s, v.start(t, s, "web-1"))
		})
	}
}

// pairs runs a test of two processes: of the same version, and of both, as during the migration.
func pairs(t *testing.T, run func(t *testing.T, rdb *redis.Client, first, second process)) {
	for _, p := range [][2]version{{old, old}, {new, new}, {old, new}, {new, old}} {
		t.Run(p[0].name+"_and_"+p[1].name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			run(t, redistest.Connect(s), p[0].start(t, s, "web-1"), p[1].start(t, s, "web-2"))
		})
	}
}

func TestNoReservationIsLost(t *testing.T) {
	const callers, turns = 4, 10
	pairs(t, func(t *testing.T, rdb *redis.Client, first, second process) {
		must.OK(t, rdb.Set(t.Context(), "stock:pen", 2*callers*turns+5, 0).Err())
		var wg sync.WaitGroup
		for i := range 2 * callers {
			p := []process{first, second}[i%2]
			wg.Go(func() {
				for range turns {
					p.unlessBusy(t, func(ctx context.Context) error { return p.Reserve(ctx, "pen", 1) })
				}
			})
		}
		wg.Wait()
		wantLeft(t, first, "pen", 5)
		wantError(t, "Reserve of more than are left", second.Reserve(t.Context(), "pen", 6), second.short)
	})
}

func TestMovesInBothDirections(t *testing.T) {
	pairs(t, func(t *testing.T, rdb *redis.Client, first, second process) {
		must.OK(t, rdb.MSet(t.Context(), "stock:ink", 50, "stock:pen", 50).Err())
		var wg sync.WaitGroup
		move := func(p process, from, to string) {
			for range 10 {
				p.unlessBusy(t, func(ctx context.Context) error { return p.Move(ctx, from, to, 2) })
			}
		}
		wg.Go(func() { move(first, "ink", "pen") })
		wg.Go(func() { move(second, "pen", "ink") })
		wg.Wait()
		wantLeft(t, first, "ink", 50)
		wantLeft(t, first, "pen", 50)
	})
}

func TestHeldItemIsAConflict(t *testing.T) {
	pairs(t, func(t *testing.T, rdb *redis.Client, first, second process) {
		must.OK(t, rdb.Set(t.Context(), "stock:pen", 1, 0).Err())
		ticket := must.Get(first.Hold(t.Context(), "pen", time.Minute))(t)
		wantHolder := func(want string) {
			if got, err := first.Holder(t.Context(), "pen"); got != want || err != nil {
				t.Errorf("the holder is %q, %v, want %q", got, err, want)
			}
		}
		wantHolder("web-1")
		request := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			second.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/?sku=pen&n=1", nil))
			return w
		}
		start := time.Now()
		if w := request(); w.Code != http.StatusConflict || w.Header().Get("Retry-After") != "1" {
			t.Errorf("answer %d %s while the item is held, want 409", w.Code, w.Body)
		}
		if waited := time.Since(start); waited < 800*time.Millisecond || waited > 10*time.Second {
			t.Errorf("waited %v, want about a second", waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		start = time.Now()
		wantError(t, "Reserve by a caller who gives up", second.Reserve(ctx, "pen", 1), second.busy)
		if waited := time.Since(start); waited > 900*time.Millisecond {
			t.Errorf("waited %v, want 200 ms", waited)
		}
		must.OK(t, second.Finish(t.Context(), "pen", ticket))
		wantHolder("")
		if w := request(); w.Code != http.StatusOK {
			t.Errorf("answer %d %s after the hold, want 200", w.Code, w.Body)
		}
		wantError(t, "second Finish", second.Finish(t.Context(), "pen", ticket), second.lost)
	})
}

func TestHoldOutlivesItsProcess(t *testing.T) {
	pairs(t, func(t *testing.T, _ *redis.Client, first, second process) {
		ticket := must.Get(first.Hold(t.Context(), "pen", time.Minute))(t)
		must.OK(t, first.Close())
		_, err := second.Hold(t.Context(), "pen", time.Minute)
		wantError(t, "Hold by another process", err, second.busy)
		must.OK(t, second.Finish(t.Context(), "pen", ticket))
	})
}

func TestStocktakeLongerThanTheExpiry(t *testing.T) {
	pairs(t, func(t *testing.T, rdb *redis.Client, first, second process) {
		must.OK(t, first.Stocktake(t.Context(), func(ctx context.Context) error {
			for end := time.Now().Add(5 * expiry / 2); time.Now().Before(end); time.Sleep(expiry / 10) {
				err := second.Stocktake(ctx, func(context.Context) error { return nil })
				wantError(t, "second stocktake", err, second.busy)
			}
			return ctx.Err()
		}))
		failure := errors.New("failed")
		wantError(t, "stocktake", second.Stocktake(t.Context(), func(context.Context) error { return failure }), failure)
		if n, err := rdb.Exists(t.Context(), "lock:stocktake").Result(); n != 0 || err != nil {
			t.Errorf("%d keys, %v, after the stocktake", n, err)
		}
	})
}

// TestStocktakeLosesItsLock: WithSetNXOnExtend takes a lock again whose key was deleted.
func TestStocktakeLosesItsLock(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server, p process) {
		rdb := s.Client()
		stocktake := func(change redis.Cmder, lost bool) {
			ended := false
			err := p.Stocktake(t.Context(), func(ctx context.Context) error {
				must.OK(t, rdb.Process(t.Context(), change))
				select {
				case <-ctx.Done():
					ended = true
				case <-time.After(3 * expiry):
				}
				return nil
			})
			if ended != lost || errors.Is(err, p.lost) != lost || !lost && err != nil {
				t.Errorf("after %v: %v, context ended: %t", change, err, ended)
			}
		}
		stocktake(redis.NewIntCmd(t.Context(), "del", "lock:stocktake"), p.name == new.name)
		stocktake(redis.NewStatusCmd(t.Context(), "set", "lock:stocktake", "another"), true)
		if v, err := rdb.Get(t.Context(), "lock:stocktake").Result(); v != "another" || err != nil {
			t.Errorf("the other holder's key has the value %q, %v", v, err)
		}
		s.Kill()
		err := p.Stocktake(t.Context(), func(context.Context) error { return nil })
		if err == nil || errors.Is(err, p.busy) || errors.Is(err, p.lost) {
			t.Errorf("without a server: %v, want another error", err)
		}
	})
}

func wantLeft(t *testing.T, p process, sku string, n int) {
	t.Helper()
	if left, err := p.Left(t.Context(), sku); left != n || err != nil {
		t.Errorf("%d of %s are left, %v, want %d", left, sku, err, n)
	}
}
