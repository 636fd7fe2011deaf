package gooselock_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	gooselock "github.com/lockkeeper/lockkeeper/contrib/goose"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/pressly/goose/v3"
)

const name = "migrations:shop"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newLocker returns a Locker of a process of its own.
func newLocker(t *testing.T, s *lockkeepertest.Server, o *mutex.Options) *gooselock.Locker {
	t.Helper()
	m, err := mutex.New(s.Keeper(t, nil), name, o)
	must(t, err)
	l, err := gooselock.New(m)
	must(t, err)
	return l
}

// newProvider returns a provider with connections of its own.
func newProvider(t *testing.T, file string, l *gooselock.Locker, files fs.FS, migrations ...*goose.Migration) *goose.Provider {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_txlock=immediate")
	must(t, err)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithLocker(l), goose.WithGoMigrations(migrations...),
		goose.WithDisableGlobalRegistry(true))
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// prepare creates the table of versions. Up does it before it locks, and waits a second if another process does so too.
func prepare(t *testing.T, p *goose.Provider) {
	t.Helper()
	_, err := p.HasPending(t.Context())
	must(t, err)
}

func step(up func(ctx context.Context, db *sql.DB) error) *goose.Migration {
	return goose.NewGoMigration(1, &goose.GoFunc{RunDB: up}, nil)
}

// TestMigrationRunsOnce: two processes migrate a database; both have seen that the migration is pending.
func TestMigrationRunsOnce(t *testing.T) {
	up := func(ctx context.Context, p *goose.Provider, _ *gooselock.Locker) (int, error) {
		results, err := p.Up(ctx)
		return len(results), err
	}
	do := func(ctx context.Context, p *goose.Provider, l *gooselock.Locker) (n int, err error) {
		err = l.Do(ctx, func(ctx context.Context) error {
			n, err = up(ctx, p, l)
			return err
		})
		return n, err
	}
	kinds := map[string]func(t *testing.T, s *lockkeepertest.Server) (lockkeeper.Locker, error){
		"mutex": func(t *testing.T, s *lockkeepertest.Server) (lockkeeper.Locker, error) {
			return mutex.New(s.Keeper(t, nil), name, nil)
		},
		"fair": func(t *testing.T, s *lockkeepertest.Server) (lockkeeper.Locker, error) {
			return fair.New(s.Keeper(t, nil), name, nil)
		},
	}
	for kind, newLock := range kinds {
		for call, migrate := range map[string]func(context.Context, *goose.Provider, *gooselock.Locker) (int, error){"Up": up, "Do": do} {
			t.Run(kind+call, func(t *testing.T) {
				s := lockkeepertest.New(t)
				file := filepath.Join(t.TempDir(), "db")
				started, finish := make(chan struct{}, 2), make(chan struct{})
				migration := func() *goose.Migration {
					return step(func(ctx context.Context, db *sql.DB) error {
						started <- struct{}{}
						<-finish
						_, err := db.ExecContext(ctx, "CREATE TABLE users (id INTEGER)")
						return err
					})
				}
				type result struct {
					applied int
					err     error
				}
				results := make(chan result, 2)
				for i := range 2 {
					m, err := newLock(t, s)
					must(t, err)
					l, err := gooselock.New(m)
					must(t, err)
					p := newProvider(t, file, l, nil, migration())
					prepare(t, p)
					go func() {
						n, err := migrate(t.Context(), p, l)
						results <- result{n, err}
					}()
					if i == 0 {
						<-started
					}
				}
				s.RequireWaiting(t, name, 1)
				close(finish)
				a, b := <-results, <-results
				if a.err != nil || b.err != nil || a.applied+b.applied != 1 || len(started) != 0 {
					t.Errorf("%+v, %+v; want one migration", a, b)
				}
				s.RequireFree(t, name)
			})
		}
	}
}

