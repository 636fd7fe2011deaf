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
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/joblimit"
	"github.com/lockkeeper/lockkeeper/mutex"
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

// The scheduler runs on several hosts, of which the leader enqueues. When it goes, another one takes over.
func Example_scheduler() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	opt := asynq.RedisClientOpt{Addr: server.Addr()}

	enqueued := make(chan int)
	// host runs a candidate until ctx ends, and closes ended when it has shut down.
	host := func(ctx context.Context, number int, ended chan<- struct{}) {
		defer close(ended)
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		k, err := lockkeeper.New(rdb, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer k.Close()
		m, err := mutex.New(k, "asynq-scheduler", nil)
		if err != nil {
			log.Fatal(err)
		}
		err = election.Run(ctx, m, func(ctx context.Context, _ uint64) error {
			scheduler := asynq.NewScheduler(opt, &asynq.SchedulerOpts{ // one for each term: it cannot be started again
				LogLevel: asynq.FatalLevel,
				PostEnqueueFunc: func(*asynq.TaskInfo, error) {
					select {
					case enqueued <- number:
					case <-ctx.Done():
					}
				},
			})
			if _, err := scheduler.Register("@every 1s", asynq.NewTask("report", nil)); err != nil {
				return err
			}
			if err := scheduler.Start(); err != nil { // not Run, which ends only with a signal
				return err
			}
			defer scheduler.Shutdown()
			<-ctx.Done() // leadership is lost, or the host shuts down
			return ctx.Err()
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	var cancels, ended = map[int]context.CancelFunc{}, map[int]chan struct{}{}
	for number := range 2 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		cancels[number], ended[number] = cancel, make(chan struct{})
		go host(ctx, number, ended[number])
	}
	leader := <-enqueued
	fmt.Println("the same host enqueues again:", <-enqueued == leader)
	cancels[leader]()
	<-ended[leader]
	fmt.Println("the other host has taken over:", <-enqueued == 1-leader)
	cancels[1-leader]()
	<-ended[1-leader]
	// Output:
	// the same host enqueues again: true
	// the other host has taken over: true
}
