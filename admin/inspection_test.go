package admin_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// A lease that was handed to a waiter lasts for the heartbeat timeout only until it is renewed. Inspect tells it from one in trouble.
func TestInspectTellsUnconfirmedLeases(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { _ = rdb.Close() }()
	open := func(owner string) (*lockkeeper.Keeper, *fair.Lock) {
		k := must(lockkeeper.New(rdb, &lockkeeper.Options{Owner: owner, HeartbeatTimeout: 3 * time.Second}))
		t.Cleanup(func() { _ = k.Close() })
		return k, must(fair.New(k, "x", nil))
	}
	ops, first := open("first")
	_, second := open("second")
	inspect := func() *admin.LockState { return must(admin.Inspect(background, ops, fair.Kind, "x")) }
	lease := must(first.Lock(background))
	granted := make(chan *lockkeeper.Lease, 1)
	go func() { granted <- must(second.Lock(background)) }()
	for len(inspect().Waiters) == 0 {
		time.Sleep(time.Millisecond)
	}
	i := inspect()
	if h, w := i.Holders[0], i.Waiters[0]; h.Unconfirmed || w.HeartbeatAge < 0 || w.HeartbeatAge > 3*time.Second {
		t.Errorf("%+v", i)
	}
	for e, err := range admin.List(background, ops, &admin.ListOptions{Owners: true}) {
		if err != nil || e.Owner != "first" || e.Keeper != ops.ID() {
			t.Errorf("%+v, %v", e, err)
		}
	}
	if err := lease.Release(background); err != nil {
		t.Fatal(err)
	}
	handed := <-granted
	if h := inspect().Holders[0]; !h.Unconfirmed || h.ExpiresIn > 3*time.Second || h.Owner != "second" {
		t.Errorf("just handed over: %+v", h)
	}
	for inspect().Holders[0].Unconfirmed { // until the first renewal, after a second
		time.Sleep(10 * time.Millisecond)
	}
	if h := inspect().Holders[0]; h.ExpiresIn < 10*time.Second {
		t.Errorf("confirmed: %+v", h)
	}
	if err := handed.Release(background); err != nil {
		t.Fatal(err)
	}
}

// The age of a heartbeat is by the timeout of the waiter's keeper, not of the one that looks.
func TestHeartbeatAgeIsByTheWaitersTimeout(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { _ = rdb.Close() }()
	open := func(timeout time.Duration) *lockkeeper.Keeper {
		k := must(lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatTimeout: timeout}))
		t.Cleanup(func() { _ = k.Close() })
		return k
	}
	ops, app := open(time.Minute), open(900*time.Millisecond)
	f := must(fair.New(app, "x", nil))
	r := must(ratelimit.New(app, "x", 1, time.Minute, nil))
	must(f.Lock(background))
	must(r.Allow(background))
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	for range 2 {
		go func() { _, _ = f.Lock(ctx) }()
		go func() { _ = r.Do(ctx, func(context.Context, uint64) error { return nil }) }()
	}
	for _, kind := range []lockkeeper.Kind{fair.Kind, ratelimit.Kind} {
		var w []lockkeeper.Waiter
		for len(w) < 2 || w[0].WaitTime < time.Second {
			w = must(admin.Inspect(background, ops, kind, "x")).Waiters
			time.Sleep(5 * time.Millisecond)
		}
		if w[0].HeartbeatAge > 900*time.Millisecond {
			t.Errorf("%s: %+v", kind, w[0])
		}
	}
}
