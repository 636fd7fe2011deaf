//go:build unix

// Command leader runs work in one process at a time, which others take over when it crashes or freezes.
//
// The processes are candidates. One of them is elected and leads until it dies, is frozen for longer than the lease lasts, or is
// told to end. Then another one is elected.
//
//	go run ./examples/leader                                                # starts three candidates, kills one, freezes another
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/leader candidate a   # is a candidate
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/leader watch         # prints who leads
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// The TTL is how long nobody leads after a leader has crashed. The default, 30 s, is right for most services; the example has no
// time for it.
const ttl = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch url := os.Getenv("REDIS_URL"); {
	case len(os.Args) == 3 && os.Args[1] == "candidate":
		err = candidate(ctx, url, os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == "watch":
		err = watch(ctx, url)
	default:
		err = demo(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

// candidate is a process that can lead.
func candidate(ctx context.Context, url, name string) error {
	e, end, err := open(url, name)
	if err != nil {
		return err
	}
	defer end()
	// Run waits until this process is elected, and calls lead each time that it is. It returns nil when ctx has ended.
	return e.Run(ctx, func(ctx context.Context, fence uint64) error {
		fmt.Println("leads, fence", fence)
		err := lead(ctx, fence)
		fmt.Println("steps down:", context.Cause(ctx))
		return err
	})
}

// lead does the leader's work until ctx ends. When lead returns, the process does not work as the leader any more, so that
// another one can.
func lead(ctx context.Context, fence uint64) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if ctx.Err() != nil { // both were ready, as after a freeze
				return nil
			}
			work(ctx, fence)
		case <-ctx.Done():
			return nil
		}
	}
}

// work stands for a step of the leader's work. Each write passes the fence, so that a store can reject a leader that was frozen
// between the check above and the write; see examples/payments.
func work(context.Context, uint64) {}

// watch prints who leads, each time that it changes.
func watch(ctx context.Context, url string) error {
	e, end, err := open(url, "watch")
	if err != nil {
		return err
	}
	defer end()
	for leader, err := range e.Watch(ctx) {
		switch {
		case err != nil:
			fmt.Println("not known:", err)
		case leader.Token == "":
			fmt.Println("nobody leads")
		default:
			fmt.Println(leader.Owner, "leads, fence", leader.Fence)
		}
	}
	return nil
}

// open returns the election. The function it returns must be called at the end.
func open(url, name string) (e *election.Election, end func(), err error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	rdb := redis.NewClient(o)
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{Owner: name})
	if err != nil {
		return nil, nil, err
	}
	m, err := mutex.New(k, "example:leader", &mutex.Options{TTL: ttl})
	if err != nil {
		return nil, nil, err
	}
	e, err = election.New(m, &election.Options{WatchInterval: 100 * time.Millisecond})
	return e, func() {
		_ = k.Close() // first the keeper, then the client
		_ = rdb.Close()
	}, err
}
