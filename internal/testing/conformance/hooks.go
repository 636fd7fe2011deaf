package conformance

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// visible are the cases of what programs see of a lock besides its leases: hooks, contexts, owners, the interface Locker.
var visible = []Case{
	{Name: "hooks_have_the_context_of_the_call", Test: hooksHaveContext},
	{Name: "lease_from_context", Test: leaseFromContext},
	{Name: "locker", Test: lockers},
	{Name: "owners_are_shown", Test: owners},
	{Name: "long_wait_is_logged", Test: longWaitLogged},
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

// owners checks that holders and waiters are shown with the labels of their keepers, that the label is removed when its keeper is closed,
// and that nothing is stored for a keeper without one.
func owners(w *World) {
	label := func(s string) func(*lockkeeper.Options) { return func(o *lockkeeper.Options) { o.Owner = s } }
	p, q := w.Process(label("first host")), w.Process(label("second host"))
	anonymous := w.Process(func(o *lockkeeper.Options) { o.NoOwner = true })
	stored := func() int {
		keys, err := w.admin.Keys(w.ctx(), "{lock:}:owner:*").Result()
		w.must(err)
		return len(keys)
	}
	before := w.serverTime()
	lease, err := p.Lock("x").Lock(lockkeeper.WithNote(w.ctx(), "job 1, größer"))
	w.must(err)
	after := w.serverTime()
	waiting := w.lockAsync(lockkeeper.WithNote(w.ctx(), "job 2"), q.Lock("x"))
	w.awaitWaiters("x", 1)
	holders := func() []lockkeeper.Holder {
		switch l := anonymous.Lock("x").(type) {
		case interface {
			Holders(context.Context) ([]lockkeeper.Holder, error)
		}:
			list, err := l.Holders(w.ctx())
			w.must(err)
			return list
		case interface {
			Holder(context.Context) (lockkeeper.Holder, bool, error)
		}:
			h, held, err := l.Holder(w.ctx())
			w.must(err)
			if !held {
				return nil
			}
			return []lockkeeper.Holder{h}
		}
		w.Fatal("nobody can be listed")
		return nil
	}
	w.eventually("both labels", func() bool { return stored() == 2 })
	list := holders()
	if len(list) != 1 || list[0].Owner != "first host" || list[0].Note != "job 1, größer" || list[0].Since.Before(before.Add(-time.Millisecond)) || list[0].Since.After(after) {
		w.Errorf("holders %+v, granted between %v and %v", list, before, after)
	}
	if l, ok := anonymous.Lock("x").(interface {
		Waiters(context.Context) ([]lockkeeper.Waiter, error)
	}); ok {
		list, err := l.Waiters(w.ctx())
		if err != nil || len(list) != 1 || list[0].Owner != "second host" || list[0].Note != "job 2" {
			w.Errorf("waiters %+v, %v", list, err)
		}
	}
	w.release(lease)
	r := w.await(waiting, time.Second)
	w.must(r.err)
	w.release(r.lease)
	w.release(w.hold(anonymous.Lock("y")))
	for _, note := range []string{strings.Repeat("x", 65), "a\nb"} {
		_, err := p.Lock("y").TryLock(lockkeeper.WithNote(w.ctx(), note))
		w.checkError(err, lockkeeper.ErrInvalid)
	}
	if n := stored(); n != 2 {
		w.Errorf("%d labels", n)
	}
	w.must(p.Close())
	if n := stored(); n != 1 {
		w.Errorf("%d labels after one of two keepers was closed", n)
	}
}

func (w *World) serverTime() time.Time {
	now, err := w.admin.Time(w.ctx()).Result()
	w.must(err)
	return now
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// longWaitLogged checks that a wait longer than LongWait is logged once for all who wait, with the holder, and a shorter one is not.
func longWaitLogged(w *World) {
	const bound = 2 * ttl
	p := w.Process(func(o *lockkeeper.Options) { o.Owner = "the holder" })
	var log logBuffer
	q := w.Process(func(o *lockkeeper.Options) { o.LongWait, o.Logger = bound, slog.New(slog.NewTextHandler(&log, nil)) })
	lease := w.hold(p.Lock("x"))
	brief := w.lockAsync(w.ctx(), q.Lock("x"))
	time.Sleep(bound / 4)
	w.release(lease)
	w.release(w.await(brief, time.Second).lease)
	lease = w.hold(p.Lock("x"))
	first, second := w.lockAsync(w.ctx(), q.Lock("x")), w.lockAsync(w.ctx(), q.Lock("x"))
	time.Sleep(bound / 2)
	if text := log.String(); text != "" {
		w.Errorf("logged after half of it: %s", text)
	}
	w.eventually("the line", func() bool { return log.String() != "" })
	w.release(lease)
	other := second
	select {
	case got := <-first:
		w.release(got.lease)
	case got := <-second:
		other = first
		w.release(got.lease)
	}
	w.release(w.await(other, time.Second).lease)
	text := log.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, `held_by="the holder since `) || !strings.Contains(text, "name=x") {
		w.Errorf("logged:\n%s", text)
	}
}
