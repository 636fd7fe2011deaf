// Package migratelock lets github.com/golang-migrate/migrate/v4 use a lock of Lockkeeper: one process of a fleet at a time
// migrates a database. It is for databases whose drivers have no lock among processes, such as SQLite, ClickHouse and
// Cassandra, but works with every driver.
//
//	driver, err := migratelock.Wrap(driver, lock, nil)
//	…
//	m, err := migrate.NewWithInstance("iofs", source, "sqlite", driver)
//
// All processes that migrate the database must use a lock of the same name.
package migratelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/lockkeeper/lockkeeper"
)

// releaseTimeout bounds for how long a release waits for Redis. The release goes on in the background after that.
const releaseTimeout = 3 * time.Second

// Options are the settings of a Driver. Nil, and the zero value of each field, mean the defaults.
// Wrap copies them.
type Options struct {
	// LockTimeout is the LockTimeout of the Migrate that uses the driver. Set it if you set that of the Migrate. Not negative. Default
	// 15 s ([migrate.DefaultLockTimeout]).
	//
	// A lock that is granted later than that is not released before Close.
	LockTimeout time.Duration

	// Wait is how long Lock waits for the lock and for the driver's own lock together. It must be shorter than LockTimeout, by
	// more than the longest pause of the process. Not negative. Default 14/15 of LockTimeout, 14 s.
	Wait time.Duration
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.LockTimeout == 0 {
		r.LockTimeout = migrate.DefaultLockTimeout
	}
	if r.LockTimeout < 0 {
		return r, fmt.Errorf("migratelock: %w: LockTimeout %v is negative", lockkeeper.ErrInvalid, r.LockTimeout)
	}
	if r.Wait == 0 {
		r.Wait = r.LockTimeout - r.LockTimeout/15
	}
	if r.Wait < 0 {
		return r, fmt.Errorf("migratelock: %w: Wait %v is negative", lockkeeper.ErrInvalid, r.Wait)
	}
	if r.Wait >= r.LockTimeout {
		return r, fmt.Errorf("migratelock: %w: Wait %v is not shorter than LockTimeout %v", lockkeeper.ErrInvalid, r.Wait, r.LockTimeout)
	}
	return r, nil
}

// Driver is a [database.Driver] whose Lock also acquires a lock of Lockkeeper. After that lock is lost, the Driver changes
// nothing in the database until Unlock.
//
// Like the drivers of golang-migrate it is for use by one Migrate.
type Driver struct {
	driver database.Driver
	locker lockkeeper.Locker
	o      Options

	ctx  context.Context // ends at Close
	stop context.CancelFunc

	mu    sync.Mutex        // guards all below
	busy  bool              // from the start of Lock to the end of Unlock, or until Lock has failed and left nothing behind
	lease *lockkeeper.Lease // while both locks are held, or were until it was lost; otherwise nil
}

var _ database.Driver = (*Driver)(nil)

