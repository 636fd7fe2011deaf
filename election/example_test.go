package election_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// newMutex returns a mutex of a keeper, here on a server within the process.
func newMutex(name string) (m *mutex.Mutex, end func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	server.ClockTTL(true) // leases end
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{Owner: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	m, err = mutex.New(k, name, nil)
	if err != nil {
		log.Fatal(err)
	}
	return m, func() {
		_ = k.Close()
		_ = rdb.Close()
		server.Close()
	}
}

// Lead until the process is told to stop. Run returns when lead has returned and the lock is released, so close the keeper after
// that.
func ExampleRun() {
	m, end := newMutex("scheduler")
	defer end()
	ctx, stop := context.WithCancel(context.Background()) // in a program, signal.NotifyContext

	err := election.Run(ctx, m, func(ctx context.Context, fence uint64) error {
		fmt.Println("leading, with a fence:", fence > 0)
		stop() // here, so that the example ends
		<-ctx.Done()
		fmt.Println("stepping down")
		return nil
	})
	fmt.Println(err)
	// Output:
	// leading, with a fence: true
	// stepping down
	// <nil>
}

// A leader that cannot work resigns, so that another candidate is elected, and remains a candidate.
func ExampleElection_Run() {
	m, end := newMutex("scheduler")
	defer end()
	e, err := election.New(m, nil)
	if err != nil {
		log.Fatal(err)
	}
	healthy := false
	err = e.Run(context.Background(), func(context.Context, uint64) error {
		if !healthy {
			fmt.Println("resigning")
			healthy = true
			return election.ErrResign
		}
		fmt.Println("leading:", e.Leading())
		return nil // the work is done
	})
	fmt.Println(err, e.Leading())
	// Output:
	// resigning
	// leading: true
	// <nil> false
}

// Any process can ask who leads.
func ExampleElection_Leader() {
	m, end := newMutex("scheduler")
	defer end()
	ctx := context.Background()
	e, err := election.New(m, nil)
	if err != nil {
		log.Fatal(err)
	}
	err = e.Run(ctx, func(context.Context, uint64) error {
		leader, held, err := e.Leader(ctx)
		fmt.Println(leader.Owner, held)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	_, held, err := e.Leader(ctx)
	fmt.Println(held, err)
	// Output:
	// host-1 true
	// false <nil>
}

// Watch returns each change of leadership.
func ExampleElection_Watch() {
	m, end := newMutex("scheduler")
	defer end()
	e, err := election.New(m, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	finish, finished := make(chan struct{}), make(chan error)
	lead := func(context.Context, uint64) error {
		<-finish
		return nil
	}
	terms := 0
	for leader, err := range e.Watch(ctx) {
		switch {
		case err != nil:
			fmt.Println("unknown:", err) // until the next change
		case leader.Token != "":
			fmt.Println(leader.Owner, "leads")
			close(finish)
		case terms == 0:
			fmt.Println("nobody leads yet")
			terms++
			go func() { finished <- e.Run(ctx, lead) }()
		default:
			fmt.Println("nobody leads")
			stop() // ends Watch
		}
	}
	fmt.Println(<-finished)
	// Output:
	// nobody leads yet
	// host-1 leads
	// nobody leads
	// <nil>
}
