package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

const retainedTTL = 5 * time.Second

// retainer is a process of a test of Options.Retain, with a mutex of the name x.
type retainer struct {
	*lockkeeper.Keeper
	*mutex.Mutex
	t   *testing.T
	net *faultnet.Net

	mu     sync.Mutex
	events []string
}

var ctx = context.Background()

// retaining runs a test with two processes in virtual time. The first retains its leases.
func retaining(t *testing.T, test func(s *embedded.Server, p, other *retainer)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var all []*retainer
		for i := range 2 {
			p := &retainer{t: s.T, net: s.Network()}
			rdb := redis.NewClient(p.net.Options(time.Second))
			saw := func(what string) func(lockkeeper.Event) {
				return func(e lockkeeper.Event) {
					p.mu.Lock()
					defer p.mu.Unlock()
					p.events = append(p.events, fmt.Sprintf("%s %v", what, e.Local))
				}
			}
			var err error
			p.Keeper, err = lockkeeper.New(rdb, &lockkeeper.Options{
				Hooks: lockkeeper.Hooks{
					AcquireStart: saw("start"), AcquireDone: saw("done"), Released: saw("released"), Recalled: saw("recalled"), Lost: saw("lost"),
				},
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			p.must(err)
			p.Mutex, err = mutex.New(p.Keeper, "x", &mutex.Options{Retain: i == 0})
			p.must(err)
			s.Cleanup(func() {
				p.net.Restore()
				_ = p.Close()
				_ = rdb.Close()
			})
			all = append(all, p)
		}
		test(s, all[0], all[1])
	})
}

func (p *retainer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// lock acquires a lease.
func (p *retainer) lock() *lockkeeper.Lease {
	p.t.Helper()
	l, err := p.Lock(ctx)
	p.must(err)
	return l
}

func (p *retainer) release(l *lockkeeper.Lease) {
	p.t.Helper()
	p.must(l.Release(ctx))
}

// retains makes the process retain a lease, and returns a turn by it.
func (p *retainer) retains() *lockkeeper.Lease {
	p.t.Helper()
	p.release(p.lock()) // it subscribes
	synctest.Wait()
	p.release(p.lock()) // it retains
	if !p.local() {
		p.t.Fatal("no lease is retained")
	}
	return p.lock()
}

// scripts returns how many scripts the process has sent during the function.
func (p *retainer) scripts(f func()) int {
	p.net.ResetCount()
	f()
	return p.net.Scripts()
}

// local reports whether the mutex is granted inside the process.
func (p *retainer) local() bool {
	p.t.Helper()
	return p.scripts(func() { p.release(p.lock()) }) == 0
}

// localNow reports whether it is, without waiting if it is not.
func (p *retainer) localNow() bool {
	brief, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	local := false
	n := p.scripts(func() {
		if l, err := p.Lock(brief); err == nil {
			local = true
			p.release(l)
		}
	})
	return local && n == 0
}

// waits requests a lease in the background.
func (p *retainer) waits() chan *lockkeeper.Lease {
	granted := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := p.Lock(ctx)
		if err != nil {
			p.t.Error(err)
		}
		granted <- l
	}()
	synctest.Wait()
	return granted
}

func isGranted(granted chan *lockkeeper.Lease) bool {
	synctest.Wait()
	return len(granted) > 0
}