// TestRedlock: a redlock is a Locker, too.
func TestRedlock(t *testing.T) {
	var keepers []*lockkeeper.Keeper
	for range 3 {
		keepers = append(keepers, lockkeepertest.New(t).Keeper(t, nil))
	}
	m, err := redlock.New(keepers, name, nil)
	must(t, err)
	l, err := gooselock.New(m)
	must(t, err)
	p := newProvider(t, filepath.Join(t.TempDir(), "db"), l, migrations)
	if results, err := p.Up(t.Context()); len(results) != 2 || err != nil {
		t.Errorf("%v, %v", results, err)
	}
}

// TestLossEndsGoMigration: the context of the migration ends, its transaction is rolled back, and another process can migrate.
func TestLossEndsGoMigration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		file := filepath.Join(t.TempDir(), "db")
		a, b := newLocker(t, s, nil), newLocker(t, s, nil)
		create := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE users (id INTEGER)")
			return err
		}
		var cause error
		var fence uint64
		p := newProvider(t, file, a, nil, goose.NewGoMigration(1, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			if err := create(ctx, tx); err != nil {
				return err
			}
			fence = lockkeeper.LeaseFromContext(ctx).Fence()
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}}, nil))
		done := make(chan error, 1)
		go func() {
			done <- a.Do(t.Context(), func(ctx context.Context) error {
				_, err := p.Up(ctx)
				return err
			})
		}()
		s.LoseLease(t, name)
		var partial *goose.PartialError
		if err := <-done; !errors.Is(err, lockkeeper.ErrLost) || !errors.Is(err, context.Canceled) || !errors.As(err, &partial) {
			t.Errorf("%v, want ErrLost and the error of goose", err)
		}
		if !errors.Is(cause, lockkeeper.ErrLost) || fence == 0 {
			t.Errorf("cause %v, fence %d", cause, fence)
		}
		next := newProvider(t, file, b, nil, goose.NewGoMigration(1, &goose.GoFunc{RunTx: create}, nil))
		if results, err := next.Up(t.Context()); len(results) != 1 || err != nil {
			t.Errorf("%v, %v; want the migration of the other process", results, err)
		}
		must(t, next.Close())
		must(t, p.Close())
	})
}

// TestLossEndsSQLMigration: a statement that never ends is interrupted.
func TestLossEndsSQLMigration(t *testing.T) {
	s := lockkeepertest.New(t)
	l := newLocker(t, s, &mutex.Options{TTL: time.Second})
	p := newProvider(t, filepath.Join(t.TempDir(), "db"), l, fstest.MapFS{"1_endless.sql": {Data: []byte(`-- +goose Up
CREATE TABLE t AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n WHERE x < 0;
`)}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- l.Do(ctx, func(ctx context.Context) error {
			_, err := p.Up(ctx)
			return err
		})
	}()
	s.LoseLease(t, name)
	if err := <-done; !errors.Is(err, lockkeeper.ErrLost) || ctx.Err() != nil {
		t.Errorf("%v, %v; want ErrLost", err, ctx.Err())
	}
	if v, err := p.GetDBVersion(t.Context()); v != 0 || err != nil {
		t.Errorf("version %d, %v; want 0", v, err)
	}
}

// TestLossWithoutDo: the migration goes on, and Up reports the loss. The next Lock of the Locker waits for its Unlock.
func TestLossWithoutDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		l := newLocker(t, s, nil)
		finish := make(chan struct{})
		p := newProvider(t, filepath.Join(t.TempDir(), "db"), l, nil, step(func(ctx context.Context, _ *sql.DB) error {
			<-finish
			return ctx.Err()
		}))
		done, locked := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := p.Up(t.Context())
			done <- err
		}()
		s.LoseLease(t, name)
		go func() { locked <- l.Lock(t.Context(), nil) }()
		time.Sleep(time.Hour)
		if len(locked) != 0 {
			t.Error("locked while the former holder was at work")
		}
		close(finish)
		if err := <-done; !errors.Is(err, lockkeeper.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		must(t, <-locked)
		must(t, l.Unlock(t.Context(), nil))
		if v, err := p.GetDBVersion(t.Context()); v != 1 || err != nil {
			t.Errorf("version %d, %v; want 1", v, err)
		}
		must(t, p.Close())
	})
}

func TestLockAndUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		a, b := newLocker(t, s, nil), newLocker(t, s, nil)
		if err := a.Unlock(t.Context(), nil); err == nil {
			t.Error("Unlock without Lock succeeded")
		}
		must(t, a.Lock(t.Context(), nil))
		for _, l := range []*gooselock.Locker{a, b} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the lease is renewed
			err := l.Lock(ctx, nil)
			cancel()
			if !errors.Is(err, lockkeeper.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want ErrNotAcquired", err)
			}
		}
		if err := b.Unlock(t.Context(), nil); err == nil {
			t.Error("another process could unlock it")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, a.Unlock(ended, nil))
		if err := a.Unlock(t.Context(), nil); err == nil {
			t.Error("it was unlocked twice")
		}
		if err := a.Lock(ended, nil); !errors.Is(err, context.Canceled) || errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("%v, want context.Canceled alone", err)
		}
		must(t, b.Lock(t.Context(), nil))
		must(t, b.Unlock(t.Context(), nil))
		s.RequireFree(t, name)
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		l := newLocker(t, s, nil)
		failed := errors.New("failed")
		var inside context.Context
		err := l.Do(t.Context(), func(ctx context.Context) error {
			inside = ctx
			must(t, l.Lock(ctx, nil))
			must(t, l.Unlock(context.WithoutCancel(ctx), nil))
			s.RequireHeld(t, name)
			return l.Do(ctx, func(context.Context) error { return failed })
		})
		if err != failed {
			t.Errorf("%v, want that of the function", err)
		}
		s.RequireFree(t, name)
		if err := l.Lock(inside, nil); !errors.Is(err, lockkeeper.ErrReleased) {
			t.Errorf("%v, want ErrReleased after Do", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = l.Do(t.Context(), func(context.Context) error { panic("x") })
		}()
		s.RequireFree(t, name)
		for _, result := range []error{nil, failed} {
			err = l.Do(t.Context(), func(context.Context) error {
				s.LoseLease(t, name)
				time.Sleep(time.Minute)
				return result
			})
			if !errors.Is(err, lockkeeper.ErrLost) || !errors.Is(err, result) && result != nil {
				t.Errorf("%v, want ErrLost and %v", err, result)
			}
		}
	})
}

// TestUnlockIsBounded: goose unlocks with a context that never ends.
func TestUnlockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		l := newLocker(t, s, nil)
		var start time.Time
		p := newProvider(t, filepath.Join(t.TempDir(), "db"), l, nil, step(func(context.Context, *sql.DB) error {
			s.Unreachable()
			start = time.Now()
			return nil
		}))
		results, err := p.Up(context.Background())
		if len(results) != 1 || !errors.Is(err, lockkeeper.ErrUnavailable) {
			t.Errorf("%v, %v; want a result and ErrUnavailable", results, err)
		}
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("it took %v", d)
		}
		must(t, p.Close())
		s.Restore()
		s.RequireFree(t, name)
	})
}

func TestKeeperClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkeepertest.New(t).Keeper(t, nil)
		m, err := mutex.New(k, name, nil)
		must(t, err)
		l, err := gooselock.New(m)
		must(t, err)
		must(t, l.Lock(t.Context(), nil))
		must(t, k.Close())
		if err := l.Unlock(t.Context(), nil); !errors.Is(err, lockkeeper.ErrReleased) {
			t.Errorf("%v, want ErrReleased", err)
		}
	})
}

func TestNilLocker(t *testing.T) {
	if _, err := gooselock.New((*mutex.Mutex)(nil)); !errors.Is(err, lockkeeper.ErrInvalid) {
		t.Error(err)
	}
	if _, err := gooselock.New(nil); !errors.Is(err, lockkeeper.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
