// Package migration tests a service before and after its move from redsync to Lockkeeper, and both side by side.
package migration

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/examples/migration/after"
	"github.com/lockkeeper/lockkeeper/examples/migration/before"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

type ledger interface {
	Book(ctx context.Context, account string, amount int) error
	Settle(ctx context.Context, account string, steps ...func(context.Context) error) error
	Balance(ctx context.Context, account string) (int, error)
	Shutdown() error
}

type version struct {
	name string
	open func(*redis.Client) (ledger, error)
	busy error
}

var (
	old = version{"before", func(rdb *redis.Client) (ledger, error) { return before.New(rdb) }, before.ErrBusy}
	new = version{"after", func(rdb *redis.Client) (ledger, error) { return after.New(rdb) }, after.ErrBusy}
)

func (v version) start(t *testing.T, s *redistest.Server) ledger {
	t.Helper()
	l, err := v.open(s.Client())
	must(t, err)
	t.Cleanup(func() { must(t, l.Shutdown()) })
	return l
}

// pairs are two processes: of the same version, and of both, as during the migration.
func pairs(t *testing.T, run func(t *testing.T, first, second ledger, busy error)) {
	for _, p := range [][2]version{{old, old}, {new, new}, {old, new}, {new, old}} {
		t.Run(p[0].name+"_and_"+p[1].name, func(t *testing.T) {
			s := redistest.Start(t)
			run(t, p[0].start(t, s), p[1].start(t, s), p[1].busy)
		})
	}
}

func TestNoBookingIsLost(t *testing.T) {
	const each = 25
	pairs(t, func(t *testing.T, first, second ledger, _ error) {
		var wg sync.WaitGroup
		for i := range each {
			for _, l := range []ledger{first, second} {
				wg.Go(func() {
					if err := l.Book(t.Context(), "a", i); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		n, err := first.Balance(t.Context(), "a")
		must(t, err)
		if want := each * (each - 1); n != want {
			t.Errorf("the balance is %d, want %d", n, want)
		}
	})
}

func TestSettlingExcludesOthers(t *testing.T) {
	pairs(t, func(t *testing.T, first, second ledger, busy error) {
		failure := errors.New("failed")
		steps := 0
		err := first.Settle(t.Context(), "a",
			func(context.Context) error { steps++; return nil },
			func(context.Context) error {
				steps++
				if err := second.Settle(t.Context(), "a"); !errors.Is(err, busy) {
					t.Errorf("Settle by another process: %v, want %v", err, busy)
				}
				if err := second.Settle(t.Context(), "b"); err != nil {
					t.Errorf("Settle of another account: %v", err)
				}
				return failure
			},
			func(context.Context) error { steps++; return nil })
		if !errors.Is(err, failure) || steps != 2 {
			t.Errorf("Settle: %v after %d steps, want the error of the second step", err, steps)
		}
		must(t, second.Settle(t.Context(), "a"))
	})
}

func must(t *testing.T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
