package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// Do locks, works and releases.
func ExampleMutex_Do() {
	k, end := example.Keeper()
	defer end()

	m, err := mutex.New(k, "orders:42", nil)
	if err != nil {
		log.Fatal(err)
	}
	err = m.Do(context.Background(), func(ctx context.Context, fence uint64) error {
		fmt.Println("charging, with a fence:", fence > 0)
		return ctx.Err() // nil as long as the lock is held
	})
	fmt.Println(err)
	// Output:
	// charging, with a fence: true
	// <nil>
}

// Lock waits until its context ends. The lease's context ends the work if the lock is lost, and each write carries
// the lease's fence.
func ExampleMutex_Lock() {
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "orders:42", nil)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	write := func(ctx context.Context, fence uint64) {
		fmt.Println("written:", ctx.Err() == nil && fence > 0)
	}
	write(lease.Context(ctx), lease.Fence())
	// Output:
	// written: true
}

// TryLock does not wait. A refusal is not a failure.
func ExampleMutex_TryLock() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "reindex", nil)

	lease, _ := m.TryLock(ctx)
	defer lease.Release(ctx)

	_, err := m.TryLock(ctx)
	switch {
	case errors.Is(err, lockkeeper.ErrNotAcquired):
		fmt.Println("somebody else does it")
	case err != nil:
		log.Fatal(err)
	}
	// Output:
	// somebody else does it
}

// A process acquires a lock and hands it over: the next process needs only the token.
func ExampleMutex_Adopt() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	handedOn, _ := mutex.New(k, "job:7", &mutex.Options{NoRenewal: true})
	m, _ := mutex.New(k, "job:7", nil)

	first, _ := handedOn.Lock(ctx)
	token := first.Token() // sent along with the job

	lease, err := m.Adopt(ctx, token)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same lock:", lease.Fence() == first.Fence())
	fmt.Println(lease.Release(ctx))

	_, err = m.Adopt(ctx, token)
	fmt.Println("too late:", errors.Is(err, lockkeeper.ErrLost))
	// Output:
	// the same lock: true
	// <nil>
	// too late: true
}

// A busy process takes many turns with one lease. Another process waits 20 ms longer at most.
func ExampleOptions_linger() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	partition, _ := mutex.New(k, "partition:3", &mutex.Options{Linger: 20 * time.Millisecond})

	fences := map[uint64]bool{}
	for range 1000 { // most turns take less than a microsecond
		err := partition.Do(ctx, func(ctx context.Context, fence uint64) error {
			fences[fence] = true
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("leases for 1000 turns: fewer than 100:", len(fences) < 100)
	// Output:
	// leases for 1000 turns: fewer than 100: true
}

// Holder says who holds the mutex, for people who wonder why they wait.
func ExampleMutex_Holder() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "orders:42", nil)

	lease, _ := m.Lock(ctx)
	holder, held, err := m.Holder(ctx)
	fmt.Println(held, holder.Keeper == k.ID(), holder.Fence == lease.Fence(), err)
	_ = lease.Release(ctx)
	_, held, err = m.Holder(ctx)
	fmt.Println(held, err)
	// Output:
	// true true true <nil>
	// false <nil>
}