func TestRetainedTurnsShareOneLease(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		first := p.retains()
		token, fence, deadline := first.Token(), first.Fence(), first.Deadline()
		work := first.Context(ctx)
		p.release(first)
		if !errors.Is(first.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) {
			t.Errorf("after Release: %v, %v", first.Err(), context.Cause(work))
		}
		select {
		case <-first.Done():
		default:
			t.Error("a released lease is not done")
		}
		p.release(first)
		var l *lockkeeper.Lease
		if n := p.scripts(func() {
			for range 100 {
				p.release(p.lock())
			}
			l = p.lock()
		}); n != 0 {
			t.Errorf("100 turns took %d scripts", n)
		}
		if l.Token() != token || l.Fence() != fence || !l.Deadline().Equal(deadline) || l.Name() != "x" || l.Err() != nil {
			t.Errorf("%s, fence %d, until %v, %v", l.Token(), l.Fence(), l.Deadline(), l.Err())
		}
		p.release(first) // again, while another turn is held
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
		p.release(l)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := p.Lock(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock with a context that has ended: %v", err)
		}
		p.must(p.Do(ctx, func(ctx context.Context, f uint64) error {
			if f != fence {
				t.Errorf("Do has fence %d", f)
			}
			return ctx.Err()
		}))
		if !p.local() {
			t.Error("Do has not released the mutex")
		}
	})
}

// TestNewObjectForEachTurn checks that the process retains a lease of the name, not of the object by which it was acquired.
func TestNewObjectForEachTurn(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, _ *retainer) {
		p.release(p.retains())
		if n := p.scripts(func() {
			for i := range 100 {
				m, err := mutex.New(p.Keeper, "x", &mutex.Options{Retain: true})
				p.must(err)
				lock := m.Lock
				if i%2 == 1 {
					lock = m.TryLock
				}
				l, err := lock(ctx)
				p.must(err)
				p.release(l)
			}
		}); n != 0 {
			t.Errorf("100 turns by a new object each took %d scripts", n)
		}
	})
}

func TestOneTurnAtATimeInOrder(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, _ *retainer) {
		inside := p.retains()
		if n := p.scripts(func() {
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
			waiting = append(waiting, p.waits())
		}
		left, cancel := context.WithCancel(ctx)
		given := make(chan error, 1)
		go func() {
			_, err := p.Lock(left)
			given <- err
		}()
		waiting = append(waiting, p.waits())
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("a waiter whose context ended: %v", err)
		}
		if n := p.scripts(func() {
			for i, w := range waiting {
				for _, x := range waiting[i:] {
					if isGranted(x) {
						t.Fatal("two hold the mutex")
					}
				}
				p.release(inside)
				if !isGranted(w) {
					t.Fatalf("waiter %d is not granted the mutex in its turn", i)
				}
				inside = <-w
			}
			p.release(inside)
		}); n != 0 {
			t.Errorf("the turns took %d scripts", n)
		}
		l, err := p.TryLock(ctx)
		p.must(err)
		p.release(l)
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
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.retains()
		left, cancel := context.WithCancel(ctx)
		given := make(chan error, 1)
		go func() {
			_, err := p.Lock(&endsAtGrant{Context: left, grant: func() { p.release(inside) }})
			given <- err
		}()
		synctest.Wait()
		waiting := p.waits()
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("the caller whose context ended: %v", err)
		}
		if !isGranted(waiting) {
			t.Fatal("the next caller of the process waits for a turn that nobody has")
		}
		p.release(<-waiting)
		other.release(other.lock())
	})
}

func TestRetainedMutexIsRecalled(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		first := p.lock()
		subscribed := other.waits() // else it would have to subscribe before it is queued
		p.release(first)
		other.release(<-subscribed)
		inside := p.retains()
		local := []chan *lockkeeper.Lease{p.waits(), p.waits()}
		began := time.Now()
		elsewhere := other.waits()
		if isGranted(elsewhere) {
			t.Fatal("two processes hold the mutex")
		}
		local = append(local, p.waits())
		p.release(inside)
		if !isGranted(elsewhere) || isGranted(local[0]) || time.Since(began) != 0 {
			t.Fatalf("the mutex is not with the process that waited, but in this one: %v; after %v", isGranted(local[0]), time.Since(began))
		}
		l := <-elsewhere
		if l.Fence() <= inside.Fence() {
			t.Error("the fence does not rise")
		}
		other.release(l)
		fence := l.Fence()
		for i, w := range local {
			if !isGranted(w) {
				t.Fatalf("waiter %d has lost its turn by the recall", i)
			}
			l := <-w
			if l.Fence() <= fence {
				t.Error("the fence does not rise")
			}
			fence = l.Fence()
			p.release(l)
		}
		if p.local() {
			t.Error("retained again at once after a recall")
		}
		time.Sleep(time.Minute)
		for range 20 {
			p.release(p.lock())
		}
		if !p.local() {
			t.Error("not retained again")
		}
	})
}

