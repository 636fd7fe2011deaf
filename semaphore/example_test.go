package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// Three encoders at once, in all processes together. A large film takes two of the permits.
func ExampleSemaphore_DoN() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	encoders, err := semaphore.New(k, "encoders", 3, nil)
	if err != nil {
		log.Fatal(err)
	}

	err = encoders.DoN(ctx, 2, func(ctx context.Context, fence uint64) error {
		free, err := encoders.Available(ctx)
		fmt.Println("meanwhile there are", free)
		return err // encode here; ctx ends if the lease is lost
	})
	fmt.Println(err)
	free, err := encoders.Available(ctx)
	fmt.Println("now there are", free, err)
	// Output:
	// meanwhile there are 1
	// <nil>
	// now there are 3 <nil>
}

// The limit can be changed for all processes while they run.
func ExampleSemaphore_SetLimit() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	s, _ := semaphore.New(k, "imports", 4, nil)
	lease, _ := s.AcquireN(ctx, 3)
	defer lease.Release(ctx)

	// Lowered below what is held: nobody loses anything, and nobody gets in until enough have ended.
	if err := s.SetLimit(ctx, 2); err != nil {
		log.Fatal(err)
	}
	free, _ := s.Available(ctx)
	fmt.Println("held:", lease.Err() == nil, "free:", free)
	_, err := s.TryAcquireN(ctx, 3)
	fmt.Println("three can never be had:", errors.Is(err, semaphore.ErrAboveLimit))

	if err := s.SetLimit(ctx, 5); err != nil {
		log.Fatal(err)
	}
	free, _ = s.Available(ctx)
	fmt.Println("free:", free)
	// Output:
	// held: true free: 0
	// three can never be had: true
	// free: 2
}

// TryAcquireN does not wait for permits.
func ExampleSemaphore_TryAcquireN() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	encoders, _ := semaphore.New(k, "encoders", 3, nil)

	lease, err := encoders.TryAcquireN(ctx, 2)
	if err != nil {
		log.Fatal(err)
	}
	_, err = encoders.TryAcquireN(ctx, 2)
	fmt.Println("no permits:", errors.Is(err, lockkeeper.ErrNotAcquired))
	_ = lease.Release(ctx)
	lease, err = encoders.TryAcquireN(ctx, 2)
	fmt.Println("permits:", err == nil)
	_ = lease.Release(ctx)
	// Output:
	// no permits: true
	// permits: true
}

// A number of permits is a Locker, for example to acquire it together with another lock.
func ExampleSemaphore_LockerN() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	encoders, _ := semaphore.New(k, "encoders", 3, nil)
	disks, _ := semaphore.New(k, "disks", 1, nil)
	two, err := encoders.LockerN(2)
	if err != nil {
		log.Fatal(err)
	}

	leases, err := lockkeeper.LockAll(ctx, two, disks.Locker())
	if err != nil {
		log.Fatal(err)
	}
	freeEncoders, _ := encoders.Available(ctx)
	freeDisks, _ := disks.Available(ctx)
	fmt.Println(freeEncoders, freeDisks)
	fmt.Println(leases.Release(ctx))
	// Output:
	// 1 0
	// <nil>
}

// AcquireN waits in the queue until its context ends, and returns one lease over all its permits.
func ExampleSemaphore_AcquireN() {
	k, end := example.Keeper()
	defer end()
	encoders, _ := semaphore.New(k, "encoders", 10, nil)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := encoders.AcquireN(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	holders, err := encoders.Holders(ctx)
	for _, h := range holders {
		fmt.Println("held:", h.Permits)
	}
	fmt.Println(err)
	// Output:
	// held: 3
	// <nil>
}
