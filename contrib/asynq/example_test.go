package asynqlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper"
	asynqlock "github.com/lockkeeper/lockkeeper/contrib/asynq"
	"github.com/lockkeeper/lockkeeper/joblimit"
)

// A worker that exports one customer at a time, however many workers there are.
func Example() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()

	limiter, err := joblimit.Exclusive(k, nil)
	if err != nil {
		log.Fatal(err)
	}
	byCustomer := func(_ context.Context, t *asynq.Task) string { return "customer:" + string(t.Payload()) }
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.Middleware(limiter, byCustomer))
	exported := make(chan string)
	mux.HandleFunc("export", func(_ context.Context, t *asynq.Task) error {
		exported <- string(t.Payload())
		return nil
	})

	config := asynq.Config{Concurrency: 20, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond}
	asynqlock.Configure(&config) // postponed tasks are not failures
	opt := asynq.RedisClientOpt{Addr: server.Addr()}
	worker := asynq.NewServer(opt, config)
	if err := worker.Start(mux); err != nil {
		log.Fatal(err)
	}
	defer worker.Shutdown()

	client := asynq.NewClient(opt)
	defer client.Close()
	if _, err := client.Enqueue(asynq.NewTask("export", []byte("42"))); err != nil {
		log.Fatal(err)
	}
	fmt.Println("exported customer", <-exported)
	// Output: exported customer 42
}
