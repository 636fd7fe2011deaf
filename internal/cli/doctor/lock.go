package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

const (
	handOffs = 5
	// slowHandOff is the time of a hand-off whose waiter was not notified, and retried at its heartbeat.
	slowHandOff = lockkeeper.DefaultHeartbeatInterval / 2
)

// checkLock acquires a lock, hands it over between two keepers and releases it.
func (d *doctor) checkLock(ctx context.Context, nodes []*node) {
	for _, n := range nodes {
		if f := n.server.role(d.target.Kind()); f.Status == statusError {
			d.add(nil, "lock", finding{Status: statusUnknown, Detail: "not tried: " + f.Detail})
			return
		}
	}
	times, wakeups, err := d.handOff(ctx)
	if err != nil {
		f := finding{Status: statusError, Detail: err.Error(), Advice: "fix the errors above first"}
		if redis.IsOOMError(err) {
			f.Advice = "raise maxmemory: new locks are refused"
		}
		d.add(nil, "lock", f)
		return
	}
	slices.Sort(times)
	longest := times[len(times)-1]
	f := finding{
		Detail: fmt.Sprintf("acquired, handed over %d times and released; a hand-off took %.2f ms, at most %.2f ms", len(times), ms(median(times)), ms(longest)),
		Values: map[string]float64{
			"handoffs": float64(len(times)), "handoff_median_ms": ms(median(times)), "handoff_max_ms": ms(longest),
			"wakeups_received": float64(wakeups),
		},
	}
	// A waiter that is granted the lock by its own request needs no wake-up, but then the hand-off is fast.
	if wakeups == 0 || wakeups < len(times) && longest >= slowHandOff {
		f.Status = statusWarning
		f.Detail += fmt.Sprintf("; only %d wake-ups were received", wakeups)
		f.Advice = "see the checks pubsub and permissions: waiters that receive no wake-up retry only at their heartbeats"
	}
	d.add(nil, "lock", f)
}

// handOff returns how long each hand-off took, and how many wake-ups were received. It stops after a slow hand-off, because
// the next ones would be slow, too.
func (d *doctor) handOff(ctx context.Context) (times []time.Duration, wakeups int, err error) {
	queued := make(chan struct{}, 100)
	var received atomic.Int64
	hooks := lockkeeper.Hooks{
		Queued: func(lockkeeper.Event) {
			select {
			case queued <- struct{}{}:
			default:
			}
		},
		WakeupReceived: func(lockkeeper.Event) { received.Add(1) }, // possibly after Lock has returned
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout/2)
	defer cancel()
	var keepers []*lockkeeper.Keeper
	var locks []*fair.Lock
	defer func() {
		d.cleanup(keepers) // no hook runs after it
		wakeups = int(received.Load())
	}()
	for range 2 {
		k, err := d.newKeeper(hooks)
		if err != nil {
			return nil, 0, err
		}
		keepers = append(keepers, k)
		l, err := fair.New(k, d.lockName, &fair.Options{TTL: 10 * time.Second})
		if err != nil {
			return nil, 0, err
		}
		locks = append(locks, l)
	}
	lease, err := locks[0].Lock(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range handOffs {
		for len(queued) > 0 { // of the previous hand-off: the hook also reports changes of the position
			<-queued
		}
		var took time.Duration
		if lease, took, err = handOffTo(ctx, locks[(i+1)%2], lease, queued); err != nil {
			return nil, 0, err
		}
		times = append(times, took)
		if took >= slowHandOff {
			break
		}
	}
	return times, 0, lease.Release(ctx)
}

// handOffTo releases a lease after another keeper has begun to wait for the lock. It returns the lease of the other keeper,
// and the time between the release and the grant.
func handOffTo(ctx context.Context, lock *fair.Lock, held *lockkeeper.Lease, queued <-chan struct{}) (*lockkeeper.Lease, time.Duration, error) {
	type result struct {
		lease *lockkeeper.Lease
		err   error
		at    time.Time
	}
	next := make(chan result, 1)
	go func() {
		l, err := lock.Lock(ctx)
		next <- result{l, err, time.Now()}
	}()
	select {
	case <-queued:
	case r := <-next:
		if r.err == nil {
			r.err = errors.New("two keepers hold the lock")
		}
		return nil, 0, r.err
	}
	start := time.Now()
	if err := held.Release(ctx); err != nil {
		return nil, 0, err
	}
	r := <-next
	return r.lease, r.at.Sub(start), r.err
}

// cleanup closes the keepers, which releases what they hold, and deletes the keys of the lock. Keys that it cannot delete
// expire in about a minute.
func (d *doctor) cleanup(keepers []*lockkeeper.Keeper) {
	closed := make(chan struct{})
	go func() {
		var wg sync.WaitGroup
		for _, k := range keepers {
			wg.Go(func() { _ = k.Close() })
		}
		wg.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(d.cleanupTime() / 2):
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.cleanupTime()/2)
	defer cancel()
	if keys, err := protocol.KeysOf(d.prefix, d.lockName, lua.Fair.Kind, false); err == nil {
		_ = d.probe.Del(ctx, keys.All()...).Err()
	}
}