func TestUnusedRetainedMutexDelaysNobody(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		p.release(p.retains())
		began := time.Now()
		if _, err := other.TryLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("TryLock while another process retains a lease: %v", err)
		}
		synctest.Wait()
		l, err := other.TryLock(ctx) // the first has recalled it
		other.must(err)
		if _, err := p.TryLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("TryLock while another process holds it: %v", err)
		}
		other.release(l)

		time.Sleep(time.Minute)
		p.release(p.retains())
		granted := other.waits()
		if !isGranted(granted) || time.Since(began) > time.Minute {
			t.Error("a process waits with nobody inside")
		}
		other.release(<-granted)

		time.Sleep(time.Minute)
		p.release(p.retains())
		time.Sleep(retainedTTL * 7 / 3)
		if h, held, err := other.Holder(ctx); err != nil || held {
			t.Errorf("a lease that was not used for its ttl is kept: %v, %v", h, err)
		}
	})
}

// TestRetainedMutexWithWaiters: a process that was granted the mutex by way of the queue retains nothing, since nobody would
// recall it for those behind.
func TestRetainedMutexWithWaiters(t *testing.T) {
	retaining(t, func(s *embedded.Server, p, other *retainer) {
		third, err := mutex.New(anotherKeeper(s), "x", nil)
		p.must(err)
		p.release(p.lock()) // it subscribes
		synctest.Wait()
		l := other.lock()
		first := p.waits()
		behind := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, err := third.Lock(ctx)
			p.must(err)
			behind <- l
		}()
		synctest.Wait()
		other.release(l)
		if !isGranted(first) {
			t.Fatal("the first waiter was not granted the mutex")
		}
		inside := p.waits()
		p.release(<-first)
		if !isGranted(behind) || isGranted(inside) {
			t.Fatal("a turn inside passes a process that waits")
		}
		p.release(<-behind)
		p.release(<-inside)
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
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		p.release(p.retains())
		p.net.BlackholeSubscriptions()
		began := time.Now()
		granted := other.waits()
		if isGranted(granted) {
			t.Fatal("a recall has come")
		}
		if !p.localNow() {
			t.Error("a recall has come")
		}
		for !isGranted(granted) {
			if time.Since(began) > retainedTTL/3+100*time.Millisecond {
				t.Fatal("the lease is retained although a renewal has told that it was recalled")
			}
			time.Sleep(10 * time.Millisecond)
		}
		other.release(<-granted)
		time.Sleep(2 * time.Second)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.events) == 0 {
			t.Error("no events")
		}
	})
}

func TestNoTurnInsideWithoutSubscription(t *testing.T) {
	retaining(t, func(s *embedded.Server, p, other *retainer) {
		inside := p.retains()
		p.net.Down()
		synctest.Wait()
		granted := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, err := p.Lock(ctx)
			p.must(err)
			granted <- l
		}()
		synctest.Wait()
		p.net.ResetCount()
		release := make(chan error, 1)
		go func() { release <- inside.Release(ctx) }()
		synctest.Wait()
		if len(granted) > 0 {
			t.Error("granted inside without a subscription")
		}
		p.net.Restore()
		p.must(<-release)
		l := <-granted
		if l.Fence() <= inside.Fence() {
			t.Error("granted by a lease that was given back")
		}
		p.release(l)
		time.Sleep(2 * time.Second)
		if _, held, err := other.Holder(ctx); held || err != nil {
			t.Errorf("held: %v, %v", held, err)
		}
		time.Sleep(time.Minute)
		p.release(p.retains())
	})
}

