//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/lockkeeper/lockkeeper/examples/internal/processes"
	"github.com/redis/go-redis/v9"
)

const each = 6 // orders of each customer

// demo puts orders into the lists, starts three workers, kills one of them while it processes an order, and waits until all orders
// have been processed. It returns an error if those of a customer were not processed in order.
func demo(ctx context.Context, out io.Writer) error {
	g, err := processes.New(out)
	if err != nil {
		return err
	}
	defer g.Close()
	o, err := redis.ParseURL(g.URL)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	left := 0
	for _, customer := range customers {
		if err := rdb.Del(ctx, ordersKey(customer), doneKey(customer)).Err(); err != nil {
			return err
		}
		for i := range each {
			if err := rdb.RPush(ctx, ordersKey(customer), order(customer, i)).Err(); err != nil {
				return err
			}
			left++
		}
		defer rdb.Del(ctx, ordersKey(customer), doneKey(customer))
	}
	for _, name := range []string{"worker-1", "worker-2", "worker-3"} {
		if err := g.Start(name, "worker"); err != nil {
			return err
		}
	}
	for ; left > len(customers)*each/2; left-- {
		if _, err := g.Until("has processed"); err != nil {
			return err
		}
	}
	unlucky, err := g.Until("begins")
	if err != nil {
		return err
	}
	if err := g.Kill(unlucky.Process); err != nil {
		return err
	}
	for _, customer := range customers {
		if err := inOrder(ctx, g, rdb, customer); err != nil {
			return err
		}
	}
	return nil
}

// inOrder waits until all orders of a customer have been processed and checks that this was done in order.
func inOrder(ctx context.Context, g *processes.Group, rdb *redis.Client, customer string) error {
	var want []string
	for i := range each {
		want = append(want, order(customer, i))
	}
	for {
		done, err := rdb.LRange(ctx, doneKey(customer), 0, -1).Result()
		switch {
		case err != nil:
			return err
		case slices.Equal(done, want):
			return nil
		case len(done) >= each || !slices.Equal(done, want[:len(done)]):
			return fmt.Errorf("the orders of %s were processed as %v", customer, done)
		}
		if _, err := g.Until(""); err != nil { // anything that a worker prints
			return err
		}
	}
}

func order(customer string, i int) string { return fmt.Sprintf("%s-%d", customer, i+1) }
