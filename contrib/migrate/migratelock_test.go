package migratelock_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	databasetest "github.com/golang-migrate/migrate/v4/database/testing"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/lockkeeper/lockkeeper"
	migratelock "github.com/lockkeeper/lockkeeper/contrib/migrate"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

const (
	name     = "migrate:shop"
	shortTTL = 500 * time.Millisecond // of leases that are lost in real time
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

// hooked is the real driver, whose calls a test can hold up.
type hooked struct {
	database.Driver
	lock, unlock func() error                  // instead of those of the driver
	close        func() error                  // likewise
	setVersion   func(version int, dirty bool) // after SetVersion
}

func (h *hooked) Lock() error   { return h.lock() }
func (h *hooked) Unlock() error { return h.unlock() }
func (h *hooked) Close() error  { return h.close() }

func (h *hooked) SetVersion(version int, dirty bool) error {
	defer h.setVersion(version, dirty)
	return h.Driver.SetVersion(version, dirty)
}

// holdUp lets the driver wait for its own lock until something is sent to granted, and count that as the lock. Its Unlock is
// received from unlocked.
func (h *hooked) holdUp() (granted, unlocked chan error) {
	granted, unlocked = make(chan error), make(chan error, 1)
	h.lock = func() error { return <-granted }
	h.unlock = func() error { unlocked <- nil; return nil }
	return granted, unlocked
}

// process is one of the processes that migrate the database in a directory.
type process struct {
	*migrate.Migrate
	own    *hooked
	driver *migratelock.Driver
	keeper *lockkeeper.Keeper
	events lockkeepertest.Recorder
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, test func(t *testing.T, s *lockkeepertest.Server, dir string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockkeepertest.New(t), t.TempDir()) })
}

// start starts a process. A ttl or a timeout of 0 is the default.
func start(t *testing.T, s *lockkeepertest.Server, dir string, ttl, timeout time.Duration) *process {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(60000)")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	own, err := sqlite.WithInstance(db, &sqlite.Config{})
	must(t, err)
	p := &process{own: &hooked{own, own.Lock, own.Unlock, own.Close, func(int, bool) {}}}
	p.keeper = s.Keeper(t, &lockkeeper.Options{Hooks: p.events.Hooks()})
	lock, err := fair.New(p.keeper, name, &fair.Options{TTL: ttl})
	must(t, err)
	p.driver, err = migratelock.Wrap(p.own, lock, &migratelock.Options{LockTimeout: timeout})
	must(t, err)
	source, err := iofs.New(fstest.MapFS{ // each fails if it is run twice
		"1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id INTEGER PRIMARY KEY)")},
		"2_items.up.sql":  {Data: []byte("CREATE TABLE items (id INTEGER PRIMARY KEY)")},
	}, ".")
	must(t, err)
	p.Migrate, err = migrate.NewWithInstance("iofs", source, "sqlite", p.driver)
	must(t, err)
	return p
}

// at calls f when a version has been stored.
func (p *process) at(version int, dirty bool, f func()) {
	p.own.setVersion = func(v int, d bool) {
		if v == version && d == dirty {
			f()
		}
	}
}

// up returns a channel from which the result of Up is received.
func (p *process) up() <-chan error {
	done := make(chan error, 1)
	go func() { done <- p.Up() }()
	return done
}

func (p *process) requireVersion(t *testing.T, version int, dirty bool) {
	t.Helper()
	v, d, err := p.driver.Version()
	must(t, err)
	if v != version || d != dirty {
		t.Errorf("version %d, dirty %t; want %d, %t", v, d, version, dirty)
	}
}

// TestIsADriver runs the tests of golang-migrate for drivers.
func TestIsADriver(t *testing.T) {
	s := lockkeepertest.New(t)
	databasetest.Test(t, start(t, s, t.TempDir(), 0, 0).driver, []byte("CREATE TABLE orders (id INTEGER)"))
	s.RequireFree(t, name)
}

func TestMigratesOnce(t *testing.T) {
	s, dir := lockkeepertest.New(t), t.TempDir()
	a, b := start(t, s, dir, 0, 0), start(t, s, dir, 0, 0)
	within, goOn := make(chan struct{}), make(chan struct{})
	a.at(1, true, func() {
		close(within)
		<-goOn
	})
	first := a.up()
	<-within
	second := b.up()
	s.RequireWaiting(t, name, 1)
	close(goOn)
	must(t, <-first)
	wants(t, <-second, migrate.ErrNoChange)
	b.requireVersion(t, 2, false)
	s.RequireFree(t, name)
}

// TestLossRefusesTheNextMigration is not in a bubble: golang-migrate leaves a goroutine behind for each migration that it has read and not
// run.
func TestLossRefusesTheNextMigration(t *testing.T) {
	s, dir := lockkeepertest.New(t), t.TempDir()
	a, b := start(t, s, dir, shortTTL, 0), start(t, s, dir, 0, 0)
	a.at(1, false, func() {
		s.LoseLease(t, name)
		a.events.Require(t, "Lost", name)
	})
	wants(t, a.Up(), lockkeeper.ErrLost)
	a.requireVersion(t, 1, false)
	wants(t, a.Up(), migrate.ErrLocked) // golang-migrate's own: Unlock has failed
	must(t, b.Up())
	b.requireVersion(t, 2, false)
}