func TestRetainedMutexIsLostWithItsTurn(t *testing.T) {
	retaining(t, func(s *embedded.Server, p, other *retainer) {
		inside := p.retains()
		work := inside.Context(ctx)
		waiting := p.waits()
		s.Mini.FlushAll()
		other.release(other.lock())
		time.Sleep(retainedTTL / 2)
		for _, err := range []error{inside.Err(), context.Cause(work), inside.Release(ctx)} {
			if !errors.Is(err, lockkeeper.ErrLost) {
				t.Errorf("not lost: %v", err)
			}
		}
		p.must(inside.Release(ctx))
		if !isGranted(waiting) {
			t.Fatal("the next waiter waits for a lease that is lost")
		}
		l := <-waiting
		if l.Fence() <= inside.Fence() {
			t.Error("the fence does not rise")
		}
		p.release(l)
	})
}

func TestRetainedMutexIsNotBelievedPastItsDeadline(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, _ *retainer) {
		for _, idle := range []bool{false, true} {
			inside := p.retains()
			work := inside.Context(ctx)
			p.net.Down()
			deadline := inside.Deadline()
			time.Sleep(time.Until(deadline) - 1)
			if inside.Err() != nil {
				t.Error("lost too early")
			}
			if idle {
				_ = inside.Release(ctx)
			}
			time.Sleep(time.Nanosecond)
			if p.localNow() {
				t.Error("granted inside after the deadline")
			}
			if !idle {
				for _, err := range []error{inside.Err(), context.Cause(work), inside.Release(ctx)} {
					if !errors.Is(err, lockkeeper.ErrLost) {
						t.Errorf("not lost: %v", err)
					}
				}
			}
			p.net.Restore()
			time.Sleep(time.Minute)
		}
	})
}

func TestCloseEndsRetainedMutex(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.retains()
		work := inside.Context(ctx)
		waiting := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := p.Lock(ctx)
				waiting <- err
			}()
			synctest.Wait()
		}
		p.must(p.Close())
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
		p.must(inside.Release(ctx))
		l, err := other.TryLock(ctx)
		p.must(err)
		other.release(l)
	})
}

func TestExtendOfRetainedMutex(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.retains()
		p.must(inside.Extend(ctx, time.Minute))
		if left := time.Until(inside.Deadline()); left < 59*time.Second {
			t.Errorf("it lasts for %v", left)
		}
		waiting := p.waits()
		p.must(inside.Extend(ctx, time.Second))
		if left := time.Until(inside.Deadline()); left > time.Second {
			t.Errorf("it lasts for %v", left)
		}
		time.Sleep(time.Minute)
		if inside.Err() != nil {
			t.Errorf("it is not renewed: %v", inside.Err())
		}
		p.release(inside)
		l := <-waiting
		if l.Fence() <= inside.Fence() {
			t.Error("a lease that was extended serves another turn")
		}
		p.release(l)
		if _, held, err := other.Holder(ctx); err != nil || held {
			t.Errorf("held: %v, %v", held, err)
		}
	})
}

func TestRetainRefuses(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		for _, o := range []mutex.Options{{NoRenewal: true}, {MaxLifetime: time.Hour}, {TTL: time.Millisecond}} {
			o.Retain = true
			if _, err := mutex.New(p.Keeper, "x", &o); !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		inside := p.retains()
		for _, q := range []*retainer{p, other} {
			if _, err := q.Adopt(ctx, inside.Token()); !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("Adopt: %v", err)
			}
		}
		p.release(inside)
		plain := other.lock() // it can be adopted where Retain is set
		l, err := p.Adopt(ctx, plain.Token())
		p.must(err)
		p.release(l)
	})
}

func TestRetainHooks(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		p.release(p.retains())
		p.events = nil
		p.release(p.lock())
		inside := p.lock()
		waiting := p.waits()
		p.release(inside)
		p.release(<-waiting)
		other.release(other.lock())
		synctest.Wait()
		want := "[start true done true released true start true done true start false released true done true released true recalled false]"
		if got := fmt.Sprint(p.events); got != want {
			t.Errorf("events: %s; want %s", got, want)
		}
	})
}
