package doctor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/handoff"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

const (
	handOffs = 5
	// slowHandOff is the time of a hand-off whose waiter was not notified, and retried at its heartbeat.
	slowHandOff = protocol.DefaultHeartbeatInterval / 2
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
	pair := handoff.New()
	var received atomic.Int64
	hooks := lockkeeper.Hooks{
		Queued:         pair.Queued,
		WakeupReceived: func(lockkeeper.Event) { received.Add(1) }, // possibly after Lock has returned
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout/2)
	defer cancel()
	var keepers [2]*lockkeeper.Keeper
	defer func() {
		d.cleanup(keepers[:]) // no hook runs after it
		wakeups = int(received.Load())
	}()
	for i := range keepers {
		if keepers[i], err = d.newKeeper(hooks); err != nil {
			return nil, 0, err
		}
	}
	if err := pair.Lock(ctx, keepers, d.lockName); err != nil {
		return nil, 0, err
	}
	for range handOffs {
		took, err := pair.HandOver(ctx)
		if err != nil {
			return nil, 0, err
		}
		times = append(times, took)
		if took >= slowHandOff {
			break
		}
	}
	return times, 0, pair.Release(ctx)
}

// cleanup closes the keepers, which releases what they hold, and deletes the keys of the lock. Keys that it cannot delete
// expire in about a minute.
func (d *doctor) cleanup(keepers []*lockkeeper.Keeper) {
	closed := make(chan struct{})
	go func() {
		var wg sync.WaitGroup
		for _, k := range keepers {
			if k != nil {
				wg.Go(func() { _ = k.Close() })
			}
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
