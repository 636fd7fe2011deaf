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
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// TestNotesOfConversions: a converted lease has the note of the conversion, or else keeps its own.
func TestNotesOfConversions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkeepertest.New(t).Keeper(t, nil)
		l := must.Get(rwlock.New(k, "x", nil))(t)
		want := func(note string) {
			t.Helper()
			holders := must.Get(l.Holders(ctx))(t)
			check.That(t, len(holders) == 1 && holders[0].Note == note, "%+v, want one with the note %q", holders, note)
		}
		read := must.Get(l.RLock(lockkeeper.WithNote(ctx, "report")))(t)
		want("report")
		write := must.Get(l.Upgrade(ctx, read))(t)
		want("report")
		read = must.Get(l.Downgrade(lockkeeper.WithNote(ctx, "check"), write))(t)
		want("check")
		must.OK(t, read.Release(ctx))
	})
}

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
		read := must.Get(l.RLock(context.WithValue(ctx, call{}, "first")))(t)
		write := must.Get(l.Upgrade(context.WithValue(ctx, call{}, "second"), read))(t)
		read = must.Get(l.Downgrade(context.WithValue(ctx, call{}, "third"), write))(t)
		must.OK(t, read.Release(ctx))
		want := []string{
			"first starts read", "first done read",
			"second starts write", "second done write", "first released read",
			"third starts read", "third done read", "second released write",
			"third released read",
		}
		check.That(t, slices.Equal(got, want), "events:\n%q\nwant\n%q", got, want)
	})
}

// TestHooksOfConversionInDoubt checks that each call that got a lease has one end of it, if the answer to a conversion comes after the
// context has ended: while the call still waits for it, or after it has returned, when the lease that the caller has becomes the one that
// the server has.
func TestHooksOfConversionInDoubt(t *testing.T) {
	for name, x := range map[string]inDoubt{
		"upgrade":         {upgrade: true, late: 50 * time.Millisecond},
		"downgrade":       {late: 50 * time.Millisecond},
		"upgrade, late":   {upgrade: true, late: 3 * time.Second},
		"downgrade, late": {late: 3 * time.Second},
		"upgraded again":  {upgrade: true, late: 3 * time.Second, again: true},
		"shared, upgrade": {upgrade: true, late: 3 * time.Second, linger: time.Second},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, x.test) })
	}
}

// inDoubt is a conversion whose answer comes late.
type inDoubt struct {
	upgrade      bool
	late, linger time.Duration
	again        bool // it is converted once more when the outcome is known
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
	must.OK(t, must.Get(convert(ctx, lease))(t).Release(ctx)) // the server knows the scripts from now on
	if x.linger > 0 {                                         // another call brings the lease that is converted
		must.OK(t, must.Get(acquire(ctx))(t).Release(ctx))
	}
	lease = must.Get(acquire(ctx))(t)
	time.Sleep(20 * time.Second)
	s.SlowAnswers(x.late)
	brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	next, err := convert(brief, lease)
	check.That(t, (err != nil) == (x.upgrade && x.late > time.Second), "the conversion has returned %v", err)
	s.Restore()
	time.Sleep(4 * x.late)
	if err == nil {
		lease = next
	}
	if x.again {
		former := lease
		lease = must.Get(convert(ctx, lease))(t)
		must.OK(t, former.Release(ctx)) // such as a deferred one
		must.OK(t, lease.Err())
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
		write := must.Get(l.Upgrade(ctx, second))(t)
		must.OK(t, second.Release(ctx))
		must.OK(t, write.Release(ctx))
		c.check(t)
	})
}

// TestHooksOfConversionThatResolvesDuringClose checks that the lease of a caller has an end if the answer to an upgrade in doubt comes while
// the keeper is being closed.
func TestHooksOfConversionThatResolvesDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		var c calls
		k := s.Keeper(t, c.options(t))
		l := must.Get(rwlock.New(k, "x", nil))(t)
		must.OK(t, must.Get(l.Upgrade(ctx, must.Get(l.RLock(ctx))(t)))(t).Release(ctx))
		read := must.Get(l.RLock(ctx))(t)
		s.SlowAnswers(1200 * time.Millisecond)
		brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		_, err := l.Upgrade(brief, read)
		check.That(t, err != nil, "the upgrade was answered")
		time.Sleep(2500 * time.Millisecond)
		o := onClose(func() { time.Sleep(1500 * time.Millisecond) }) // the answer comes meanwhile
		access.KeeperOf(k).OnClose(&o)
		_ = k.Close()
		s.Restore()
		c.check(t)
	})
}

type onClose func()

func (f *onClose) KeeperClosed() { (*f)() }

// TestBreakOfWaitingUpgrade checks that the caller of an upgrade that somebody breaks learns of that, and has its read lease as before.
func TestBreakOfWaitingUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		k, operator := s.Keeper(t, nil), s.Keeper(t, nil)
		l := must.Get(rwlock.New(k, "x", nil))(t)
		other, read := must.Get(must.Get(rwlock.New(operator, "x", nil))(t).RLock(ctx))(t), must.Get(l.RLock(ctx))(t)
		ended := make(chan error, 1)
		go func() {
			_, err := l.Upgrade(ctx, read)
			ended <- err
		}()
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

// TestUnacknowledgedConversionLosesLease checks that the old lease has ended and the new one is released.
func TestUnacknowledgedConversionLosesLease(t *testing.T) {
	var replicas atomic.Int64
	open := withReplicas(t, func() int { return int(replicas.Load()) })
	l, other := open(lockkeeper.ReplicaAck{Replicas: 1, Timeout: 50 * time.Millisecond}), open(lockkeeper.ReplicaAck{})
	for how, x := range map[string]struct {
		acquire func(context.Context) (*lockkeeper.Lease, error)
		convert func(context.Context, *lockkeeper.Lease) (*lockkeeper.Lease, error)
	}{"downgrade": {l.Lock, l.Downgrade}, "upgrade": {l.RLock, l.Upgrade}} {
		ctx := must.Within(t, 10*time.Second)
		replicas.Store(1)
		old := must.Get(x.acquire(ctx))(t)
		replicas.Store(0)
		_, err := x.convert(ctx, old)
		var not *lockkeeper.NotAcknowledgedError
		check.That(t, errors.As(err, &not) && errors.Is(old.Err(), lockkeeper.ErrLost), "%s: %v; the old lease: %v", how, err, old.Err())
		must.OK(t, must.Get(other.Lock(ctx))(t).Release(ctx))
	}
}

// TestConversionAwaitsReplicaAckAfterCancel checks that a cancelled conversion still waits for replicas: the server
// has ended the old lease, so only the new one is left.
func TestConversionAwaitsReplicaAckAfterCancel(t *testing.T) {
	var ends atomic.Pointer[context.CancelFunc]
	l := withReplicas(t, func() int {
		if cancel := ends.Load(); cancel != nil {
			(*cancel)()
			time.Sleep(20 * time.Millisecond) // gives a call that does not wait the time to return
		}
		return 1
	})(lockkeeper.ReplicaAck{Replicas: 1})
	lease := must.Get(l.Lock(t.Context()))(t)
	for _, convert := range []func(context.Context, *lockkeeper.Lease) (*lockkeeper.Lease, error){l.Downgrade, l.Upgrade} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ends.Store(&cancel)
		lease = must.Get(convert(ctx, lease))(t)
		err := lease.Err()
		must.That(t, err == nil && ctx.Err() != nil, "the lease: %v, the context: %v", err, ctx.Err())
	}
	must.Report(t, lease.Release(t.Context()))
}
