package gooselock_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	gooselock "github.com/lockkeeper/lockkeeper/contrib/goose"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/pressly/goose/v3"
)

const name = "migrations:shop"

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func wants(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

// newLocker returns a Locker of a process of its own.
func newLocker(t *testing.T, s *lockkeepertest.Server) *gooselock.Locker {
	return must(gooselock.New(must(mutex.New(s.Keeper(t, nil), name, nil))))
}

// newProvider returns a provider with connections of its own.
func newProvider(t *testing.T, file string, l *gooselock.Locker, files fs.FS, migrations ...*goose.Migration) *goose.Provider {
	t.Helper()
	db := must(sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_txlock=immediate"))
	p := must(goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithLocker(l), goose.WithGoMigrations(migrations...),
		goose.WithDisableGlobalRegistry(true)))
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func step(up func(ctx context.Context, db *sql.DB) error) *goose.Migration {
	return goose.NewGoMigration(1, &goose.GoFunc{RunDB: up}, nil)
}

func stepTx(up func(ctx context.Context, tx *sql.Tx) error) *goose.Migration {
	return goose.NewGoMigration(1, &goose.GoFunc{RunTx: up}, nil)
}

func up(ctx context.Context, p *goose.Provider) error {
	_, err := p.Up(ctx)
	return err
}

// upInDo migrates within Do. What it returns is received from the channel.
func upInDo(t *testing.T, p *goose.Provider, l *gooselock.Locker) <-chan error {
	done := make(chan error, 1)
	go func() { done <- l.Do(t.Context(), func(ctx context.Context) error { return up(ctx, p) }) }()
	return done
}

func requireVersion(t *testing.T, p *goose.Provider, want int64) {
	t.Helper()
	if v, err := p.GetDBVersion(t.Context()); v != want || err != nil {
		t.Errorf("version %d, %v; want %d", v, err, want)
	}
}

// TestMigrationRunsOnce: two processes migrate a database, within Do and without; both have seen that the migration is pending.
func TestMigrationRunsOnce(t *testing.T) {
	for call, migrate := range map[string]func(*testing.T, *goose.Provider, *gooselock.Locker) error{
		"Up": func(t *testing.T, p *goose.Provider, _ *gooselock.Locker) error { return up(t.Context(), p) },
		"Do": func(t *testing.T, p *goose.Provider, l *gooselock.Locker) error { return <-upInDo(t, p, l) },
	} {
		t.Run(call, func(t *testing.T) {
			s, file := lockkeepertest.New(t), filepath.Join(t.TempDir(), "db")
			started, finish, done := make(chan struct{}, 2), make(chan struct{}), make(chan error, 2)
			migration := func(ctx context.Context, db *sql.DB) error {
				started <- struct{}{}
				<-finish
				_, err := db.ExecContext(ctx, "CREATE TABLE users (id INTEGER)")
				return err
			}
			for i := range 2 {
				l := newLocker(t, s)
				p := newProvider(t, file, l, nil, step(migration))
				must(p.HasPending(t.Context())) // creates the table of versions, as Up does before it locks
				go func() { done <- migrate(t, p, l) }()
				if i == 0 {
					<-started
				}
			}
			s.RequireWaiting(t, name, 1)
			close(finish)
			wants(t, errors.Join(<-done, <-done), nil)
			if len(started) != 0 {
				t.Error("the migration ran twice")
			}
			s.RequireFree(t, name)
		})
	}
}

// TestLossEndsGoMigration: the context of the migration ends, its transaction is rolled back, and another process can migrate.
func TestLossEndsGoMigration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, file := lockkeepertest.New(t), filepath.Join(t.TempDir(), "db")
		create := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE users (id INTEGER)")
			return err
		}
		var cause error
		var fence uint64
		l := newLocker(t, s)
		p := newProvider(t, file, l, nil, stepTx(func(ctx context.Context, tx *sql.Tx) error {
			must(0, create(ctx, tx))
			fence = lockkeeper.LeaseFromContext(ctx).Fence()
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}))
		done := upInDo(t, p, l)
		s.LoseLease(t, name)
		var partial *goose.PartialError
		if err := <-done; !errors.Is(err, lockkeeper.ErrLost) || !errors.Is(err, context.Canceled) || !errors.As(err, &partial) {
			t.Errorf("%v, want ErrLost and the error of goose", err)
		}
		if !errors.Is(cause, lockkeeper.ErrLost) || fence == 0 {
			t.Errorf("cause %v, fence %d", cause, fence)
		}
		next := newProvider(t, file, newLocker(t, s), nil, stepTx(create))
		wants(t, up(t.Context(), next), nil)
		requireVersion(t, next, 1)
		must(0, errors.Join(next.Close(), p.Close()))
	})
}

func TestLockAndUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		a, b := newLocker(t, s), newLocker(t, s)
		if err := a.Unlock(t.Context(), nil); err == nil {
			t.Error("Unlock without Lock succeeded")
		}
		wants(t, a.Lock(t.Context(), nil), nil)
		for _, l := range []*gooselock.Locker{a, b} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the lease is renewed
			err := l.Lock(ctx, nil)
			cancel()
			wants(t, err, lockkeeper.ErrNotAcquired)
			wants(t, err, context.DeadlineExceeded)
		}
		if err := b.Unlock(t.Context(), nil); err == nil {
			t.Error("another process could unlock it")
		}
		signal := errors.New("signal received")
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(signal)
		wants(t, a.Unlock(ended, nil), nil)
		if err := a.Unlock(t.Context(), nil); err == nil {
			t.Error("it was unlocked twice")
		}
		if err := a.Lock(ended, nil); !errors.Is(err, context.Canceled) || errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("%v, want context.Canceled alone", err)
		}
		wants(t, a.Do(ended, func(context.Context) error { t.Error("it was run without a lease"); return nil }), signal)
		wants(t, b.Lock(t.Context(), nil), nil)
		wants(t, b.Unlock(t.Context(), nil), nil)
		s.RequireFree(t, name)
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		l := newLocker(t, s)
		failed := errors.New("failed")
		var inside context.Context
		err := l.Do(t.Context(), func(ctx context.Context) error {
			inside = ctx
			wants(t, l.Lock(ctx, nil), nil)
			wants(t, l.Unlock(context.WithoutCancel(ctx), nil), nil)
			s.RequireHeld(t, name)
			return l.Do(ctx, func(context.Context) error { return failed })
		})
		if err != failed {
			t.Errorf("%v, want that of the function", err)
		}
		s.RequireFree(t, name)
		wants(t, l.Lock(inside, nil), lockkeeper.ErrReleased)
		wants(t, l.Unlock(inside, nil), lockkeeper.ErrReleased)
		func() {
			defer func() { _ = recover() }()
			_ = l.Do(t.Context(), func(context.Context) error { panic("x") })
		}()
		s.RequireFree(t, name)
	})
}

// TestEndsTogether: what ends a migration can coincide. The steps happen in this order, and then it returns, within Do and without.
func TestEndsTogether(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		steps  string
		unlock error // of Unlock, and of Do, besides that of the migration
		next   error // of the next Lock of the Locker
	}{
		{"", nil, nil},
		{"lose", lockkeeper.ErrLost, nil},
		{"lose later", lockkeeper.ErrLost, nil},
		{"cancel", nil, nil},
		{"cancel lose", lockkeeper.ErrLost, nil},
		{"lose later cancel", lockkeeper.ErrLost, nil},
		{"close", lockkeeper.ErrReleased, lockkeeper.ErrClosed},
		{"cancel close", lockkeeper.ErrReleased, lockkeeper.ErrClosed},
		{"lose later close", lockkeeper.ErrLost, lockkeeper.ErrClosed},
		{"outage", lockkeeper.ErrUnavailable, nil},
		{"cancel outage", lockkeeper.ErrUnavailable, nil},
		{"outage later", lockkeeper.ErrLost, nil},
	} {
		for _, returned := range []error{nil, failed} {
			for call, migrate := range map[string]func(ctx context.Context, l *gooselock.Locker, fn func()) error{
				"Do": func(ctx context.Context, l *gooselock.Locker, fn func()) error {
					return l.Do(ctx, func(context.Context) error { fn(); return returned })
				},
				"Lock": func(ctx context.Context, l *gooselock.Locker, fn func()) error {
					must(0, l.Lock(ctx, nil))
					fn()
					return errors.Join(l.Unlock(ctx, nil), returned)
				},
			} {
				t.Run(fmt.Sprint(c.steps, ", ", returned, ", ", call), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := lockkeepertest.New(t)
						k := s.Keeper(t, nil)
						l := must(gooselock.New(must(mutex.New(k, name, nil))))
						ctx, cancel := context.WithCancel(t.Context())
						step := map[string]func(){
							"lose":   func() { s.LoseLease(t, name) },
							"later":  func() { time.Sleep(time.Minute) },
							"cancel": cancel,
							"close":  func() { _ = k.Close() },
							"outage": s.Unreachable,
						}
						var returns time.Time
						err := migrate(ctx, l, func() {
							for _, name := range strings.Fields(c.steps) {
								step[name]()
							}
							returns = time.Now()
						})
						if d := time.Since(returns); d > 3*time.Second {
							t.Errorf("the release took %v", d)
						}
						if !errors.Is(err, cmp.Or(c.unlock, returned)) || !errors.Is(err, cmp.Or(returned, c.unlock)) {
							t.Errorf("%v, want %v and %v", err, c.unlock, returned)
						}
						s.Restore()
						err = l.Lock(t.Context(), nil)
						wants(t, err, c.next)
						if err == nil {
							wants(t, l.Unlock(t.Context(), nil), nil)
						}
						s.RequireFree(t, name)
					})
				})
			}
		}
	}
}

func TestNilLocker(t *testing.T) {
	for _, missing := range []lockkeeper.Locker{nil, (*mutex.Mutex)(nil)} {
		_, err := gooselock.New(missing)
		wants(t, err, lockkeeper.ErrInvalid)
	}
}
