package rwlock_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// TestNotesOfConversions: a converted lease has the note of the conversion, or else keeps its own; a retained one has none.
func TestNotesOfConversions(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		rdb := redis.NewClient(s.Network().Options(time.Second))
		defer rdb.Close()
		k, err := lockkeeper.New(rdb, nil)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(err)
		defer k.Close()
		l, err := rwlock.New(k, "x", nil)
		must(err)
		want := func(note string, retained bool) {
			t.Helper()
			holders, err := l.Holders(ctx)
			must(err)
			if len(holders) != 1 || holders[0].Note != note || holders[0].Retained != retained {
				t.Errorf("%+v, want one with the note %q, retained %v", holders, note, retained)
			}
		}
		read, err := l.RLock(lockkeeper.WithNote(ctx, "report"))
		must(err)
		want("report", false)
		write, err := l.Upgrade(ctx, read)
		must(err)
		want("report", false)
		read, err = l.Downgrade(lockkeeper.WithNote(ctx, "check"), write)
		must(err)
		want("check", false)
		must(read.Release(ctx))

		r, err := rwlock.New(k, "x", &rwlock.Options{Retain: true})
		must(err)
		for range 3 { // at the latest then the process is subscribed, and retains the lease
			read, err = r.RLock(lockkeeper.WithNote(ctx, "report"))
			must(err)
			must(read.Release(ctx))
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
		k, err := lockkeeper.New(rdb, &lockkeeper.Options{
			Hooks:  lockkeeper.Hooks{AcquireStart: hook("starts"), AcquireDone: hook("done"), Released: hook("released")},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(err)
		defer rdb.Close()
		defer k.Close()
		l, err := rwlock.New(k, "x", nil)
		must(err)
		read, err := l.RLock(call("first"))
		must(err)
		write, err := l.Upgrade(call("second"), read)
		must(err)
		read, err = l.Downgrade(call("third"), write)
		must(err)
		must(read.Release(ctx))
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
