package fair_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
)

// Lock waits in the queue until the lock is granted or its context ends.
func ExampleLock_Lock() {
	k, end := example.Keeper()
	defer end()
	l, err := fair.New(k, "migrate", nil)
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := l.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	work := lease.Context(ctx) // ends if the lock is lost
	fmt.Println("working, with a fence:", work.Err() == nil && lease.Fence() > 0)
	// Output:
	// working, with a fence: true
}

// Waiters lists the waiters of all processes in the order in which they will be served.
func ExampleLock_Waiters() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, _ := fair.New(k, "migrate", nil)

	first, err := l.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	second := make(chan *lockkeeper.Lease)
	go func() {
		lease, _ := l.Lock(ctx)
		second <- lease
	}()

	var waiters []lockkeeper.Waiter
	for len(waiters) == 0 {
		if waiters, err = l.Waiters(ctx); err != nil {
			log.Fatal(err)
		}
	}
	for _, w := range waiters {
		fmt.Println("waiting: of this process:", w.Keeper == k.ID(), "alive:", w.Alive)
	}
	next := waiters[0].Token

	_ = first.Release(ctx)
	lease := <-second
	fmt.Println("the first waiter was served:", lease.Token() == next)
	_ = lease.Release(ctx)
	// Output:
	// waiting: of this process: true alive: true
	// the first waiter was served: true
}

// TryLock does not wait: somebody else has the lock, or is queued for it.
func ExampleLock_TryLock() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, _ := fair.New(k, "migrate", nil)

	lease, err := l.TryLock(ctx)
	fmt.Println(err)
	_, err = l.TryLock(ctx)
	fmt.Println("held elsewhere:", errors.Is(err, lockkeeper.ErrNotAcquired))
	fmt.Println(lease.Release(ctx))
	// Output:
	// <nil>
	// held elsewhere: true
	// <nil>
}

// Do queues, works and releases.
func ExampleLock_Do() {
	k, end := example.Keeper()
	defer end()
	l, _ := fair.New(k, "customer:7", &fair.Options{TTL: 10 * time.Second})
	err := l.Do(context.Background(), func(ctx context.Context, fence uint64) error {
		fmt.Println("working, with a fence:", fence > 0)
		return ctx.Err() // nil as long as the lock is held
	})
	fmt.Println(err)
	// Output:
	// working, with a fence: true
	// <nil>
}
