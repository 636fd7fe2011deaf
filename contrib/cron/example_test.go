package cronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/lockkeeper/lockkeeper"
	cronlock "github.com/lockkeeper/lockkeeper/contrib/cron"
)

// server starts a server within the process.
func server() *miniredis.Miniredis {
	s, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	s.ClockTTL(true)
	return s
}

// keeper returns the keeper of a process.
func keeper(s *miniredis.Miniredis) *lockkeeper.Keeper {
	k, err := lockkeeper.New(redis.NewClient(&redis.Options{Addr: s.Addr()}), nil)
	if err != nil {
		log.Fatal(err)
	}
	return k
}

// A scheduler on each of three hosts. Each second one of them runs the job.
func Example() {
	s := server()
	defer s.Close()
	schedule := cron.Every(time.Second)
	runs := make(chan uint64, 100)
	for range 3 {
		k := keeper(s)
		defer k.Close()
		job, err := cronlock.New(k, "nightly-report", cronlock.Period(schedule), func(ctx context.Context, fence uint64) error {
			runs <- fence
			return nil
		}, nil)
		if err != nil {
			log.Fatal(err)
		}
		c := cron.New(cron.WithLogger(cron.DiscardLogger))
		c.Schedule(schedule, job)
		c.Start()
		defer func() { <-c.Stop().Done() }()
	}
	first, second := <-runs, <-runs
	fmt.Println("the fence has increased:", second > first)
	// Output: the fence has increased: true
}

// A job that exists already is wrapped, beside other wrappers.
func ExampleWrap() {
	s := server()
	defer s.Close()
	k := keeper(s)
	defer k.Close()
	schedule, err := cron.ParseStandard("0 2 * * *")
	if err != nil {
		log.Fatal(err)
	}
	onOneHost, err := cronlock.Wrap(k, "nightly-report", cronlock.Period(schedule), nil)
	if err != nil {
		log.Fatal(err)
	}
	report := cron.FuncJob(func() { fmt.Println("makes the report") })
	job := cron.NewChain(cron.Recover(cron.DefaultLogger), onOneHost).Then(report)

	c := cron.New()
	c.Schedule(schedule, job) // and c.Start()
	job.Run()
	job.Run() // as on another host: it is skipped
	// Output: makes the report
}
