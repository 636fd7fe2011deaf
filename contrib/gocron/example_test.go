package gocronlock_test

import (
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper"
	gocronlock "github.com/lockkeeper/lockkeeper/contrib/gocron"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// keeper returns a keeper on a new embedded server.
func keeper() *lockkeeper.Keeper {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	server.ClockTTL(true)
	k, err := lockkeeper.New(redis.NewClient(&redis.Options{Addr: server.Addr()}), nil)
	if err != nil {
		log.Fatal(err)
	}
	return k
}

// The scheduler that leads runs all jobs.
func ExampleNewElector() {
	k := keeper()
	defer k.Close()
	m, err := mutex.New(k, "scheduler", nil)
	if err != nil {
		log.Fatal(err)
	}
	elector, err := gocronlock.NewElector(m, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer elector.Close()

	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan bool, 100)
	job := func() { ran <- elector.Lease().Fence() > 0 }
	if _, err := s.NewJob(gocron.DurationJob(100*time.Millisecond), gocron.NewTask(job)); err != nil {
		log.Fatal(err)
	}
	s.Start()
	defer s.Shutdown() // before the elector is closed
	fmt.Println("ran as the leader:", <-ran)
	// Output: ran as the leader: true
}

// Each job is locked by its name, for nine tenths of its interval at least.
func ExampleNewLocker() {
	k := keeper()
	defer k.Close()
	const interval = time.Second
	locker, err := gocronlock.NewLocker(k, interval*9/10, nil)
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan string, 100)
	for range 3 { // in three processes
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
		if err != nil {
			log.Fatal(err)
		}
		job := func() { ran <- "ran on one of three schedulers" }
		if _, err := s.NewJob(gocron.DurationJob(interval), gocron.NewTask(job), gocron.WithName("report")); err != nil {
			log.Fatal(err)
		}
		s.Start()
		defer s.Shutdown()
	}
	fmt.Println(<-ran)
	// Output: ran on one of three schedulers
}
