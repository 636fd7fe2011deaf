package election_test

import (
	"context"
	"fmt"
	"log"

	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// Lead until the process is told to stop. Run returns when lead has returned and the lock is released, so close the keeper after
// that.
func ExampleRun() {
	k, end := example.Keeper() // its Owner is host-1
	defer end()
	m, _ := mutex.New(k, "scheduler", nil)
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
	k, end := example.Keeper() // its Owner is host-1
	defer end()
	m, _ := mutex.New(k, "scheduler", nil)
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
	k, end := example.Keeper() // its Owner is host-1
	defer end()
	m, _ := mutex.New(k, "scheduler", nil)
	ctx := context.Background()
	e, _ := election.New(m, nil)
	err := e.Run(ctx, func(context.Context, uint64) error {
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
	k, end := example.Keeper() // its Owner is host-1
	defer end()
	m, _ := mutex.New(k, "scheduler", nil)
	e, _ := election.New(m, nil)
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
