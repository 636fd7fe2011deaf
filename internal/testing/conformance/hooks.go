package conformance

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
)

// visible are the cases of what programs see of a lock besides its leases: hooks, contexts, owners, the interface Locker.
var visible = []Case{
	{Name: "hooks_have_the_context_of_the_call", Test: hooksHaveContext},
	{Name: "owners_are_shown", Test: owners},
	{Name: "long_wait_is_logged", Test: longWaitLogged},
}

// hooksHaveContext checks that all events of a call and of its lease have the call's context and number.
func hooksHaveContext(w *World) {
	type call struct {
		ctx    context.Context
		number uint64
	}
	var mu sync.Mutex
	events := map[call][]string{}
	hook := func(name string) func(lockkeeper.Event) {
		return func(e lockkeeper.Event) {
			mu.Lock()
			defer mu.Unlock()
			c := call{e.Context, e.Request}
			events[c] = append(events[c], strings.TrimSpace(name+" "+e.Token))
		}
	}
	renewed := make(chan struct{}, 100)
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.AcquireStart, o.Hooks.AcquireDone = hook("AcquireStart"), hook("AcquireDone")
		o.Hooks.Released, o.Hooks.Lost = hook("Released"), hook("Lost")
		o.Hooks.Renewed = func(e lockkeeper.Event) {
			hook("Renewed")(e)
			renewed <- struct{}{}
		}
	})
	type key struct{}
	first, second := context.WithValue(w.ctx(), key{}, 1), context.WithValue(w.ctx(), key{}, 2)
	l := p.Lock("x")
	lease := must.Get(l.Lock(first))(w)
	_, err := l.TryLock(second)
	must.That(w, err != nil, "granted twice")
	<-renewed
	w.release(lease)
	mu.Lock()
	defer mu.Unlock()
	token := " " + lease.Token()
	want := map[context.Context]string{
		first:  "AcquireStart, AcquireDone" + token + ", Renewed" + token + ", Released" + token,
		second: "AcquireStart, AcquireDone",
	}
	for c, list := range events {
		got := strings.Join(slices.Compact(list), ", ")
		check.That(w, c.number != 0 && got == want[c.ctx], "call %d with the context %v: %s, want %s", c.number, c.ctx, got, want[c.ctx])
	}
	check.That(w, len(events) == 2, "%d calls", len(events))
}

// owners checks that holders and waiters are shown with the labels of their keepers, that the label is removed when its keeper is closed,
// and that nothing is stored for a keeper without one.
func owners(w *World) {
	label := func(s string) func(*lockkeeper.Options) { return func(o *lockkeeper.Options) { o.Owner = s } }
	p, q := w.Process(label("first host")), w.Process(label("second host"))
	anonymous := w.Process(func(o *lockkeeper.Options) { o.NoOwner = true })
	stored := func() int {
		keys := must.Get(w.admin.Keys(w.ctx(), "{lock:}:owner:*").Result())(w)
		return len(keys)
	}
	holders := func() []lockkeeper.Holder {
		switch l := anonymous.Lock("x").(type) {
		case interface {
			Holders(context.Context) ([]lockkeeper.Holder, error)
		}:
			return must.Get(l.Holders(w.ctx()))(w)
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
	check.That(w, len(holders()) == 0, "a free lock has holders")
	before := w.serverTime()
	lease := must.Get(p.Lock("x").Lock(lockkeeper.WithNote(w.ctx(), "job 1, größer")))(w)
	after := w.serverTime()
	waiting := w.lockAsync(lockkeeper.WithNote(w.ctx(), "job 2"), q.Lock("x"))
	w.awaitWaiters("x", 1)
	w.eventually("both labels", func() bool { return stored() == 2 })
	list := holders()
	must.That(w, len(list) == 1, "holders %+v", list)
	h := list[0]
	check.That(w, h.Token == lease.Token() && h.Keeper == p.ID() && h.Fence == lease.Fence() && h.ExpiresIn > 0 && h.ExpiresIn <= ttl,
		"holder %+v, want the lease %s of fence %d", h, lease.Token(), lease.Fence())
	since := !h.Since.Before(before.Add(-time.Millisecond)) && !h.Since.After(after)
	check.That(w, h.Owner == "first host" && h.Note == "job 1, größer" && since, "holder %+v, granted between %v and %v", h, before, after)
	if l, ok := anonymous.Lock("x").(interface {
		Waiters(context.Context) ([]lockkeeper.Waiter, error)
	}); ok {
		list, err := l.Waiters(w.ctx())
		check.That(w, err == nil && len(list) == 1 && list[0].Owner == "second host" && list[0].Note == "job 2",
			"waiters %+v, %v", list, err)
	}
	w.release(lease)
	w.release(w.awaitGrant(waiting, time.Second).lease)
	w.release(w.hold(anonymous.Lock("y")))
	for _, note := range []string{strings.Repeat("x", 65), "a\nb"} {
		w.checkError(errorOf(p.Lock("y").TryLock(lockkeeper.WithNote(w.ctx(), note))), lockkeeper.ErrInvalid)
	}
	check.That(w, stored() == 2, "not two labels of the keepers that have one")
	w.must(p.Close())
	check.That(w, stored() == 1, "not one label after one of two keepers was closed")
}

func (w *World) serverTime() time.Time {
	return must.Get(w.admin.Time(w.ctx()).Result())(w)
}

// longWaitLogged checks that a wait longer than LongWait is logged once for all who wait, with the holder, and a shorter one is not.
func longWaitLogged(w *World) {
	const bound = 2 * ttl
	p := w.Process(func(o *lockkeeper.Options) { o.Owner = "the holder" })
	var log quiet.Buffer
	q := w.Process(func(o *lockkeeper.Options) { o.LongWait, o.Logger = bound, slog.New(slog.NewTextHandler(&log, nil)) })
	lease := w.hold(p.Lock("x"))
	brief := w.lockAsync(w.ctx(), q.Lock("x"))
	time.Sleep(bound / 4)
	w.release(lease)
	w.release(await(w, brief, time.Second).lease)
	lease = w.hold(p.Lock("x"))
	first, second := w.lockAsync(w.ctx(), q.Lock("x")), w.lockAsync(w.ctx(), q.Lock("x"))
	time.Sleep(bound / 2)
	check.That(w, log.String() == "", "logged after half of it: %s", log.String())
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
	w.release(await(w, other, time.Second).lease)
	text := log.String()
	told := strings.Contains(text, `held_by="the holder since `) && strings.Contains(text, "name=x")
	check.That(w, strings.Count(text, "\n") == 1 && told, "logged:\n%s", text)
}
