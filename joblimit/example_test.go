package joblimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/joblimit"
)

// Two calls a minute for each customer; a third job is given back to its queue.
func ExampleLimiter_Do() {
	k, end := example.Keeper()
	defer end()

	l, err := joblimit.Rate(k, 2, time.Minute, nil)
	if err != nil {
		log.Fatal(err)
	}
	for job := range 3 {
		err := l.Do(context.Background(), "customer:42", func(context.Context) error {
			fmt.Println("job", job, "has run")
			return nil
		})
		var p *joblimit.PostponedError
		switch {
		case errors.As(err, &p):
			fmt.Println("job", job, "is postponed by about", p.RetryAfter.Round(10*time.Second))
		case err != nil:
			log.Fatal(err)
		}
	}
	// Output:
	// job 0 has run
	// job 1 has run
	// job 2 is postponed by about 1m0s
}

// One job of a customer at a time. The worker waits for a short time before it gives the job back to its queue.
func ExampleExclusive() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, _ := joblimit.Exclusive(k, &joblimit.Options{MaxWait: 50 * time.Millisecond, RetryAfter: 10 * time.Second})
	err := l.Do(ctx, "customer:42", func(ctx context.Context) error {
		fmt.Println("with a fence:", lockkeeper.LeaseFromContext(ctx).Fence() > 0)

		// Another job of the same customer, on another worker:
		err := l.Do(ctx, "customer:42", func(context.Context) error { return nil })
		var p *joblimit.PostponedError
		fmt.Println("postponed:", errors.As(err, &p), p.RetryAfter >= 10*time.Second)
		return nil
	})
	fmt.Println(err)
	// Output:
	// with a fence: true
	// postponed: true true
	// <nil>
}

// Of each customer at most a hundred jobs a minute, and two at a time.
func ExampleConcurrentRate() {
	k, end := example.Keeper()
	defer end()
	l, _ := joblimit.ConcurrentRate(k, 100, time.Minute, 2, nil)
	err := l.Do(context.Background(), "customer:42", func(ctx context.Context) error {
		return ctx.Err() // work here; ctx ends if the lease is lost
	})
	fmt.Println(err)
	// Output: <nil>
}

// A job in its last attempt cannot be postponed: it waits for its turn.
func ExampleLimiter_DoWait() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	l, _ := joblimit.Rate(k, 1, 100*time.Millisecond, nil)
	for attempt := range 2 {
		err := l.DoWait(ctx, "customer:42", func(context.Context) error {
			fmt.Println("job", attempt, "has run")
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// job 0 has run
	// job 1 has run
}
