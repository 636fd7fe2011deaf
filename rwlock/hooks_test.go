package rwlock_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// TestNotesOfConversions: a converted lease has the note of the conversion, or else keeps its own; a retained one has none.
func TestNotesOfConversions(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		rdb := redis.NewClient(s.Network().Options(time.Second))
		defer rdb.Close()
		k := must.Get(lockkeeper.New(rdb, nil))(t)
		defer k.Close()
		l := must.Get(rwlock.New(k, "x", nil))(t)
		want := func(note string, retained bool) {
			t.Helper()
			holders := must.Get(l.Holders(ctx))(t)
			if len(holders) != 1 || holders[0].Note != note || holders[0].Retained != retained {
				t.Errorf("%+v, want one with the note %q, retained %v", holders, note, retained)
			}
		}
		read := must.Get(l.RLock(lockkeeper.WithNote(ctx, "report")))(t)
		want("report", false)
		write := must.Get(l.Upgrade(ctx, read))(t)
		want("report", false)
		read = must.Get(l.Downgrade(lockkeeper.WithNote(ctx, "check"), write))(t)
		want("check", false)
		must.OK(t, read.Release(ctx))

		r := must.Get(rwlock.New(k, "x", &rwlock.Options{Retain: true}))(t)
		for range 3 { // at the latest then the process is subscribed, and retains the lease
			read = must.Get(r.RLock(lockkeeper.WithNote(ctx, "report")))(t)
			must.OK(t, read.Release(ctx))
		}
		want("", true)
	})
}

// TestHooksOfConversions checks that an upgrade and a downgrade are calls of their own, with the context that the caller passed and the
// mode that they ask for.
func TestHooksOfConversions(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		names := map[context.Context]string{}
		call := func(name string) context.Context {
			type key struct{}
			c := context.WithValue(ctx, key{}, name)
			names[c] = name
			return c
		}
		var got []string
		hook := func(what string) func(lockkeeper.Event) {
			return func(e lockkeeper.Event) { got = append(got, fmt.Sprintf("%s %s %s", names[e.Context], what, e.Mode)) }
		}
		rdb := redis.NewClient(s.Network().Options(time.Second))
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{
			Hooks:  lockkeeper.Hooks{AcquireStart: hook("starts"), AcquireDone: hook("done"), Released: hook("released")},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}))(t)
		defer rdb.Close()
		defer k.Close()
		l := must.Get(rwlock.New(k, "x", nil))(t)
		read := must.Get(l.RLock(call("first")))(t)
		write := must.Get(l.Upgrade(call("second"), read))(t)
		read = must.Get(l.Downgrade(call("third"), write))(t)
		must.OK(t, read.Release(ctx))
		want := []string{
			"first starts read", "first done read",
			"second starts write", "second done write", "first released read",
			"third starts read", "third done read", "second released write",
			"third released read",
		}
		if !slices.Equal(got, want) {
			t.Errorf("events:\n%q\nwant\n%q", got, want)
		}
	})
}

// TestHooksOfConversionInDoubt checks that each call that got a lease has one end of it, if the answer to a conversion comes after the
// context has ended: while the call still waits for it, or after it has returned, when the lease that the caller has becomes the one that
// the server has.
func TestHooksOfConversionInDoubt(t *testing.T) {
	for _, late := range []time.Duration{50 * time.Millisecond, 3 * time.Second} {
		for _, upgrade := range []bool{true, false} {
			t.Run(fmt.Sprintf("upgrade %t, answered after %v", upgrade, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { conversionInDoubt(t, nil, upgrade, late, false) })
			})
		}
	}
	t.Run("upgraded again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { conversionInDoubt(t, nil, true, 3*time.Second, true) })
	})
	t.Run("retained", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conversionInDoubt(t, &rwlock.Options{Retain: true}, true, 3*time.Second, false)
		})
	})
}

// conversionInDoubt converts a lease, and if again is set once more when the outcome is known.
func conversionInDoubt(t *testing.T, opts *rwlock.Options, upgrade bool, late time.Duration, again bool) {
	var mu sync.Mutex
	held := map[uint64]int{} // by call
	count := func(n int) func(lockkeeper.Event) {
		return func(e lockkeeper.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Err == nil {
				held[e.Request] += n
			}
		}
	}
	s := lockkeepertest.New(t)
	k := s.Keeper(t, &lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: count(1), Released: count(-1)}})
	l := must.Get(rwlock.New(k, "x", opts))(t)
	acquire, convert := l.RLock, l.Upgrade
	if !upgrade {
		acquire, convert = l.Lock, l.Downgrade
	}
	lease := must.Get(acquire(ctx))(t)
	must.OK(t, must.Get(convert(ctx, lease))(t).Release(ctx)) // the server knows the scripts from now on
	if opts != nil {                                          // another call brings the lease that is converted
		must.OK(t, must.Get(acquire(ctx))(t).Release(ctx))
	}
	lease = must.Get(acquire(ctx))(t)
	s.SlowAnswers(late)
	brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	next, err := convert(brief, lease)
	if (err != nil) != (upgrade && late > time.Second) {
		t.Errorf("the conversion has returned %v", err)
	}
	s.Restore()
	time.Sleep(4 * late)
	if err == nil {
		lease = next
	}
	if again {
		lease = must.Get(convert(ctx, lease))(t)
	}
	must.OK(t, lease.Release(ctx))
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	for call, n := range held {
		if n != 0 {
			t.Errorf("call %d: %+d leases", call, n)
		}
	}
}
