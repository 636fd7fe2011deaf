package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// The demo's workers are processes: this program again, told to work until it is stopped. Each says on its standard
// output what it does, a JSON object a line.

// event is what a worker says.
type event struct {
	State  string `json:"state"`            // starts, waits, holds, leaves, left
	Keeper string `json:"keeper,omitempty"` // when it starts: how the server knows it
	Fence  uint64 `json:"fence,omitempty"`
	// What the protected resource saw when the worker came in, at the server and so in its order.
	Inside    string `json:"inside,omitempty"` // a worker that was still inside
	LastFence uint64 `json:"last_fence,omitempty"`
	Error     string `json:"error,omitempty"`
}

// The protected resource: who is inside, and the largest fence that came in.
var (
	enter = redis.NewScript(`
		local inside = redis.call('GET', KEYS[1])
		local last = redis.call('GET', KEYS[2])
		redis.call('SET', KEYS[1], ARGV[1])
		redis.call('SET', KEYS[2], ARGV[2])
		return {inside or '', last or '0'}`)
	depart = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
		return 1`)
)

func workerCommand() *cobra.Command {
	var addr, id string
	c := &cobra.Command{
		Use:    "demo-worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(c.Context())
			defer cancel()
			go func() { // the parent closes our input to stop us
				_, _ = os.Stdin.Read(make([]byte, 1))
				cancel()
			}()
			return work(ctx, addr, id)
		},
	}
	c.Flags().StringVar(&addr, "addr", "", "address of the server")
	c.Flags().StringVar(&id, "id", "", "name of the worker")
	return c
}

func work(ctx context.Context, addr, id string) error {
	say := func(e event) { _ = json.NewEncoder(os.Stdout).Encode(e) }
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	k, l, err := demoLock(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }()
	say(event{State: "starts", Keeper: k.ID()})
	keys := []string{"demo:inside", "demo:fence"}
	for ctx.Err() == nil {
		say(event{State: "waits"})
		err := l.Do(ctx, func(ctx context.Context, fence uint64) error {
			saw, err := enter.Run(ctx, rdb, keys, id, fence).StringSlice()
			if err != nil {
				return err
			}
			e := event{State: "holds", Fence: fence, Inside: saw[0]}
			_, _ = fmt.Sscan(saw[1], &e.LastFence)
			say(e)
			pause(ctx, 40, 120)
			err = depart.Run(context.WithoutCancel(ctx), rdb, keys[:1], id).Err()
			say(event{State: "leaves"})
			return err
		})
		if err != nil && ctx.Err() == nil {
			say(event{State: "left", Error: err.Error()})
			return err
		}
		say(event{State: "left"})
		pause(ctx, 10, 60)
	}
	return nil
}

// demoLock is the lock that all contend for.
func demoLock(rdb *redis.Client) (*lockkeeper.Keeper, *fair.Lock, error) {
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatLifetime: demoLifetime})
	if err != nil {
		return nil, nil, err
	}
	l, err := fair.New(k, demoName, &fair.Options{TTL: demoTTL})
	return k, l, err
}

// pause waits between least and most milliseconds, or until ctx ends.
func pause(ctx context.Context, least, most int) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(least+rand.IntN(most-least)) * time.Millisecond):
	}
}
