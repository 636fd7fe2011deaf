//go:build unix

// Command twolimits calls an API that has two limits, such as 10 calls per second and 100 per minute, by several processes.
//
// Each limit is a rate limit with a name of its own. A call needs a permit of both. They are not taken in one step, so the order
// matters. The permit of the longer window comes first: its window has room for the time that the call then waits for the other.
// The permit of the shorter window comes last, so that the call follows it at once. Wait refuses nothing unless ctx has a deadline.
// If it does refuse the second permit, the first is not given back: a call less is made in that window, and never one too many.
//
//	go run ./examples/twolimits                                                      # an API and three processes that call it
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/twolimits caller http://…     # is one process that calls an API
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// limit is a limit of the API.
type limit struct {
	name   string
	calls  int
	window time.Duration
	margin time.Duration // by which calls may be under way longer than others, from their permit until they arrive
}

// The limits are those of an API with 10 calls per second and 100 per minute, made shorter for the example. The margin of the longer
// one includes the wait for a permit of the shorter one.
var (
	short = limit{"example:twolimits:short", 5, 250 * time.Millisecond, 50 * time.Millisecond}
	long  = limit{"example:twolimits:long", 12, 1500 * time.Millisecond, 500 * time.Millisecond}
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 3 && os.Args[1] == "caller" {
		err = caller(ctx, os.Getenv("REDIS_URL"), os.Args[2])
	} else {
		err = demo(os.Stdout)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "twolimits:", err)
		os.Exit(1)
	}
}

// caller calls the API as fast as it may, until ctx ends.
func caller(ctx context.Context, url, api string) error {
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
	perMinute, err := ratelimit.New(k, long.name, long.calls, long.window+long.margin, nil)
	if err != nil {
		return err
	}
	perSecond, err := ratelimit.New(k, short.name, short.calls, short.window+short.margin, nil)
	if err != nil {
		return err
	}
	for {
		// Do is Wait and then the function. It gets the number of the permit, from which the API of the example reads when the permit
		// was granted. Other programs can call Wait twice.
		err := perMinute.Do(ctx, func(ctx context.Context, minute uint64) error {
			return perSecond.Do(ctx, func(ctx context.Context, second uint64) error {
				return call(ctx, api, minute, second)
			})
		})
		if err != nil {
			return err
		}
	}
}

// call calls the API.
func call(ctx context.Context, api string, minute, second uint64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, api, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Permits", fmt.Sprint(minute, " ", second))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API answers %s", response.Status)
	}
	fmt.Println("called")
	return nil
}
