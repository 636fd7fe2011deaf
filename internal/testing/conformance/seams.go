package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// seams are the cases of what other packages build on: hooks, contexts, the interface Locker.
var seams = []Case{
	{"hooks_have_the_context_of_the_call", false, false, hooksHaveContext},
	{"lease_from_context", false, false, leaseFromContext},
	{"locker", false, false, lockers},
}

// hooksHaveContext checks that all events of a call and of its lease have the call's context and number.
func hooksHaveContext(w *World) {
	type call struct{ name, token string }
	var mu sync.Mutex
	calls := map[uint64]map[call]int{} // by number: how many events of each kind
	contexts := map[uint64]context.Context{}
	hook := func(name string) func(lockkeeper.Event) {
		return func(e lockkeeper.Event) {
			mu.Lock()
			defer mu.Unlock()
			if before, known := contexts[e.Request]; known && before != e.Context {
				w.Errorf("%s of call %d has the context %v, earlier events had %v", name, e.Request, e.Context, before)
			}
			contexts[e.Request] = e.Context
			if calls[e.Request] == nil {
				calls[e.Request] = map[call]int{}
			}
			calls[e.Request][call{name, e.Token}]++
		}
	}
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.AcquireStart, o.Hooks.AcquireDone, o.Hooks.Renewed = hook("AcquireStart"), hook("AcquireDone"), hook("Renewed")
		o.Hooks.Released, o.Hooks.Lost = hook("Released"), hook("Lost")
	})
	type key struct{}
	first, second := context.WithValue(w.ctx(), key{}, 1), context.WithValue(w.ctx(), key{}, 2)
	l := p.Lock("x")
	lease, err := l.Lock(first)
	w.must(err)
	if _, err := l.TryLock(second); err == nil {
		w.Fatal("granted twice")
	}
	renewed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, events := range calls {
			if events[call{"Renewed", lease.Token()}] > 0 {
				return true
			}
		}
		return false
	}
	w.eventually("a renewal", renewed)
	w.release(lease)
	mu.Lock()
	defer mu.Unlock()
	if len(calls) != 2 {
		w.Fatalf("%d calls: %v", len(calls), calls)
	}
	for number, events := range calls {
		if number == 0 {
			w.Error("a call has the number 0")
		}
		want := map[call]bool{{"AcquireStart", ""}: true, {"AcquireDone", ""}: true}
		if contexts[number] == first {
			want = map[call]bool{
				{"AcquireStart", ""}: true, {"AcquireDone", lease.Token()}: true, {"Renewed", lease.Token()}: true, {"Released", lease.Token()}: true,
			}
		} else if contexts[number] != second {
			w.Errorf("call %d has a context that no call was given: %v", number, contexts[number])
		}
		for e, n := range events {
			if !want[e] || n != 1 && e.name != "Renewed" {
				w.Errorf("call %d: %d times %v", number, n, e)
			}
			delete(want, e)
		}
		if len(want) != 0 {
			w.Errorf("call %d: there was no %v", number, want)
		}
	}
}

func leaseFromContext(w *World) {
	type key struct{}
	p := w.Process()
	l := p.Lock("x")
	if lease := lockkeeper.LeaseFromContext(w.ctx()); lease != nil {
		w.Errorf("a context without a lease has %v", lease)
	}
	lease := w.hold(l)
	child, cancel := context.WithTimeout(context.WithValue(lease.Context(w.ctx()), key{}, 1), time.Hour)
	defer cancel()
	if got := lockkeeper.LeaseFromContext(child); got != lease {
		w.Errorf("the lease %v, not %v", got, lease)
	}
	other := w.hold(p.Lock("y"))
	inner := other.Context(child)
	if got := lockkeeper.LeaseFromContext(inner); got != other {
		w.Errorf("of two leases, that of the outer context: %v", got)
	}
	w.release(other)
	w.release(lease)
	if got := lockkeeper.LeaseFromContext(child); got != lease || got.Err() == nil {
		w.Errorf("after the release: %v", got)
	}
	w.must(l.Do(w.ctx(), func(ctx context.Context, fence uint64) error {
		got := lockkeeper.LeaseFromContext(ctx)
		if got == nil || got.Fence() != fence || got.Err() != nil {
			w.Errorf("in Do: %v", got)
		}
		return nil
	}))
}

func lockers(w *World) {
	p, q := w.Process(), w.Process()
	l := lockkeeper.Locker(p.Lock("x"))
	if l.Name() != "x" {
		w.Errorf("the name %q", l.Name())
	}
	lease, err := l.Lock(w.ctx())
	w.must(err)
	if _, err := q.Lock("x").TryLock(w.ctx()); err == nil {
		w.Error("granted twice")
	}
	w.release(lease)
	lease, err = l.TryLock(w.ctx())
	w.must(err)
	w.release(lease)
}
