//go:build unix

// Command orders processes the orders of many customers by several workers: those of one customer in order and one at a time,
// those of different customers at the same time.
//
// The orders of a customer are in a list, which has their order. A fair lock for each customer lets one worker at a time process
// the first of the list, and gives every worker its turn. An order is removed from the list when it has been processed, so that if a
// worker crashes, the next one begins with the same order.
//
//	go run ./examples/orders                                          # starts three workers and kills one
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/orders worker  # is one worker
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/redis/go-redis/v9"
)

var customers = []string{"ann", "bob", "cem", "dee"}

// The TTL is how long the customer of a worker that has crashed must wait. The default is 30 s; the example has no time for it.
const ttl = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		err = worker(ctx, os.Getenv("REDIS_URL"))
	} else {
		err = demo(ctx, os.Stdout)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// worker processes orders of all customers until ctx ends. It queues for each of them at the same time.
func worker(ctx context.Context, url string) error {
	o, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		return err
	}
	defer k.Close() // before the client
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, customer := range customers {
		all.Go(func() { cancel(serve(ctx, k, rdb, customer)) }) // an error ends the other goroutines
	}
	all.Wait()
	return context.Cause(ctx)
}

// serve processes one order of a customer whenever it is this worker's turn.
func serve(ctx context.Context, k *lockkeeper.Keeper, rdb *redis.Client, customer string) error {
	lock, err := fair.New(k, "example:orders:"+customer, &fair.Options{TTL: ttl})
	if err != nil {
		return err
	}
	for {
		empty := false
		err := lock.Do(ctx, func(ctx context.Context, _ uint64) error {
			order, err := rdb.LIndex(ctx, ordersKey(customer), 0).Result()
			if errors.Is(err, redis.Nil) {
				empty = true
				return nil
			}
			if err != nil {
				return err
			}
			return process(ctx, rdb, customer, order)
		})
		switch {
		case errors.Is(err, lockkeeper.ErrLost):
			fmt.Println("lost", customer) // another worker goes on with the customer; this one queues again
		case err != nil:
			return err
		}
		if empty {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// finish records an order and removes it, if it is still the first. If it is not, this worker has lost the lock and another one has
// processed the order: then nothing is changed. A check of the fence would do the same.
var finish = redis.NewScript(`
	if redis.call('LINDEX', KEYS[1], 0) ~= ARGV[1] then return 0 end
	redis.call('LPOP', KEYS[1])
	redis.call('RPUSH', KEYS[2], ARGV[1])
	return 1`)

// process processes an order.
func process(ctx context.Context, rdb *redis.Client, customer, order string) error {
	fmt.Println("begins", order)
	select {
	case <-time.After(30 * time.Millisecond): // the work
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	done, err := finish.Run(ctx, rdb, []string{ordersKey(customer), doneKey(customer)}, order).Bool()
	switch {
	case err != nil:
		return err
	case done:
		fmt.Println("has processed", order)
	default:
		fmt.Println("was too late with", order)
	}
	return nil
}

// The keys of a customer are in one slot of a cluster.
func ordersKey(customer string) string { return "example:orders:{" + customer + "}" }
func doneKey(customer string) string   { return ordersKey(customer) + ":done" }
