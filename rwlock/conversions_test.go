package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// TestHooksOfConversions checks that an upgrade and a downgrade are calls of their own, with the context that the caller passed and the
// mode that they ask for.
func TestHooksOfConversions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type call struct{}
		var got []string
		hook := func(what string) func(lockkeeper.Event) {
			return func(e lockkeeper.Event) { got = append(got, fmt.Sprint(e.Context.Value(call{}), what, e.Mode)) }
		}
		k := lockkeepertest.New(t).Keeper(t, &lockkeeper.Options{Hooks: lockkeeper.Hooks{
			AcquireStart: hook(" starts "), AcquireDone: hook(" done "), Released: hook(" released "),
		}})
		l := must.Get(rwlock.New(k, "x", nil))(t)
		lease := must.Get(l.RLock(context.WithValue(ctx, call{}, "first")))(t)
		must.OK(t, l.Upgrade(context.WithValue(ctx, call{}, "second"), lease))
		must.OK(t, l.Downgrade(context.WithValue(ctx, call{}, "third"), lease))
		must.OK(t, lease.Release(ctx))
		want := []string{
			"first starts read", "first done read",
			"second starts write", "first released read", "second done write",
			"third starts read", "second released write", "third done read",
			"third released read",
		}
		check.That(t, slices.Equal(got, want), "events:\n%q\nwant\n%q", got, want)
	})
}

// TestHooksOfConversionInDoubt checks that each call that got a lease has one end of it, if the answer to a conversion comes after the
// context has ended.
func TestHooksOfConversionInDoubt(t *testing.T) {
	for name, x := range map[string]inDoubt{
		"upgrade":         {upgrade: true},
		"downgrade":       {},
		"upgraded again":  {upgrade: true, again: true},
		"shared, upgrade": {upgrade: true, linger: time.Second},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, x.test) })
	}
}

// inDoubt is a conversion whose answer comes late.
type inDoubt struct {
	upgrade bool
	linger  time.Duration
	again   bool // it is converted once more when the outcome is known
}

func (x inDoubt) test(t *testing.T) {
	s := lockkeepertest.New(t)
	var c calls
	l := must.Get(rwlock.New(s.Keeper(t, c.options(t)), "x", &rwlock.Options{Linger: x.linger}))(t)
	acquire, convert := l.RLock, l.Upgrade
	if !x.upgrade {
		acquire, convert = l.Lock, l.Downgrade
	}
	lease := must.Get(acquire(ctx))(t)
	must.OK(t, convert(ctx, lease)) // the server knows the scripts from now on
	must.OK(t, lease.Release(ctx))
	if x.linger > 0 { // another call brings the lease that is converted
		must.OK(t, must.Get(acquire(ctx))(t).Release(ctx))
	}
	lease = must.Get(acquire(ctx))(t)
	time.Sleep(20 * time.Second)
	fence := lease.Fence()
	s.SlowAnswers(3 * time.Second)
	brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	err := convert(brief, lease)
	check.That(t, (err != nil) == x.upgrade && lease.Fence() == fence, "the conversion has returned %v, with fence %d after %d", err, lease.Fence(), fence)
	s.Restore()
	time.Sleep(12 * time.Second)
	if x.again {
		must.OK(t, convert(ctx, lease))
	}
	must.OK(t, lease.Release(ctx))
	c.check(t)
}

// calls are the calls that the hooks of a keeper were told of.
type calls struct {
	mu   sync.Mutex
	done map[uint64]*call
}

type call struct {
	lockkeeper.Event // AcquireDone
	at               time.Time
	started, ended   int // of the call, and of its lease
}

// options are those of a keeper whose hooks count its calls, and compare what happens to a lease with its grant.
func (c *calls) options(t *testing.T) *lockkeeper.Options {
	c.done = map[uint64]*call{}
	on := func(f func(c *call, e lockkeeper.Event)) func(lockkeeper.Event) {
		return func(e lockkeeper.Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.done[e.Request] == nil {
				c.done[e.Request] = &call{}
			}
			f(c.done[e.Request], e)
		}
	}
	same := func(c *call, e lockkeeper.Event) {
		if lag := time.Since(c.at) - e.Duration; e.Token != c.Token || e.Fence != c.Fence || lag.Abs() > time.Second {
			t.Errorf("%q with fence %d for %v, but it was granted as %q with fence %d %v ago", e.Token, e.Fence, e.Duration, c.Token, c.Fence, time.Since(c.at))
		}
	}
	end := on(func(c *call, e lockkeeper.Event) {
		c.ended++
		same(c, e)
	})
	return &lockkeeper.Options{Hooks: lockkeeper.Hooks{
		AcquireStart: on(func(c *call, _ lockkeeper.Event) { c.started++ }),
		AcquireDone:  on(func(c *call, e lockkeeper.Event) { c.Event, c.at = e, time.Now() }),
		Renewed:      on(same), Released: end, Lost: end,
	}}
}

// check checks that each call and each lease was reported, once, and returns how many failed.
func (c *calls) check(t *testing.T) (failed int) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, call := range c.done {
		want := 1
		if call.Err != nil {
			want = 0
			failed++
		}
		check.That(t, call.started == 1 && call.ended == want,
			"call %d, with the error %v, has started %d times, and its lease has ended %d times", n, call.Err, call.started, call.ended)
	}
	return failed
}

