package mutex_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

const retainedTTL = retaining.TTL

var ctx = context.Background()

// retainer is a process of a test of Options.Retain.
type retainer struct {
	*retaining.Process
	*mutex.Mutex
}

// retains runs a test with two processes in virtual time. The first retains its leases.
func retains(t *testing.T, test func(s *embedded.Server, p, other *retainer)) {
	t.Helper()
	var locks []*mutex.Mutex
	retaining.Run(t, func(k *lockkeeper.Keeper, retain bool) (retaining.Lock, error) {
		l, err := mutex.New(k, "x", &mutex.Options{Retain: retain})
		locks = append(locks, l)
		return retaining.Lock{Inside: l.Lock, Alone: l.Lock, TryAlone: l.TryLock}, err
	}, func(s *embedded.Server, p, other *retaining.Process) {
		test(s, &retainer{p, locks[0]}, &retainer{other, locks[1]})
	})
}

func TestRetainedMutex(t *testing.T) {
	retaining.Test(t, func(k *lockkeeper.Keeper, retain bool) (retaining.Lock, error) {
		l, err := mutex.New(k, "x", &mutex.Options{Retain: retain})
		return retaining.Lock{Inside: l.Lock, Alone: l.Lock, TryAlone: l.TryLock}, err
	})
}

func TestRetainedTurnsShareOneLease(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		first := p.Retained()
		token, fence, deadline := first.Token(), first.Fence(), first.Deadline()
		work := first.Context(ctx)
		p.Leave(first)
		if !errors.Is(first.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) {
			t.Errorf("after Release: %v, %v", first.Err(), context.Cause(work))
		}
		select {
		case <-first.Done():
		default:
			t.Error("a released lease is not done")
		}
		p.Leave(first)
		var l *lockkeeper.Lease
		if n := p.Scripts(func() {
			for range 100 {
				p.Leave(p.Enter())
			}
			l = p.Enter()
		}); n != 0 {
			t.Errorf("100 turns took %d scripts", n)
		}
		if l.Token() != token || l.Fence() != fence || !l.Deadline().Equal(deadline) || l.Name() != "x" || l.Err() != nil {
			t.Errorf("%s, fence %d, until %v, %v", l.Token(), l.Fence(), l.Deadline(), l.Err())
		}
		p.Leave(first) // again, while another turn is held
		if l.Err() != nil {
			t.Error("a second Release of an earlier turn has ended this one")
		}
		h, held, err := other.Holder(ctx)
		if err != nil || !held || h.Token != token || h.Fence != fence {
			t.Errorf("holder: %+v, %v, %v; want %s with fence %d", h, held, err, token, fence)
		}
		time.Sleep(time.Minute) // it is renewed while it is held
		if l.Err() != nil {
			t.Errorf("lost: %v", l.Err())
		}
		p.Leave(l)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := p.Lock(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock with a context that has ended: %v", err)
		}
		p.Must(p.Do(ctx, func(ctx context.Context, f uint64) error {
			if f != fence {
				t.Errorf("Do has fence %d", f)
			}
			return ctx.Err()
		}))
		if !p.Local() {
			t.Error("Do has not released the mutex")
		}
	})
}

// TestNewObjectForEachTurn checks that the process retains a lease of the name, not of the object by which it was acquired.
func TestNewObjectForEachTurn(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, _ *retainer) {
		p.Leave(p.Retained())
		if n := p.Scripts(func() {
			for i := range 100 {
				m, err := mutex.New(p.Keeper, "x", &mutex.Options{Retain: true})
				p.Must(err)
				lock := m.Lock
				if i%2 == 1 {
					lock = m.TryLock
				}
				l, err := lock(ctx)
				p.Must(err)
				p.Leave(l)
			}
		}); n != 0 {
			t.Errorf("100 turns by a new object each took %d scripts", n)
		}
	})
}

func TestOneTurnAtATimeInOrder(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, _ *retainer) {
		inside := p.Retained()
		if n := p.Scripts(func() {
			if _, err := p.TryLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Errorf("TryLock of a mutex that is held here: %v", err)
			}
			brief, cancel := context.WithTimeout(ctx, time.Minute)
			if _, err := p.Lock(brief); !errors.Is(err, lockkeeper.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lockkeeper.ErrUnavailable) {
				t.Errorf("Lock of a mutex that is held here: %v", err)
			}
			cancel()
		}); n > 60 { // renewals
			t.Errorf("%d scripts", n)
		}
		var waiting []chan *lockkeeper.Lease
		for range 5 {
			waiting = append(waiting, p.Waits())
		}
		left, cancel := context.WithCancel(ctx)
		given := make(chan error, 1)
		go func() {
			_, err := p.Lock(left)
			given <- err
		}()
		waiting = append(waiting, p.Waits())
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("a waiter whose context ended: %v", err)
		}
		if n := p.Scripts(func() {
			for i, w := range waiting {
				for _, x := range waiting[i:] {
					if retaining.IsGranted(x) {
						t.Fatal("two hold the mutex")
					}
				}
				p.Leave(inside)
				if !retaining.IsGranted(w) {
					t.Fatalf("waiter %d is not granted the mutex in its turn", i)
				}
				inside = <-w
			}
			p.Leave(inside)
		}); n != 0 {
			t.Errorf("the turns took %d scripts", n)
		}
		l, err := p.TryLock(ctx)
		p.Must(err)
		p.Leave(l)
	})
}