// TestEndsTogether: what ends the lock can coincide. The steps happen in this order after Lock.
func TestEndsTogether(t *testing.T) {
	for steps, c := range map[string]struct{ change, unlock error }{ // of SetVersion, Run and Drop, and of Unlock
		"":                  {nil, nil},
		"lose":              {nil, lockkeeper.ErrLost}, // which Unlock finds
		"lose later":        {lockkeeper.ErrLost, lockkeeper.ErrLost},
		"steal later":       {lockkeeper.ErrLost, lockkeeper.ErrLost},
		"steal later close": {lockkeeper.ErrLost, lockkeeper.ErrLost},
		"lose close":        {lockkeeper.ErrReleased, nil}, // Close has returned ErrLost
		"close":             {lockkeeper.ErrReleased, nil},
		"keeper":            {lockkeeper.ErrReleased, nil},
		"keeper close":      {lockkeeper.ErrReleased, nil},
		"outage":            {nil, nil},
		"outage later":      {lockkeeper.ErrLost, lockkeeper.ErrLost},
	} {
		t.Run(steps, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
				p, own := start(t, s, dir, 0, 0), 0
				p.own.lock = func() error { own++; return nil }
				p.own.unlock = func() error { own--; return nil }
				must(t, p.driver.Lock())
				step := map[string]func(){
					"lose":   func() { s.LoseLease(t, name) },
					"steal":  func() { s.StealLock(t, name) },
					"later":  func() { time.Sleep(lockkeeper.DefaultTTL) },
					"close":  func() { _ = p.driver.Close() },
					"keeper": func() { _ = p.keeper.Close() },
					"outage": s.Unreachable,
				}
				for _, name := range strings.Fields(steps) {
					step[name]()
				}
				if c.change != nil {
					wants(t, p.driver.SetVersion(1, true), c.change)
					wants(t, p.driver.Run(strings.NewReader("CREATE TABLE orders (id INTEGER)")), c.change)
					wants(t, p.driver.Drop(), c.change)
				}
				wants(t, p.driver.Unlock(), c.unlock)
				if own != 0 {
					t.Errorf("the driver's own lock is held %d times", own)
				}
				s.Restore()
			})
		})
	}
}

// TestOwnLockIsGrantedAsTheWaitEnds: at the moment at which the driver's own lock is granted, the wait ends. Either Lock has both locks, or
// neither is held in the end.
func TestOwnLockIsGrantedAsTheWaitEnds(t *testing.T) {
	for what, after := range map[string]time.Duration{"close": 5 * time.Second, "time": 14 * time.Second, "close and time": 14 * time.Second, "loss": lockkeeper.DefaultTTL / 3} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
				p := start(t, s, dir, 0, 0)
				var own atomic.Int32
				p.own.lock = func() error { time.Sleep(after); own.Add(1); return nil }
				p.own.unlock = func() error { own.Add(-1); return nil }
				if strings.HasPrefix(what, "close") {
					time.AfterFunc(after, func() { _ = p.driver.Close() })
				}
				if what == "loss" {
					go s.LoseLease(t, name)
				}
				if p.driver.Lock() == nil {
					_ = p.driver.Unlock()
				}
				time.Sleep(time.Minute)
				if n := own.Load(); n != 0 {
					t.Errorf("the driver's own lock is held %d times", n)
				}
				s.RequireFree(t, name)
			})
		})
	}
}

func TestLockTimesOutBeforeMigrate(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Second, time.Hour} {
		bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
			a, b := start(t, s, dir, 0, 0), start(t, s, dir, 0, timeout)
			if timeout != 0 {
				b.LockTimeout = timeout
			}
			must(t, a.driver.Lock())
			before := time.Now()
			wants(t, b.Up(), database.ErrLocked)
			if waited := time.Since(before); waited >= b.LockTimeout || waited < b.LockTimeout/2 {
				t.Errorf("waited for %v of %v", waited, b.LockTimeout)
			}
			must(t, a.driver.Unlock())
			s.RequireFree(t, name)
			must(t, b.Up())
		})
	}
}

// TestOwnLockGrantedLate: as PostgreSQL's lock, which waits forever.
func TestOwnLockGrantedLate(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
		a, b := start(t, s, dir, 0, 0), start(t, s, dir, 0, 0)
		granted, unlocked := a.own.holdUp()
		wants(t, a.Up(), database.ErrLocked)
		must(t, b.Up()) // the lock of Lockkeeper is not kept meanwhile
		wants(t, a.Up(), database.ErrLocked)
		granted <- nil
		<-unlocked
		synctest.Wait()
		a.own.lock, a.own.unlock = a.own.Driver.Lock, a.own.Driver.Unlock
		wants(t, a.Up(), migrate.ErrNoChange)
	})
}

func TestLossWhileWaitingForOwnLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
		a := start(t, s, dir, 0, 0)
		granted, unlocked := a.own.holdUp()
		up := a.up()
		s.LoseLease(t, name)
		wants(t, <-up, lockkeeper.ErrLost)
		granted <- nil
		<-unlocked
	})
}

func TestOwnLockFails(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
		a := start(t, s, dir, 0, 0)
		broken := errors.New("broken")
		a.own.lock = func() error { return broken }
		if err := a.Up(); err != broken {
			t.Errorf("%v", err)
		}
		s.RequireFree(t, name)
		a.own.lock = a.own.Driver.Lock
		a.own.unlock = func() error { return errors.Join(broken, a.own.Driver.Unlock()) }
		wants(t, a.Up(), broken)
		s.RequireFree(t, name)
		a.requireVersion(t, 2, false)
	})
}

func TestErrorsOfTheDriver(t *testing.T) {
	p := start(t, lockkeepertest.New(t), t.TempDir(), 0, 0)
	must(t, p.own.Driver.Close())
	for call, err := range map[string]error{
		"Run": p.driver.Run(strings.NewReader("SELECT 1")), "SetVersion": p.driver.SetVersion(3, true), "Drop": p.driver.Drop(),
	} {
		if err == nil {
			t.Errorf("%s of a database that is closed", call)
		}
	}
}

func TestOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
		a := start(t, s, dir, 0, 5*time.Second) // it waits for less than Redis may be silent
		s.Unreachable()
		err := a.Up()
		wants(t, err, lockkeeper.ErrUnavailable)
		if errors.Is(err, database.ErrLocked) {
			t.Error(err)
		}
		a.requireVersion(t, database.NilVersion, false)
		s.Restore()
		a.at(2, false, s.Unreachable)
		must(t, a.Up()) // it is held until the end
		s.Restore()
		s.RequireFree(t, name)
	})
}

func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
		a, b := start(t, s, dir, 0, 0), start(t, s, dir, 0, 0)
		must(t, a.driver.Lock())
		up := b.up()
		s.RequireWaiting(t, name, 1)
		before := time.Now()
		must(t, errors.Join(b.Close()))
		if err := <-up; err == nil || errors.Is(err, database.ErrLocked) || !time.Now().Equal(before) {
			t.Errorf("%v after %v", err, time.Since(before))
		}
		must(t, errors.Join(a.Close())) // it holds the lock
		s.RequireFree(t, name)
	})
}

// TestCloseReturnsAllThatWentWrong: the driver cannot be closed, or the lock is lost, or both.
func TestCloseReturnsAllThatWentWrong(t *testing.T) {
	failure := errors.New("the database is gone")
	for _, want := range [][]error{{failure}, {lockkeeper.ErrLost}, {failure, lockkeeper.ErrLost}} {
		bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
			a := start(t, s, dir, 0, 0)
			must(t, a.driver.Lock())
			own := a.own.close
			if slices.Contains(want, failure) {
				a.own.close = func() error { return errors.Join(failure, own()) }
			}
			if slices.Contains(want, lockkeeper.ErrLost) {
				s.LoseLease(t, name)
			}
			err := a.driver.Close()
			for _, each := range []error{failure, lockkeeper.ErrLost} {
				if errors.Is(err, each) != slices.Contains(want, each) {
					t.Errorf("%v, want %v", err, want)
				}
			}
			s.RequireFree(t, name)
		})
	}
}

func TestOpenSharesTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
		a := start(t, s, dir, 0, 0)
		b, err := a.driver.Open("sqlite://" + filepath.Join(dir, "other.db"))
		must(t, err)
		must(t, b.Lock())
		s.RequireHeld(t, name)
		wants(t, a.Up(), database.ErrLocked)
		must(t, b.Unlock())
		must(t, b.Close())
		must(t, a.Up())
		if _, err := a.driver.Open("sqlite://%zz"); err == nil {
			t.Error("an invalid URL was opened")
		}
	})
}

func TestOptionsChecked(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, dir string) {
		lock, err := fair.New(s.Keeper(t, nil), name, nil)
		must(t, err)
		own := start(t, s, dir, 0, 0).own
		for _, x := range []struct {
			driver database.Driver
			lock   lockkeeper.Locker
			o      migratelock.Options
			says   string
		}{
			{own, lock, migratelock.Options{LockTimeout: -1}, "LockTimeout -1ns"},
			{own, lock, migratelock.Options{Wait: -1}, "Wait -1ns"},
			{own, lock, migratelock.Options{Wait: 15 * time.Second}, "Wait 15s"},
			{nil, lock, migratelock.Options{}, "driver is nil"},
			{own, nil, migratelock.Options{}, "locker is nil"},
			{own, (*fair.Lock)(nil), migratelock.Options{}, "locker is nil"},
		} {
			if _, err := migratelock.Wrap(x.driver, x.lock, &x.o); !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s: %v", x.says, err)
			}
		}
	})
}
