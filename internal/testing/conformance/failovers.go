package conformance

import (
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// Failovers promotes a replica and shows the consequences that docs/guarantees.md describes. What is not promised is
// tested as well, so that the page says neither too little nor too much.
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

// useClient sets the client of the deployment from now on.
func (d *deployment) useClient(rdb func() redis.UniversalClient) *deployment {
	return &deployment{d.T, d.p, rdb}
}

// acknowledgedGrantSurvives checks that a grant which the only replica has acknowledged exists after its promotion.
func acknowledgedGrantSurvives(d *deployment) {
	ctx := must.Within(d, time.Minute)
	s := redistest.StartSentinel(d.T, 1)
	d = d.useClient(func() redis.UniversalClient { return s.Client() })
	k := d.keeperWith(lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 20 * time.Second}})
	l := must.Get(d.p.New(k, "x", Options{TTL: time.Minute, NoRenewal: true}))(d)
	s.Replicas[0].Freeze()
	var lease *lockkeeper.Lease
	got := inBackground(func() (err error) {
		lease, err = l.Lock(ctx)
		return err
	})
	primary := s.Primary.Client()
	eventually(d, "the grant at the primary", func() bool { return primary.Exists(ctx, d.p.Key("x")).Val() == 1 })
	select {
	case err := <-got:
		d.Fatalf("Lock returned although the replica is frozen: %v, %v", lease.Token(), err)
	case <-time.After(20 * time.Millisecond): // a round trip without replicas takes less than one
	}
	s.Replicas[0].Thaw()
	err := <-got
	s.Primary.Kill()
	must.OK(d, err)
	other := d.lock(d.keeper(lockkeeper.Hooks{}), "x")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var second *lockkeeper.Lease
		if second, err = other.TryLock(ctx); err == nil {
			d.Fatalf("fence %d was given to a second holder, after %d", second.Fence(), lease.Fence())
		}
		if errors.Is(err, lockkeeper.ErrNotAcquired) {
			break // the replica has acknowledged
		}
	}
	must.That(d, errors.Is(err, lockkeeper.ErrNotAcquired), "the replica was not promoted: %v", err)
	check.Is(d, lease.Extend(ctx, time.Minute), nil, "the first holder")
	must.Report(d, lease.Release(ctx))
}

// isolatedOldPrimary partitions a primary with one of its clients and promotes a replica. The old primary renews
// that client's lease as long as the partition lasts, unless min-replicas-to-write forbids it.
func isolatedOldPrimary(d *deployment) {
	ctx := must.Within(d, time.Minute)
	primary := redistest.Start(d.T)
	replica := redistest.StartReplica(d.T, primary)
	here := d.useClient(func() redis.UniversalClient { return primary.Client() })
	there := d.useClient(func() redis.UniversalClient { return replica.Client() })

	const lasts = ttl
	renewed := make(chan lockkeeper.Event, 1000)
	l := must.Get(d.p.New(here.keeper(lockkeeper.Hooks{Renewed: func(e lockkeeper.Event) { renewed <- e }}), "x", Options{TTL: lasts}))(d)
	first := must.Get(l.Lock(ctx))(d)
	must.OK(d, replica.Client().ReplicaOf(ctx, "no", "one").Err())
	// At the latest when the lease expires there, because nobody renews it.
	second := must.Get(there.lock(there.keeper(lockkeeper.Hooks{}), "x").Lock(ctx))(d)
	check.That(d, second.Fence() > first.Fence(), "fence %d after %d", second.Fence(), first.Fence())
	for len(renewed) > 0 {
		<-renewed
	}
	for range 4 { // more than a ttl
		select {
		case <-renewed:
		case <-first.Done(): // reported below
		}
	}
	check.Is(d, first.Err(), nil, "the first holder considers its lease lost")
	check.Is(d, second.Err(), nil, "the second holder has lost it")
	must.OK(d, primary.Client().ConfigSet(ctx, "min-replicas-to-write", "1").Err())
	select {
	case <-first.Done():
	case <-time.After(2 * lasts):
		d.Error("a primary without replicas renews although it must have one")
	}
	must.Report(d, second.Release(ctx))
}