// endsAtGrant is a context that ends at the moment of a grant: whoever learns of its end has been granted what it waits for
// before it can act on that.
type endsAtGrant struct {
	context.Context
	once  sync.Once
	grant func()
}

func (c *endsAtGrant) Err() error {
	err := c.Context.Err()
	if err != nil {
		c.once.Do(c.grant)
	}
	return err
}

// TestTurnOfCancelledCallerIsPassedOn checks that a caller whose context ends as it is granted a turn does not keep it.
func TestTurnOfCancelledCallerIsPassedOn(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.Retained()
		left, cancel := context.WithCancel(ctx)
		given := make(chan error, 1)
		go func() {
			_, err := p.Lock(&endsAtGrant{Context: left, grant: func() { p.Leave(inside) }})
			given <- err
		}()
		synctest.Wait()
		waiting := p.Waits()
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("the caller whose context ended: %v", err)
		}
		if !retaining.IsGranted(waiting) {
			t.Fatal("the next caller of the process waits for a turn that nobody has")
		}
		p.Leave(<-waiting)
		other.Leave(other.Enter())
	})
}

func TestRetainedMutexIsRecalled(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		first := p.Enter()
		subscribed := other.Waits() // else it would have to subscribe before it is queued
		p.Leave(first)
		other.Leave(<-subscribed)
		inside := p.Retained()
		local := []chan *lockkeeper.Lease{p.Waits(), p.Waits()}
		began := time.Now()
		elsewhere := other.Waits()
		if retaining.IsGranted(elsewhere) {
			t.Fatal("two processes hold the mutex")
		}
		local = append(local, p.Waits())
		p.Leave(inside)
		if !retaining.IsGranted(elsewhere) || retaining.IsGranted(local[0]) || time.Since(began) != 0 {
			t.Fatalf("the mutex is not with the process that waited, but in this one: %v; after %v", retaining.IsGranted(local[0]), time.Since(began))
		}
		l := <-elsewhere
		if l.Fence() <= inside.Fence() {
			t.Error("the fence does not rise")
		}
		other.Leave(l)
		fence := l.Fence()
		for i, w := range local {
			if !retaining.IsGranted(w) {
				t.Fatalf("waiter %d has lost its turn by the recall", i)
			}
			l := <-w
			if l.Fence() <= fence {
				t.Error("the fence does not rise")
			}
			fence = l.Fence()
			p.Leave(l)
		}
		if p.Local() {
			t.Error("retained again at once after a recall")
		}
		time.Sleep(time.Minute)
		for range 20 {
			p.Leave(p.Enter())
		}
		if !p.Local() {
			t.Error("not retained again")
		}
	})
}

// TestRetainedMutexWithWaiters: a process that was granted the mutex by way of the queue retains nothing, since nobody would
// recall it for those behind.
func TestRetainedMutexWithWaiters(t *testing.T) {
	retains(t, func(s *embedded.Server, p, other *retainer) {
		third, err := mutex.New(anotherKeeper(s), "x", nil)
		p.Must(err)
		p.Leave(p.Enter()) // it subscribes
		synctest.Wait()
		l := other.Enter()
		first := p.Waits()
		behind := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, err := third.Lock(ctx)
			p.Must(err)
			behind <- l
		}()
		synctest.Wait()
		other.Leave(l)
		if !retaining.IsGranted(first) {
			t.Fatal("the first waiter was not granted the mutex")
		}
		inside := p.Waits()
		p.Leave(<-first)
		if !retaining.IsGranted(behind) || retaining.IsGranted(inside) {
			t.Fatal("a turn inside passes a process that waits")
		}
		p.Leave(<-behind)
		p.Leave(<-inside)
	})
}

func anotherKeeper(s *embedded.Server) *lockkeeper.Keeper {
	rdb := redis.NewClient(s.Network().Options(time.Second))
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		s.T.Fatal(err)
	}
	s.Cleanup(func() {
		_ = k.Close()
		_ = rdb.Close()
	})
	return k
}

func TestLostRecallOfMutex(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		p.Leave(p.Retained())
		p.Net.BlackholeSubscriptions()
		began := time.Now()
		granted := other.Waits()
		if retaining.IsGranted(granted) {
			t.Fatal("a recall has come")
		}
		if !p.LocalNow() {
			t.Error("a recall has come")
		}
		for !retaining.IsGranted(granted) {
			if time.Since(began) > retainedTTL/3+100*time.Millisecond {
				t.Fatal("the lease is retained although a renewal has told that it was recalled")
			}
			time.Sleep(10 * time.Millisecond)
		}
		other.Leave(<-granted)
		time.Sleep(2 * time.Second)
		if p.Events() == "[]" {
			t.Error("no events")
		}
	})
}

