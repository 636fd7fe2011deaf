package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// newKeeper returns a keeper, here on a server within the process.
func newKeeper() (k *lockkeeper.Keeper, end func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	server.ClockTTL(true) // leases end
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	k, err = lockkeeper.New(rdb, nil)
	if err != nil {
		log.Fatal(err)
	}
	return k, func() {
		_ = k.Close()
		_ = rdb.Close()
		server.Close()
	}
}

// Three encoders at once, in all processes together. A large film takes two of the permits.
func ExampleSemaphore_Do() {
	ctx := context.Background()
	k, end := newKeeper()
	defer end()
	encoders, err := semaphore.New(k, "encoders", 3, nil)
	if err != nil {
		log.Fatal(err)
	}

	err = encoders.Do(ctx, 2, func(ctx context.Context, fence uint64) error {
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

// A hundred permits a minute, which return by the clock. Who does not get one learns when to come back.
func ExampleSemaphore_TryAcquire() {
	ctx := context.Background()
	k, end := newKeeper()
	defer end()
	mails, err := semaphore.New(k, "mails:user-7", 100, &semaphore.Options{Per: time.Minute})
	if err != nil {
		log.Fatal(err)
	}

	send := func(n int) {
		_, err := mails.TryAcquire(ctx, n) // there is nothing to release
		var soon *semaphore.RateError
		switch {
		case err == nil:
			fmt.Println(n, "may go")
		case errors.As(err, &soon):
			seconds := (soon.RetryAfter + time.Second - 1) / time.Second // as in a Retry-After header
			fmt.Println(n, "have to wait; about a minute:", seconds > 55 && seconds <= 61)
		default:
			log.Fatal(err)
		}
	}
	send(80)
	send(30)
	send(20)
	// Output:
	// 80 may go
	// 30 have to wait; about a minute: true
	// 20 may go
}

// Two in any window of 200 ms: the fifth has to wait for two of them.
func ExampleSemaphore_Acquire() {
	ctx := context.Background()
	k, end := newKeeper()
	defer end()
	s, err := semaphore.New(k, "reports", 2, &semaphore.Options{Per: 200 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}

	start := time.Now()
	for range 5 {
		if _, err := s.Acquire(ctx, 1); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("two windows have gone:", time.Since(start) >= 400*time.Millisecond)
	// Output:
	// two windows have gone: true
}

// A request that cannot be served before its context ends fails at once and takes nothing.
func ExampleRateError() {
	k, end := newKeeper()
	defer end()
	s, err := semaphore.New(k, "reports", 2, &semaphore.Options{Per: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if _, err := s.Acquire(ctx, 2); err != nil {
		log.Fatal(err)
	}
	_, err = s.Acquire(ctx, 1) // does not wait for the minute
	var soon *semaphore.RateError
	if errors.As(err, &soon) {
		fmt.Println("not acquired:", errors.Is(err, lockkeeper.ErrNotAcquired))
		deadline, _ := ctx.Deadline()
		fmt.Println("possible after the deadline:", soon.RetryAt.After(deadline))
	}
	// Output:
	// not acquired: true
	// possible after the deadline: true
}

// Ten calls at once and a hundred in any second: both permits are taken in one step.
func ExampleOptions() {
	ctx := context.Background()
	k, end := newKeeper()
	defer end()
	api, err := semaphore.New(k, "api", 100, &semaphore.Options{Per: time.Second, AtOnce: 10})
	if err != nil {
		log.Fatal(err)
	}

	lease, err := api.Acquire(ctx, 10)
	if err != nil {
		log.Fatal(err)
	}
	_, err = api.TryAcquire(ctx, 1)
	fmt.Println("one more at once:", err == nil)
	_, err = api.Acquire(ctx, 11)
	fmt.Println(err)

	// What is held at once returns with the lease; what was taken of the hundred returns a second after it was.
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	lease, err = api.TryAcquire(ctx, 1)
	fmt.Println("after the release:", err == nil)
	_ = lease.Release(ctx)
	// Output:
	// one more at once: false
	// lockkeeper: invalid argument: n 11 is not between 1 and AtOnce 10
	// after the release: true
}

// The limit can be changed for all processes while they run.
func ExampleSemaphore_SetLimit() {
	ctx := context.Background()
	k, end := newKeeper()
	defer end()
	s, err := semaphore.New(k, "imports", 4, nil)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := s.Acquire(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	// Lowered below what is held: nobody loses anything, and nobody gets in until enough have ended.
	if err := s.SetLimit(ctx, 2); err != nil {
		log.Fatal(err)
	}
	free, _ := s.Available(ctx)
	fmt.Println("held:", lease.Err() == nil, "free:", free)
	_, err = s.TryAcquire(ctx, 3)
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
