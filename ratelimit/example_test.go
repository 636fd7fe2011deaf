package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// A hundred mails per minute and user. A refused caller learns when to try again.
func ExampleLimiter_AllowN() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	mails, err := ratelimit.New(k, "mails:user-7", 100, time.Minute, nil)
	if err != nil {
		log.Fatal(err)
	}

	for _, n := range []int{80, 30, 20} {
		r, err := mails.AllowN(ctx, n)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d mails: allowed %t, %d of %d remain\n", n, r.Allowed, r.Remaining, r.Limit)
		if !r.Allowed {
			seconds := (r.RetryAfter + time.Second - 1) / time.Second // as in a Retry-After header
			fmt.Println("retry after about a minute:", seconds > 55 && seconds <= 61)
		}
	}
	// Output:
	// 80 mails: allowed true, 20 of 100 remain
	// 30 mails: allowed false, 20 of 100 remain
	// retry after about a minute: true
	// 20 mails: allowed true, 0 of 100 remain
}

// Two in any window of 200 ms: the fifth waits for two windows.
func ExampleLimiter_Wait() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	reports, _ := ratelimit.New(k, "reports", 2, 200*time.Millisecond, nil)

	start := time.Now()
	for range 5 {
		if err := reports.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("two windows have passed:", time.Since(start) >= 400*time.Millisecond)
	// Output:
	// two windows have passed: true
}

// A call that cannot be granted before its context ends fails at once, and takes nothing.
func ExampleLimitedError() {
	k, end := example.Keeper()
	defer end()
	reports, _ := ratelimit.New(k, "reports", 2, time.Hour, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if err := reports.WaitN(ctx, 2); err != nil {
		log.Fatal(err)
	}
	err := reports.Wait(ctx) // does not wait for a minute
	var limited *ratelimit.LimitedError
	if errors.As(err, &limited) {
		fmt.Println("not acquired:", errors.Is(err, lockkeeper.ErrNotAcquired))
		deadline, _ := ctx.Deadline()
		fmt.Println("possible after the deadline:", limited.RetryAt.After(deadline))
	}
	// Output:
	// not acquired: true
	// possible after the deadline: true
}

// A hundred calls in any second, ten at once: both permits are taken in one step.
func ExampleConcurrentLimiter_AcquireN() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	api, _ := ratelimit.NewConcurrent(k, "api", 100, time.Second, 10, nil)

	lease, err := api.AcquireN(ctx, 10)
	if err != nil {
		log.Fatal(err)
	}
	_, err = api.TryAcquire(ctx)
	fmt.Println("one more at once:", err == nil)
	_, err = api.AcquireN(ctx, 11)
	fmt.Println(err)

	// The release lets others in. To the window the permits return a second after they were taken.
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	err = api.Do(ctx, func(ctx context.Context, fence uint64) error {
		return nil // call the API here; ctx ends if the lease is lost
	})
	fmt.Println("after the release:", err == nil)
	// Output:
	// one more at once: false
	// lockkeeper: ratelimit "api": invalid argument: n 11 is not between 1 and maxConcurrent 10
	// after the release: true
}

// The limit can be changed for all processes while they run.
func ExampleLimiter_SetLimit() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	api, _ := ratelimit.New(k, "api", 100, time.Minute, nil)
	r, err := api.AllowN(ctx, 60)
	fmt.Println(r.Remaining, err)

	// Lowered below what is taken: nothing is allowed until enough permits have returned.
	if err := api.SetLimit(ctx, 50); err != nil {
		log.Fatal(err)
	}
	r, err = api.Allow(ctx)
	fmt.Println(r.Allowed, r.Limit, r.Remaining, err)
	_, err = api.AllowN(ctx, 51)
	fmt.Println("51 are never possible:", errors.Is(err, ratelimit.ErrAboveLimit))

	if err := api.SetLimit(ctx, 100); err != nil {
		log.Fatal(err)
	}
	r, err = api.Allow(ctx)
	fmt.Println(r.Allowed, r.Limit, r.Remaining, err)
	// Output:
	// 40 <nil>
	// false 50 0 <nil>
	// 51 are never possible: true
	// true 100 39 <nil>
}

// A service has answered 429 with Retry-After: all processes wait, until the pause is over or somebody ends it.
func ExampleLimiter_Pause() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	api, _ := ratelimit.New(k, "api", 100, time.Second, nil)

	if err := api.Pause(ctx, time.Minute); err != nil { // the Retry-After of the response
		log.Fatal(err)
	}
	r, err := api.Allow(ctx)
	fmt.Println(r.Allowed, r.RetryAfter.Round(10*time.Second), err)

	if err := api.Resume(ctx); err != nil { // the service works again
		log.Fatal(err)
	}
	r, err = api.Allow(ctx)
	fmt.Println(r.Allowed, err)
	// Output:
	// false 1m0s <nil>
	// true <nil>
}
