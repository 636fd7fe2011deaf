package mutex_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
	"github.com/lockkeeper/lockkeeper/mutex"
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