// isNil reports whether a locker is nil or a nil pointer.
func isNil(l lockkeeper.Locker) bool {
	v := reflect.ValueOf(l)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// Wrap returns a driver that also locks the locker, which must be exclusive: for example a [mutex.Mutex] or a [fair.Lock], and
// not permits of a semaphore. It sends nothing. The error is [lockkeeper.ErrInvalid] if the driver or the locker is nil, or an
// option is out of range.
//
// [mutex.Mutex]: https://pkg.go.dev/github.com/lockkeeper/lockkeeper/mutex#Mutex
// [fair.Lock]: https://pkg.go.dev/github.com/lockkeeper/lockkeeper/fair#Lock
func Wrap(driver database.Driver, locker lockkeeper.Locker, opts *Options) (*Driver, error) {
	switch {
	case driver == nil:
		return nil, fmt.Errorf("migratelock: %w: the driver is nil", lockkeeper.ErrInvalid)
	case isNil(locker):
		return nil, fmt.Errorf("migratelock: %w: the locker is nil", lockkeeper.ErrInvalid)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Driver{driver: driver, locker: locker, o: o}
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d, nil
}

// Open opens another driver of the same kind, with the same locker and options.
func (d *Driver) Open(url string) (database.Driver, error) {
	driver, err := d.driver.Open(url)
	if err != nil {
		return nil, err
	}
	return Wrap(driver, d.locker, &d.o)
}

// Lock acquires the lock of Lockkeeper and then that of the driver. It waits for both until Options.Wait has passed, or Close is called,
// and holds neither if it fails; a driver that is still waiting for its own lock then gives that back when it is granted.
//
// The error matches [database.ErrLocked] if either lock is held elsewhere, or by this Driver, and [lockkeeper.ErrUnavailable] if
// Redis did not answer.
func (d *Driver) Lock() error {
	ctx, cancel := context.WithTimeout(d.ctx, d.o.Wait)
	defer cancel()
	d.mu.Lock()
	busy := d.busy
	d.busy = true
	d.mu.Unlock()
	if busy {
		return fmt.Errorf("%w: %q is held by this driver", database.ErrLocked, d.locker.Name())
	}
	lease, err := d.locker.Lock(ctx)
	if err != nil {
		d.set(false, nil)
		return d.lockError(err)
	}
	own := make(chan error, 1)
	go func() { own <- d.driver.Lock() }()
	ctx = lease.Context(ctx)
	select {
	case err = <-own:
	case <-ctx.Done():
		// The driver may wait forever. Others would have to wait for its lock too, so nobody gains if the lease is kept until then.
		go d.abandon(lease, own)
		return d.lockError(fmt.Errorf("waiting for the driver's own lock: %w", context.Cause(ctx)))
	}
	if err != nil {
		_ = release(lease)
		d.set(false, nil)
		return err
	}
	d.set(true, lease)
	if d.ctx.Err() != nil { // Close may not have seen the lease
		return errors.Join(d.lockError(d.ctx.Err()), d.Unlock())
	}
	return nil
}

// lockError returns what Lock returns if a wait has ended by err.
func (d *Driver) lockError(err error) error {
	switch {
	case d.ctx.Err() != nil:
		return fmt.Errorf("migratelock: %q: the driver was closed: %w", d.locker.Name(), err)
	case errors.Is(err, lockkeeper.ErrUnavailable), errors.Is(err, lockkeeper.ErrLost):
		return err
	case errors.Is(err, lockkeeper.ErrNotAcquired), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", database.ErrLocked, err)
	}
	return err
}

// abandon gives back what Lock has acquired and may still acquire.
func (d *Driver) abandon(lease *lockkeeper.Lease, own <-chan error) {
	_ = release(lease)
	if err := <-own; err == nil {
		_ = d.driver.Unlock()
	}
	d.set(false, nil)
}

func (d *Driver) set(busy bool, lease *lockkeeper.Lease) {
	d.mu.Lock()
	d.busy, d.lease = busy, lease
	d.mu.Unlock()
}

// Unlock releases the driver's own lock and then that of Lockkeeper, also if the former fails. The error matches [lockkeeper.ErrLost] if
// the lock was lost since Lock: another process may have migrated the database at the same time. If Redis does not answer within
// three seconds, the release goes on in the background, and that is no error.
func (d *Driver) Unlock() error {
	err := d.driver.Unlock()
	d.mu.Lock()
	lease := d.lease
	d.mu.Unlock()
	if lease == nil {
		return err
	}
	err = join(err, release(lease))
	d.set(false, nil)
	return err
}

func release(lease *lockkeeper.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := lease.Release(ctx)
	if errors.Is(err, lockkeeper.ErrUnavailable) && !errors.Is(err, lockkeeper.ErrLost) {
		return nil // it was held until now, and ends by itself
	}
	return err
}

// join returns an error that is there alone unchanged, for callers that compare it by ==.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return errors.Join(a, b)
}

// held returns why the lock that Lock has acquired is no longer held.
func (d *Driver) held() error {
	d.mu.Lock()
	lease := d.lease
	d.mu.Unlock()
	if lease == nil {
		return nil // without Lock, the driver decides
	}
	if err := lease.Err(); err != nil {
		return fmt.Errorf("migratelock: the database is not changed: %w", err)
	}
	return nil
}

// Run applies a migration. It does nothing if the lock was lost since Lock; the error then matches [lockkeeper.ErrLost]. A loss during
// Run does not stop it.
func (d *Driver) Run(migration io.Reader) error {
	if err := d.held(); err != nil {
		return err
	}
	return d.driver.Run(migration)
}

// SetVersion stores the version, unless the lock was lost since Lock; see Run.
func (d *Driver) SetVersion(version int, dirty bool) error {
	if err := d.held(); err != nil {
		return err
	}
	return d.driver.SetVersion(version, dirty)
}

// Version returns the version of the database.
func (d *Driver) Version() (version int, dirty bool, err error) { return d.driver.Version() }

// Drop deletes everything in the database, unless the lock was lost since Lock; see Run.
func (d *Driver) Drop() error {
	if err := d.held(); err != nil {
		return err
	}
	return d.driver.Drop()
}

// Close ends a Lock that waits, closes the driver, and then releases the lock if it is held.
func (d *Driver) Close() error {
	d.stop()
	err := d.driver.Close()
	d.mu.Lock()
	lease := d.lease
	d.mu.Unlock()
	if lease == nil {
		return err
	}
	return join(err, release(lease))
}
