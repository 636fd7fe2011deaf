package joblimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/joblimit"
)

// Two calls a minute for each customer; a third job is given back to its queue.
func ExampleLimiter_Do() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()

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
