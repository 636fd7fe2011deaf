package lockkeepertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// run runs a test within an example, and prints how it fails. Tests have a *testing.T instead.
func run(test func(t testing.TB)) {
	for _, failure := range failuresOf(exampleT{}, test) {
		fmt.Println(failure)
	}
}

// exampleT has the other methods of a *testing.T that the package uses.
type exampleT struct{ testing.TB }

func (exampleT) Name() string             { return "TestExample" }
func (exampleT) Output() io.Writer        { return io.Discard }
func (exampleT) Context() context.Context { return context.Background() }
func (exampleT) Logf(string, ...any)      {}

// A test starts a server, gives the code under test a keeper, and takes its lock away. In these examples, run calls a function as
// go test calls func TestX(t *testing.T). In a testing/synctest bubble the test would take no time.
func Example() {
	// The code under test works until it has finished or its lock is lost.
	export := func(ctx context.Context, k *lockkeeper.Keeper) error {
		m, err := mutex.New(k, "export", &mutex.Options{TTL: 1500 * time.Millisecond})
		if err != nil {
			return err
		}
		return m.Do(ctx, func(ctx context.Context, fence uint64) error {
			<-ctx.Done() // instead of work that takes long
			return context.Cause(ctx)
		})
	}

	run(func(t testing.TB) { // func TestExportStopsWhenItsLockIsLost(t *testing.T)
		s := lockkeepertest.New(t)
		k := s.Keeper(t, nil)
		exported := make(chan error, 1)
		go func() { exported <- export(t.Context(), k) }()

		s.LoseLease(t, "export") // waits until it is held
		if err := <-exported; !errors.Is(err, lockkeeper.ErrLost) {
			t.Errorf("export returned %v", err)
		}
		s.RequireFree(t, "export")
		fmt.Println("export has stopped")
	})
	// Output: export has stopped
}

// Another process gets the lock before its holder has noticed. The store must refuse the former holder by its fence.
func ExampleServer_StealLock() {
	run(func(t testing.TB) {
		s := lockkeepertest.New(t)
		m, err := mutex.New(s.Keeper(t, nil), "ledger", nil)
		if err != nil {
			t.Fatal(err)
		}
		var largest uint64
		write := func(fence uint64) (ok bool) { // the code under test
			if fence < largest {
				return false
			}
			largest = fence
			return true
		}

		lease, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release(t.Context()) // returns ErrLost
		thief := s.StealLock(t, "ledger")
		fmt.Println("the new holder writes:", write(thief.Fence()))
		fmt.Println("the former holder writes:", write(lease.Fence()))
		fmt.Println(thief.Release(t.Context()))
	})
	// Output:
	// the new holder writes: true
	// the former holder writes: false
	// <nil>
}

// Each keeper stands for a process. When the holder's process crashes, the waiter's process takes over.
func ExampleServer_CrashHolder() {
	run(func(t testing.TB) {
		s := lockkeepertest.New(t)
		options := &fair.Options{TTL: 1500 * time.Millisecond}
		first, err := fair.New(s.Keeper(t, nil), "import", options)
		if err != nil {
			t.Fatal(err)
		}
		second, err := fair.New(s.Keeper(t, nil), "import", options)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := first.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		tookOver := make(chan error, 1)
		go func() {
			tookOver <- second.Do(t.Context(), func(context.Context, uint64) error { return nil })
		}()
		s.RequireWaiting(t, "import", 1)
		s.CrashHolder(t, "import")
		fmt.Println(<-tookOver) // when the lease of the first has expired
	})
	// Output: <nil>
}

// An outage is an error of its own, and ends with Restore.
func ExampleServer_Unreachable() {
	run(func(t testing.TB) {
		s := lockkeepertest.New(t)
		m, err := mutex.New(s.Keeper(t, nil), "orders:42", nil)
		if err != nil {
			t.Fatal(err)
		}

		s.Unreachable()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = m.Lock(ctx)
		fmt.Println("unavailable:", errors.Is(err, lockkeeper.ErrUnavailable))
		fmt.Println("held elsewhere:", errors.Is(err, lockkeeper.ErrNotAcquired))

		s.Restore()
		lease, err := m.Lock(t.Context())
		fmt.Println(err)
		_ = lease.Release(t.Context())
	})
	// Output:
	// unavailable: true
	// held elsewhere: false
	// <nil>
}

// A failover loses a lease that was granted shortly before it.
func ExampleServer_Failover() {
	run(func(t testing.TB) {
		s := lockkeepertest.New(t)
		m, err := mutex.New(s.Keeper(t, nil), "orders:42", nil)
		if err != nil {
			t.Fatal(err)
		}
		var lease *lockkeeper.Lease
		s.Failover(t, func() { lease, err = m.Lock(t.Context()) })
		if err != nil {
			t.Fatal(err)
		}
		s.RequireFree(t, "orders:42") // although there is a holder
		fmt.Println("lost:", errors.Is(lease.Extend(t.Context(), time.Minute), lockkeeper.ErrLost))
	})
	// Output: lost: true
}

// Code that makes its own keeper is given a client.
func ExampleServer_Client() {
	run(func(t testing.TB) {
		s := lockkeepertest.New(t)
		rdb := s.Client(t)

		k, err := lockkeeper.New(rdb, nil) // the code under test
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close() // or the test fails
		m, err := mutex.New(k, "orders:42", nil)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.RequireHeld(t, "orders:42")
		fmt.Println(lease.Release(t.Context()))
	})
	// Output: <nil>
}

// A Recorder waits for events of a keeper, here for the loss of a lease.
func ExampleRecorder() {
	run(func(t testing.TB) {
		s := lockkeepertest.New(t)
		var r lockkeepertest.Recorder
		k := s.Keeper(t, &lockkeeper.Options{Hooks: r.Hooks()})
		m, err := mutex.New(k, "orders:42", &mutex.Options{TTL: 1500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release(t.Context()) // returns ErrLost

		s.LoseLease(t, "orders:42")
		lost := r.Require(t, "Lost", "orders:42") // waits for the next renewal
		fmt.Println(lost.Kind, lost.Name, errors.Is(lost.Err, lockkeeper.ErrLost))
	})
	// Output: mutex orders:42 true
}

// CheckFencing tests whether a store refuses the fences of former holders: here a value in memory, with the largest fence that it has
// seen.
func ExampleCheckFencing() {
	var t *testing.T // the argument of the test function
	stale := errors.New("another holder has come since")
	lockkeepertest.CheckFencing(t, func(t *testing.T) lockkeepertest.Store {
		// An empty store for each check; for a database, an empty table.
		var mu sync.Mutex // the check and the access are one step
		var value string
		var largest uint64
		access := func(fence uint64, f func()) error {
			mu.Lock()
			defer mu.Unlock()
			if fence < largest {
				return stale
			}
			largest = fence
			f()
			return nil
		}
		return lockkeepertest.Store{
			Write: func(ctx context.Context, fence uint64, v string) error {
				return access(fence, func() { value = v })
			},
			Read: func(ctx context.Context, fence uint64) (v string, err error) {
				err = access(fence, func() { v = value })
				return v, err
			},
			Stale: stale,
		}
	})
}
