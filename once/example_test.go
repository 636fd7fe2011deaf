package once_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/once"
)

// A report that is started on every host each night, and made once.
func ExampleOnce_Do() {
	k, end := example.Keeper()
	defer end()

	o, err := once.New(k, "nightly-report", 20*time.Hour, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, host := range []string{"a", "b", "c"} {
		r, err := o.Do(context.Background(), func(context.Context, uint64) error {
			fmt.Println("made on host", host)
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Outcome, time.Until(r.Next).Round(time.Hour))
	}
	// Output:
	// made on host a
	// ran 20h0m0s
	// done 20h0m0s
	// done 20h0m0s
}

// Status says whether the job may be run.
func ExampleOnce_Status() {
	k, end := example.Keeper()
	defer end()

	ctx := context.Background()
	o, _ := once.New(k, "nightly-report", 20*time.Hour, nil)
	r, err := o.Status(ctx)
	fmt.Println(r.Outcome, err)
	_, _ = o.Do(ctx, func(context.Context, uint64) error { return nil })
	r, err = o.Status(ctx)
	fmt.Println(r.Outcome, err)
	// Output:
	// none <nil>
	// done <nil>
}

// A job that fails is free again at once, and the next call runs it. A success that could not be recorded is an error of its own.
func ExampleOnce_Do_failure() {
	k, end := example.Keeper()
	defer end()

	o, _ := once.New(k, "nightly-report", 20*time.Hour, nil)
	failures := 1
	for range 2 {
		r, err := o.Do(context.Background(), func(context.Context, uint64) error {
			if failures > 0 {
				failures--
				return errors.New("the disk is full")
			}
			return nil
		})
		var unrecorded *once.UnrecordedError
		switch {
		case errors.As(err, &unrecorded):
			fmt.Println("done, but it may be run again at", unrecorded.RunAgain)
		case r.Outcome == once.None:
			fmt.Println("not run:", err) // for example because Redis does not answer
		default:
			fmt.Println(r.Outcome, err)
		}
	}
	// Output:
	// ran the disk is full
	// ran <nil>
}

// Reset lets a job run again before its period has ended, for example because its result was wrong.
func ExampleOnce_Reset() {
	k, end := example.Keeper()
	defer end()

	ctx := context.Background()
	o, _ := once.New(k, "nightly-report", 20*time.Hour, nil)
	_, err := o.Do(ctx, func(ctx context.Context, _ uint64) error {
		err := o.Reset(ctx)
		fmt.Println("refused while the job is running:", errors.Is(err, lockkeeper.ErrNotAcquired))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := o.Reset(ctx); err != nil {
		log.Fatal(err)
	}
	r, err := o.Do(ctx, func(context.Context, uint64) error { return nil })
	fmt.Println(r.Outcome, err)
	// Output:
	// refused while the job is running: true
	// ran <nil>
}
