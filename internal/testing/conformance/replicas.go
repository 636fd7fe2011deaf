package conformance

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// replicas runs a primitive on primaries with two replicas each and waits for their acknowledgement.
func replicas(t *testing.T, p Primitive) {
	redistest.RequireBinary(t)
	tests := map[string]func(*testing.T){
		"grants": func(t *testing.T) {
			r := startReplicated(t, p)
			r.haveGrantedLeases()
			r.fsyncUnavailable()
		},
		"too_few": func(t *testing.T) { startReplicated(t, p).tooFewReplicas() },
		"adopt":   func(t *testing.T) { startReplicated(t, p).adoptWithAck() },
	}
	if p.Kind == "fair" { // the code path is the same for all
		tests["fsync"] = func(t *testing.T) { fsyncAck(t, p) }
	}
	runParallel(t, tests)
}

// startReplicated starts a primary with two replicas.
func startReplicated(t *testing.T, p Primitive) *replicated {
	t.Helper()
	primary := redistest.Start(t)
	r := &replicated{deployment: &deployment{t, p, wrapEverySecondClient(func() redis.UniversalClient { return redistest.Connect(primary) })}}
	for range 2 {
		r.replicas = append(r.replicas, redistest.StartReplica(t, primary))
	}
	return r
}

type replicated struct {
	*deployment
	replicas []*redistest.Server
}

// lockWithAck returns a lock of a new keeper that waits for replicas.
func (r *replicated) lockWithAck(a lockkeeper.ReplicaAck, name string) Locker {
	r.Helper()
	return r.lock(newKeeper(r, r.rdb(), lockkeeper.Options{HeartbeatInterval: frequentHeartbeat, ReplicaAck: a}), name)
}

// haveGrantedLeases checks that every lease, granted at once or by a message, is on both replicas when it is
// returned.
func (r *replicated) haveGrantedLeases() {
	r.Helper()
	ctx := must.Within(r, time.Minute)
	fences := func(s *redistest.Server) string {
		return s.Client().HGet(ctx, "{lock:x}:"+r.p.Kind+":meta", "seq").Val()
	}
	var locks []Locker
	for range 3 {
		locks = append(locks, r.lockWithAck(lockkeeper.ReplicaAck{Replicas: 2, Majority: true, Timeout: 5 * time.Second}, "x"))
	}
	parallel(len(locks), func(i int) {
		for range 10 {
			lease, err := locks[i].Lock(ctx)
			if err != nil {
				r.Error(err)
				return
			}
			for _, s := range r.replicas {
				check.That(r, s.Client().Exists(ctx, r.p.Key("x")).Val() == 1 && fences(s) == strconv.FormatUint(lease.Fence(), 10),
					"a replica does not have the lease that was returned: fence %s, want %d", fences(s), lease.Fence())
			}
			must.Report(r, lease.Release(ctx))
		}
	})
}

// tooFewReplicas checks that with a frozen replica a lease that needs two acknowledgements is not returned, and
// nothing is held.
func (r *replicated) tooFewReplicas() {
	r.Helper()
	ctx := must.Within(r, time.Minute)
	two := r.lockWithAck(lockkeeper.ReplicaAck{Replicas: 2, Timeout: 3 * time.Second}, "y")
	most := r.lockWithAck(lockkeeper.ReplicaAck{Majority: true, Timeout: 3 * time.Second}, "y")
	one := r.lockWithAck(lockkeeper.ReplicaAck{Replicas: 1, Timeout: 5 * time.Second}, "y")
	plain := r.lock(r.keeper(lockkeeper.Hooks{}), "y")
	r.lockOnce(ctx, most) // it knows that there are two replicas
	r.lockOnce(ctx, two)  // its connection has written something

	// The waiter enqueued while all replicas were there, and is granted the lock when one is frozen.
	holder := must.Get(plain.Lock(ctx))(r)
	waits := inBackground(func() error { return check.ErrorOf(two.Lock(ctx)) })
	rdb := r.rdb()
	eventually(r, "a waiter", func() bool {
		return rdb.ZCount(ctx, "{lock:y}:"+r.p.Kind+":queue", "-inf", protocol.BehindWaiters).Val() == 1
	})
	r.replicas[0].Freeze()
	must.Report(r, holder.Release(ctx))
	var not *lockkeeper.NotAcknowledgedError
	err := <-waits
	check.That(r, errors.As(err, &not) && not.Replicas == 1, "granted by a message: %v", err)
	defer r.replicas[0].Thaw()
	for name, l := range map[string]Locker{"two": two, "a majority": most} {
		lease, err := l.Lock(ctx)
		var not *lockkeeper.NotAcknowledgedError
		counted := errors.As(err, &not) && not.Replicas == 1 && not.Wanted == 2 && not.Err == nil
		check.That(r, lease == nil && counted && !errors.Is(err, lockkeeper.ErrNotAcquired), "%s: %v, %v", name, lease.Token(), err)
		r.lockOnce(ctx, plain) // at once: the lock is free
	}
	r.lockOnce(ctx, one)
	r.replicas[0].Thaw()
	r.lockOnce(ctx, two)
}

