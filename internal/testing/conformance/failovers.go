package conformance

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// Failovers puts a replica in the place of its primary, and shows what that can cost: docs/guarantees.md says so. What is
// not promised is tested here as well, because a page that says too little or too much would mislead.
func Failovers(t *testing.T, p Primitive) {
	for name, test := range map[string]func(*deployment){
		"acknowledged_grant_survives_failover": acknowledgedGrantSurvives,
		"isolated_old_primary":                 isolatedOldPrimary,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.RequireBinary(t)
			test(&deployment{T: t, p: p})
		})
	}
}

// on makes the deployment's clients from now on.
func (d *deployment) useClient(rdb func() redis.UniversalClient) *deployment {
	return &deployment{d.T, d.p, rdb}
}

// acknowledgedGrantSurvives: what the only replica has acknowledged is there when that takes over.
func acknowledgedGrantSurvives(d *deployment) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := redistest.StartSentinel(d.T, 1)
	d = d.useClient(func() redis.UniversalClient { return s.Client() })
	k, err := lockkeeper.New(d.rdb(), &lockkeeper.Options{
		ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 2 * time.Second},
		Retry:      lockkeeper.RetryPolicy{MaxElapsed: 20 * time.Second},
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = k.Close() })
	l, err := d.p.New(k, "x", Options{TTL: time.Minute, NoRenewal: true})
	if err != nil {
		d.Fatal(err)
	}
	s.Replicas[0].Freeze()
	var lease *lockkeeper.Lease
	got := make(chan error, 1)
	go func() {
		var err error
		lease, err = l.Lock(ctx)
		got <- err
	}()
	primary := s.Primary.Client()
	d.eventually("the grant at the primary", func() bool { return primary.Exists(ctx, d.p.Key("x")).Val() == 1 })
	select {
	case err := <-got:
		d.Fatalf("the replica is frozen, and Lock has returned: %v, %v", lease.Token(), err)
	case <-time.After(20 * time.Millisecond): // a round trip without replicas takes less than one
	}
	s.Replicas[0].Thaw()
	err = <-got
	s.Primary.Kill()
	if err != nil {
		d.Fatal(err)
	}
	other := d.lock(d.keeper(lockkeeper.Hooks{}), "x")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var second *lockkeeper.Lease
		if second, err = other.TryLock(ctx); err == nil {
			d.Fatalf("fence %d was given to a second holder, after %d", second.Fence(), lease.Fence())
		}
		if errors.Is(err, lockkeeper.ErrNotAcquired) {
			break // the replica has answered
		}
	}
	if !errors.Is(err, lockkeeper.ErrNotAcquired) {
		d.Fatalf("the replica did not take over: %v", err)
	}
	if err := lease.Extend(ctx, time.Minute); err != nil {
		d.Errorf("the holder asked: %v", err)
	}
	if err := lease.Release(ctx); err != nil {
		d.Error(err)
	}
}

// isolatedOldPrimary: a primary is cut off from all but one of its clients, and a replica takes over. The primary goes on
// renewing that client's lease, for as long as the cut lasts, unless it has been told how many replicas it must have.
func isolatedOldPrimary(d *deployment) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	primary := redistest.Start(d.T, "--repl-diskless-sync-delay", "0")
	replica := redistest.StartReplica(d.T, primary)
	here := d.useClient(func() redis.UniversalClient { return primary.Client() })
	there := d.useClient(func() redis.UniversalClient { return replica.Client() })

	renewed := make(chan lockkeeper.Event, 1000)
	l, err := d.p.New(here.keeper(lockkeeper.Hooks{Renewed: func(e lockkeeper.Event) { renewed <- e }}), "x", Options{TTL: 2 * ttl})
	if err != nil {
		d.Fatal(err)
	}
	first, err := l.Lock(ctx)
	if err != nil {
		d.Fatal(err)
	}
	if err := replica.Client().ReplicaOf(ctx, "no", "one").Err(); err != nil {
		d.Fatal(err)
	}
	// At the latest when the lease ends there, because nobody renews it.
	second, err := there.lock(there.keeper(lockkeeper.Hooks{}), "x").Lock(ctx)
	if err != nil {
		d.Fatal(err)
	}
	if second.Fence() <= first.Fence() {
		d.Errorf("fence %d after %d", second.Fence(), first.Fence())
	}
	for len(renewed) > 0 {
		<-renewed
	}
	for range 4 { // more than a ttl
		<-renewed
	}
	if err := first.Err(); err != nil {
		d.Errorf("the first holder has been told: %v", err)
	}
	if err := second.Err(); err != nil {
		d.Errorf("the second holder has lost it: %v", err)
	}
	if err := primary.Client().ConfigSet(ctx, "min-replicas-to-write", "1").Err(); err != nil {
		d.Fatal(err)
	}
	select {
	case <-first.Done():
	case <-time.After(2*ttl + time.Second):
		d.Error("a primary without replicas goes on although it must have one")
	}
	if err := second.Release(ctx); err != nil {
		d.Error(err)
	}
}
