package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// List finds the locks that are held or waited for. The loop may end early.
func ExampleList() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "orders:42", nil)
	lease, _ := m.Lock(ctx)
	defer lease.Release(ctx)

	for lock, err := range admin.List(ctx, k, &admin.ListOptions{Match: "orders:*"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(lock.Kind, lock.Name, "holders:", lock.Holders, "waiters:", lock.Waiters)
	}
	// Output:
	// mutex orders:42 holders: 1 waiters: 0
}

// Inspect shows a lock of any kind, without an object for it.
func ExampleInspect() {
	ctx := context.Background()
	k, end := example.Keeper() // its Owner is host-1
	defer end()
	m, _ := mutex.New(k, "orders:42", nil)
	lease, _ := m.Lock(ctx)
	defer lease.Release(ctx)

	state, err := admin.Inspect(ctx, k, mutex.Kind, "orders:42")
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range state.Holders {
		fmt.Println("held by", h.Owner, "for", time.Since(h.Since).Round(time.Minute))
	}
	fmt.Println(len(state.Waiters), "wait")
	// Output:
	// held by host-1 for 0s
	// 0 wait
}

// Break takes a lock from a holder that is stuck. The holder's lease is lost, with the reason.
func ExampleBreak() {
	ctx := context.Background()
	k, end := example.Keeper()
	defer end()
	m, _ := mutex.New(k, "orders:42", &mutex.Options{TTL: 300 * time.Millisecond})
	lease, _ := m.Lock(ctx)
	defer lease.Release(ctx)

	holder, _, err := m.Holder(ctx)
	if err != nil {
		log.Fatal(err)
	}
	broken, err := admin.Break(ctx, k, mutex.Kind, m.Name(), &admin.BreakOptions{
		Token: holder.Token, Reason: "hangs since noon", By: "ann",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(broken.Holders), "lease was ended")
	<-lease.Done()
	fmt.Println("lost:", errors.Is(lease.Err(), lockkeeper.ErrLost))
	// Output:
	// 1 lease was ended
	// lost: true
}
