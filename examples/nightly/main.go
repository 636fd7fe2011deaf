//go:build unix

// Command nightly makes a report once a night, although three hosts start it.
//
// Cron starts the program on every host at the same time, so that the report is made even if a host is down. One of them makes
// it. The others do not, but wait until it has been made: if the host that makes it crashes half-way, another one starts again.
// A host that starts later finds that it has been made.
//
//	go run ./examples/nightly                                          # starts three hosts and kills the one at work
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/nightly host    # is one host
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/redis/go-redis/v9"
)

const (
	// The period is shorter than a day, by more than the times at which hosts start can differ.
	period = 20 * time.Hour

	// The TTL is how long after a crash another host may start again. The default, 30 s, is right for most jobs; the example
	// has no time for it.
	ttl = time.Second

	pages = 10 // of the report
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == "host" {
		err = host(ctx, os.Getenv("REDIS_URL"))
	} else {
		err = demo(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// host is what each host does.
func host(ctx context.Context, url string) error {
	job, end, err := open(url)
	if err != nil {
		return err
	}
	defer end()
	for {
		r, err := job.Do(ctx, makeReport)
		if err != nil {
			return err // the report failed, or Redis did not answer
		}
		switch r.Outcome {
		case once.Ran:
			fmt.Println("made the report")
			return nil
		case once.Done:
			fmt.Println("the report was made elsewhere; next one in", time.Until(r.Next).Round(time.Hour))
			return nil
		case once.Running:
			fmt.Println("the report is being made elsewhere")
		}
		// Look again when the lease of the other host would end if it has crashed. A job that need not be repeated before the
		// next night can return here.
		select {
		case <-time.After(time.Until(r.Next) + 100*time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// makeReport is the job. It may be started more than once, because a host can crash, so it begins with a file of its own and
// not where another host has stopped.
func makeReport(ctx context.Context, _ uint64) error {
	for page := range pages {
		fmt.Printf("writes page %d of %d\n", page+1, pages)
		select {
		case <-time.After(100 * time.Millisecond): // the work
		case <-ctx.Done(): // the lease is lost, so another host may have started
			return context.Cause(ctx)
		}
	}
	return nil
}

// open returns the job. The function it returns must be called at the end.
func open(url string) (job *once.Once, end func(), err error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	rdb := redis.NewClient(o)
	k, err := lockkeeper.New(rdb, nil)
	if err == nil {
		job, err = once.New(k, "nightly-report", period, &once.Options{TTL: ttl})
	}
	return job, func() {
		_ = k.Close() // first the keeper, which releases what is held, then the client
		_ = rdb.Close()
	}, err
}