func TestNoTurnInsideWithoutSubscription(t *testing.T) {
	retains(t, func(s *embedded.Server, p, other *retainer) {
		inside := p.Retained()
		p.Net.Down()
		synctest.Wait()
		granted := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, err := p.Lock(ctx)
			p.Must(err)
			granted <- l
		}()
		synctest.Wait()
		p.Net.ResetCount()
		release := make(chan error, 1)
		go func() { release <- inside.Release(ctx) }()
		synctest.Wait()
		if len(granted) > 0 {
			t.Error("granted inside without a subscription")
		}
		p.Net.Restore()
		p.Must(<-release)
		l := <-granted
		if l.Fence() <= inside.Fence() {
			t.Error("granted by a lease that was given back")
		}
		p.Leave(l)
		time.Sleep(2 * time.Second)
		if _, held, err := other.Holder(ctx); held || err != nil {
			t.Errorf("held: %v, %v", held, err)
		}
		time.Sleep(time.Minute)
		p.Leave(p.Retained())
	})
}

func TestRetainedMutexIsLostWithItsTurn(t *testing.T) {
	retains(t, func(s *embedded.Server, p, other *retainer) {
		inside := p.Retained()
		work := inside.Context(ctx)
		waiting := p.Waits()
		s.Mini.FlushAll()
		other.Leave(other.Enter())
		time.Sleep(retainedTTL / 2)
		for _, err := range []error{inside.Err(), context.Cause(work), inside.Release(ctx)} {
			if !errors.Is(err, lockkeeper.ErrLost) {
				t.Errorf("not lost: %v", err)
			}
		}
		p.Must(inside.Release(ctx))
		if !retaining.IsGranted(waiting) {
			t.Fatal("the next waiter waits for a lease that is lost")
		}
		l := <-waiting
		if l.Fence() <= inside.Fence() {
			t.Error("the fence does not rise")
		}
		p.Leave(l)
	})
}

func TestCloseEndsRetainedMutex(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.Retained()
		work := inside.Context(ctx)
		waiting := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := p.Lock(ctx)
				waiting <- err
			}()
			synctest.Wait()
		}
		p.Must(p.Close())
		if !errors.Is(inside.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) {
			t.Errorf("%v, %v", inside.Err(), context.Cause(work))
		}
		for range 2 {
			if err := <-waiting; !errors.Is(err, lockkeeper.ErrClosed) {
				t.Errorf("a waiter: %v", err)
			}
		}
		for _, lock := range []func(context.Context) (*lockkeeper.Lease, error){p.Lock, p.TryLock} {
			if _, err := lock(ctx); !errors.Is(err, lockkeeper.ErrClosed) {
				t.Errorf("of a closed keeper: %v", err)
			}
		}
		p.Must(inside.Release(ctx))
		l, err := other.TryLock(ctx)
		p.Must(err)
		other.Leave(l)
	})
}

func TestExtendOfRetainedMutex(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.Retained()
		p.Must(inside.Extend(ctx, time.Minute))
		if left := time.Until(inside.Deadline()); left < 59*time.Second {
			t.Errorf("it lasts for %v", left)
		}
		waiting := p.Waits()
		p.Must(inside.Extend(ctx, time.Second))
		if left := time.Until(inside.Deadline()); left > time.Second {
			t.Errorf("it lasts for %v", left)
		}
		time.Sleep(time.Minute)
		if inside.Err() != nil {
			t.Errorf("it is not renewed: %v", inside.Err())
		}
		p.Leave(inside)
		l := <-waiting
		if l.Fence() <= inside.Fence() {
			t.Error("a lease that was extended serves another turn")
		}
		p.Leave(l)
		if _, held, err := other.Holder(ctx); err != nil || held {
			t.Errorf("held: %v, %v", held, err)
		}
	})
}

func TestRetainRefuses(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		for _, o := range []mutex.Options{{NoRenewal: true}, {MaxLifetime: time.Hour}, {TTL: time.Millisecond}} {
			o.Retain = true
			if _, err := mutex.New(p.Keeper, "x", &o); !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		inside := p.Retained()
		for _, q := range []*retainer{p, other} {
			if _, err := q.Adopt(ctx, inside.Token()); !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("Adopt: %v", err)
			}
		}
		p.Leave(inside)
		plain := other.Enter() // it can be adopted where Retain is set
		l, err := p.Adopt(ctx, plain.Token())
		p.Must(err)
		p.Leave(l)
	})
}

func TestRetainHooks(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		p.Leave(p.Retained())
		p.Events()
		p.Leave(p.Enter())
		inside := p.Enter()
		waiting := p.Waits()
		p.Leave(inside)
		p.Leave(<-waiting)
		other.Leave(other.Enter())
		want := "[start true done true released true start true done true start false released true done true released true recalled false]"
		if got := p.Events(); got != want {
			t.Errorf("events: %s; want %s", got, want)
		}
	})
}