// lockOnce acquires the lock without waiting and releases it.
func (r *replicated) lockOnce(ctx context.Context, l Locker) {
	r.Helper()
	must.Report(r, lockOnce(ctx, l.TryLock))
}

// adoptWithAck checks that Adopt waits for replicas as an acquisition does. If a replica does not acknowledge in
// time, the lease remains with its former holder.
func (r *replicated) adoptWithAck() {
	r.Helper()
	ctx := must.Within(r, time.Minute)
	plain := r.lock(r.keeper(lockkeeper.Hooks{}), "w")
	quick := r.lockWithAck(lockkeeper.ReplicaAck{Replicas: 2, Timeout: 1500 * time.Millisecond}, "w")
	slow := r.lockWithAck(lockkeeper.ReplicaAck{Replicas: 2, Timeout: 20 * time.Second}, "w")
	lease := must.Get(plain.Lock(ctx))(r)
	r.replicas[0].Freeze()
	defer r.replicas[0].Thaw()
	adopted, err := quick.Adopt(ctx, lease.Token())
	var not *lockkeeper.NotAcknowledgedError
	check.That(r, adopted == nil && errors.As(err, &not) && not.Replicas == 1 && not.Wanted == 2,
		"with a replica that is frozen: %v, %v", adopted.Token(), err)
	short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	check.Is(r, check.ErrorOf(slow.Adopt(short, lease.Token())), context.DeadlineExceeded, "the context ends while a replica is frozen")
	check.Is(r, check.ErrorOf(plain.TryLock(ctx)), lockkeeper.ErrNotAcquired, "the lease that could not be adopted was released")
	must.Report(r, lease.Err())
	got := inBackground(func() (err error) {
		adopted, err = slow.Adopt(ctx, lease.Token())
		return err
	})
	select {
	case <-got:
		r.Fatal("adopted while a replica is frozen")
	case <-time.After(100 * time.Millisecond):
	}
	r.replicas[0].Thaw()
	must.OK(r, <-got)
	check.That(r, adopted.Fence() == lease.Fence(), "fence %d, before it was adopted %d", adopted.Fence(), lease.Fence())
	must.Report(r, adopted.Release(ctx))
	r.lockOnce(ctx, plain)
	check.Is(r, check.ErrorOf(slow.Adopt(ctx, adopted.Token())), lockkeeper.ErrLost, "adopted after it was released")
}

// fsyncUnavailable checks the error of a server that does not write to disk, or cannot acknowledge it.
func (r *replicated) fsyncUnavailable() {
	r.Helper()
	ctx := must.Within(r, time.Minute)
	l := r.lockWithAck(lockkeeper.ReplicaAck{Fsync: true, Timeout: 1500 * time.Millisecond}, "disk")
	_, err := l.Lock(ctx)
	var not *lockkeeper.NotAcknowledgedError
	check.That(r, errors.As(err, &not) && not.Err != nil && !not.Local, "the error is %v", err)
	r.lockOnce(ctx, r.lock(r.keeper(lockkeeper.Hooks{}), "disk"))
}

// fsyncAck checks that a server with WAITAOF returns leases that are on its disk.
func fsyncAck(t *testing.T, p Primitive) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	r := &replicated{deployment: &deployment{t, p, func() redis.UniversalClient { return redistest.Connect(s) }}}
	ctx := must.Within(t, time.Minute)
	known := s.Client().Command(ctx).Val()["waitaof"] != nil
	lease, err := r.lockWithAck(lockkeeper.ReplicaAck{Fsync: true, Timeout: 5 * time.Second}, "x").Lock(ctx)
	var not *lockkeeper.NotAcknowledgedError
	check.That(t, known && err == nil || !known && errors.As(err, &not), "the server knows WAITAOF: %t; the error is %v", known, err)
	must.Report(t, lease.Release(ctx))
}

// failovers promotes a replica and shows the consequences that docs/guarantees.md describes. What is not promised is
// tested as well, so that the page says neither too little nor too much.
func failovers(t *testing.T, p Primitive) {
	redistest.RequireBinary(t)
	runParallel(t, map[string]func(*testing.T){
		"acknowledged_grant_survives_failover": func(t *testing.T) { acknowledgedGrantSurvives(&deployment{T: t, p: p}) },
		"isolated_old_primary":                 func(t *testing.T) { isolatedOldPrimary(&deployment{T: t, p: p}) },
	})
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
	here := d.useClient(func() redis.UniversalClient { return redistest.Connect(primary) })
	there := d.useClient(func() redis.UniversalClient { return redistest.Connect(replica) })

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
	must.Receive(d, first.Done(), 2*lasts, "the loss at a primary that must have replicas and has none")
	must.Report(d, second.Release(ctx))
}
