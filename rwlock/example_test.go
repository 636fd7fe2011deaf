package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// Any number of processes may read at the same time; a writer is alone.
func ExampleLock_DoRead() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, err := rwlock.New(k, "catalogue", nil)
	if err != nil {
		log.Fatal(err)
	}

	cache := map[string]string{}
	err = l.DoWrite(ctx, func(ctx context.Context, fence uint64) error {
		cache["price"], cache["currency"] = "42", "EUR" // readers see both or neither
		return ctx.Err()                                // nil as long as the lock is held
	})
	if err != nil {
		log.Fatal(err)
	}
	err = l.DoRead(ctx, func(ctx context.Context, fence uint64) error {
		fmt.Println(cache["price"], cache["currency"])
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// 42 EUR
	// <nil>
}

// After it has rebuilt a cache, a process downgrades to read it, which admits other readers but no writer.
func ExampleLock_Downgrade() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, _ := rwlock.New(k, "catalogue", nil)

	lease, _ := l.Lock(ctx)
	defer lease.Release(ctx)
	if err := l.Downgrade(ctx, lease); err != nil {
		log.Fatal(err)
	}

	other, err := l.TryRLock(ctx)
	fmt.Println("another reads:", err == nil)
	defer other.Release(ctx)
	_, err = l.TryLock(ctx)
	fmt.Println("another writes:", err == nil)
	// Output:
	// another reads: true
	// another writes: false
}

// A reader that must write upgrades its lease. Of two upgrades at the same time one fails, and must read again when
// it is granted the lock, because its data is out of date.
func ExampleLock_Upgrade() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, _ := rwlock.New(k, "counter", nil)

	counter := 0
	increase := func(lease *lockkeeper.Lease) {
		seen := counter
		err := l.Upgrade(ctx, lease)
		if errors.Is(err, rwlock.ErrUpgradeConflict) {
			fmt.Println("another upgrades: step back")
			_ = lease.Release(ctx)
			if lease, err = l.Lock(ctx); err == nil {
				seen = counter // read again
			}
		}
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Release(ctx)
		counter = seen + 1
		fmt.Println("counted to", counter)
	}

	one, _ := l.RLock(ctx)
	two, _ := l.RLock(ctx)
	var both sync.WaitGroup
	both.Go(func() { increase(one) })
	both.Go(func() { increase(two) })
	both.Wait()
	// Output:
	// another upgrades: step back
	// counted to 1
	// counted to 2
}

// RLocker is the lock for reading, where a Locker is needed; the lock itself is one for writing.
func ExampleLock_RLocker() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	source, _ := rwlock.New(k, "source", nil)
	target, _ := rwlock.New(k, "target", nil)

	leases, err := lockkeeper.LockAll(ctx, source.RLocker(), target) // to copy
	if err != nil {
		log.Fatal(err)
	}
	reader, err := source.TryRLock(ctx)
	fmt.Println("another reader:", err == nil)
	_ = reader.Release(ctx)
	_, err = target.TryRLock(ctx)
	fmt.Println("a reader of what is written:", err == nil)
	fmt.Println(leases.Release(ctx))
	// Output:
	// another reader: true
	// a reader of what is written: false
	// <nil>
}

// Readers hold the lock together, each with a lease of its own. A writer waits until they have released theirs.
func ExampleLock_RLock() {
	k, end := example.Keeper()
	defer end()
	l, _ := rwlock.New(k, "catalogue", nil)
	ctx := context.Background()

	one, err := l.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	two, err := l.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = l.TryLock(ctx)
	fmt.Println("a writer beside readers:", err == nil)
	_ = one.Release(ctx)
	_ = two.Release(ctx)

	write, err := l.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the fence is larger:", write.Fence() > two.Fence())
	fmt.Println(write.Release(ctx))
	// Output:
	// a writer beside readers: false
	// the fence is larger: true
	// <nil>
}

// The readers of a busy process share a lease, and most reads send nothing. A writer waits 20 ms longer at most.
func ExampleOptions_linger() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, _ := rwlock.New(k, "catalogue", &rwlock.Options{Linger: 20 * time.Millisecond})

	fences := map[uint64]bool{}
	for range 1000 {
		err := l.DoRead(ctx, func(ctx context.Context, fence uint64) error {
			fences[fence] = true
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("leases for 1000 reads: fewer than 100:", len(fences) < 100)
	// Output:
	// leases for 1000 reads: fewer than 100: true
}