// TestUpgradeReportsReleaseOfItsCaller: each call that was granted a lease has one release, that of the shared lease itself included.
func TestUpgradeReportsReleaseOfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		l := must.Get(rwlock.New(lockkeepertest.New(t).Keeper(t, c.options(t)), "x", &rwlock.Options{Linger: time.Second}))(t)
		first, second := must.Get(l.RLock(ctx))(t), must.Get(l.RLock(ctx))(t)
		must.OK(t, first.Release(ctx))
		must.OK(t, l.Upgrade(ctx, second))
		must.OK(t, l.Downgrade(ctx, second))
		must.OK(t, second.Release(ctx))
		c.check(t)
	})
}

// TestAdoptedLeaseKnowsWhetherItWrites: the token of a converted lease does not say so.
func TestAdoptedLeaseKnowsWhetherItWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		l, other := must.Get(rwlock.New(s.Keeper(t, nil), "x", nil))(t), must.Get(rwlock.New(s.Keeper(t, nil), "x", nil))(t)
		for _, x := range []struct {
			acquire         func(context.Context) (*lockkeeper.Lease, error)
			convert, revert func(context.Context, *lockkeeper.Lease) error
			writes          bool
		}{{l.RLock, l.Upgrade, other.Downgrade, true}, {l.Lock, l.Downgrade, other.Upgrade, false}} {
			lease := must.Get(x.acquire(ctx))(t)
			must.OK(t, x.convert(ctx, lease))
			holders := must.Get(l.Holders(ctx))(t)
			check.That(t, len(holders) == 1 && holders[0].Writes == x.writes, "%+v", holders)
			adopted := must.Get(other.Adopt(ctx, lease.Token()))(t)
			check.That(t, adopted.Fence() == lease.Fence(), "fence %d of %d", adopted.Fence(), lease.Fence())
			must.OK(t, x.revert(ctx, adopted))
			must.OK(t, adopted.Release(ctx))
		}
	})
}

// TestBreakOfWaitingUpgrade checks that the caller of an upgrade that somebody breaks learns of that, and has its read lease as before.
func TestBreakOfWaitingUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		k, operator := s.Keeper(t, nil), s.Keeper(t, nil)
		l := must.Get(rwlock.New(k, "x", nil))(t)
		other, read := must.Get(must.Get(rwlock.New(operator, "x", nil))(t).RLock(ctx))(t), must.Get(l.RLock(ctx))(t)
		ended := make(chan error, 1)
		go func() { ended <- l.Upgrade(ctx, read) }()
		time.Sleep(time.Second)
		waiters := must.Get(admin.Inspect(ctx, operator, rwlock.Kind, "x"))(t).Waiters
		must.Get(admin.Break(ctx, operator, rwlock.Kind, "x", &admin.BreakOptions{Token: waiters[0].Token, Reason: "test"}))(t)
		var broken *lockkeeper.BrokenError
		if err := <-ended; !errors.As(err, &broken) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("the upgrade: %v", err)
		}
		must.OK(t, read.Err())
		must.OK(t, read.Release(ctx))
		must.OK(t, other.Release(ctx))
	})
}

// withReplicas returns what opens a lock, in a process of its own, on a server of which so many replicas acknowledge.
func withReplicas(t *testing.T, acknowledge func() int) func(lockkeeper.ReplicaAck) *rwlock.Lock {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		if command != "WAIT" {
			return false
		}
		c.WriteInt(acknowledge())
		return true
	})
	return func(a lockkeeper.ReplicaAck) *rwlock.Lock {
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: a}))(t)
		t.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
		return must.Get(rwlock.New(k, "x", nil))(t)
	}
}

// TestUnacknowledgedUpgradeIsGivenUp checks that the lease reads as before, if replicas have not acknowledged that it writes. A downgrade does
// not wait for replicas: one that has not heard of it keeps more away.
func TestUnacknowledgedUpgradeIsGivenUp(t *testing.T) {
	var replicas atomic.Int64
	open := withReplicas(t, func() int { return int(replicas.Load()) })
	l, other := open(lockkeeper.ReplicaAck{Replicas: 1, Timeout: 50 * time.Millisecond}), open(lockkeeper.ReplicaAck{})
	ctx := must.Within(t, 10*time.Second)
	replicas.Store(1)
	lease := must.Get(l.RLock(ctx))(t)
	replicas.Store(0)
	var not *lockkeeper.NotAcknowledgedError
	if err := l.Upgrade(ctx, lease); !errors.As(err, &not) || errors.Is(err, lockkeeper.ErrLost) || lease.Err() != nil {
		t.Errorf("%v; the lease: %v", err, lease.Err())
	}
	must.OK(t, must.Get(other.RLock(ctx))(t).Release(ctx))
	replicas.Store(1)
	must.OK(t, l.Upgrade(ctx, lease))
	replicas.Store(0)
	must.OK(t, l.Downgrade(ctx, lease))
	must.OK(t, must.Get(other.RLock(ctx))(t).Release(ctx))
	must.OK(t, lease.Release(ctx))
}
