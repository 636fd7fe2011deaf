package election_test

import (
	"context"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// labelled returns a keeper with an owner label.
func labelled(t *testing.T, s *lockkeepertest.Server, owner string) *lockkeeper.Keeper {
	return s.Keeper(t, &lockkeeper.Options{Owner: owner})
}

func TestLeader(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		observer := newElection(t, newFair(t, labelled(t, s, "observer")), nil)
		if leader, held, err := observer.Leader(t.Context()); held || err != nil || observer.Leading() {
			t.Errorf("%+v, %v, %v", leader, held, err)
		}
		ts := newTerms()
		e := newElection(t, newFair(t, labelled(t, s, "one")), nil)
		result := run(t.Context(), e, ts.lead(t, 0, false))
		term := <-ts.starts
		leader, held, err := observer.Leader(t.Context())
		if !held || err != nil || leader.Owner != "one" || leader.Fence != term.fence || time.Since(leader.Since) > ttl {
			t.Errorf("%+v, %v, %v", leader, held, err)
		}
		check.That(t, e.Leading() && !observer.Leading(), "leading: %v; the observer: %v", e.Leading(), observer.Leading())
		term.end <- nil
		<-result
		if _, held, err := observer.Leader(t.Context()); held || err != nil || e.Leading() {
			t.Errorf("held: %v, %v; leading: %v", held, err, e.Leading())
		}
	})
}

// changes collects what Watch returns. It returns what checks the next change: "owner", "nobody", "unknown" or "end", and how long it takes
// at most.
func changes(t *testing.T, ctx context.Context, e *election.Election) (require func(want string, most time.Duration), stop func()) {
	next, stop := iter.Pull2(e.Watch(ctx))
	return func(want string, most time.Duration) {
		t.Helper()
		start := time.Now()
		leader, err, ok := next()
		got := leader.Owner
		switch {
		case !ok:
			got = "end"
		case err != nil:
			got = "unknown"
		case leader.Token == "":
			got = "nobody"
		}
		must.That(t, got == want, "%s instead of %s", got, want)
		d := time.Since(start)
		check.That(t, d <= most, "%s after %v", want, d)
	}, stop
}

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		const interval = 2 * time.Second // the default of WatchInterval
		ctx, cancel := context.WithCancel(t.Context())
		require, stop := changes(t, ctx, newElection(t, newFair(t, labelled(t, s, "observer")), nil))
		defer stop()
		require("nobody", 0)

		ts := newTerms()
		one := newElection(t, newFair(t, labelled(t, s, "one")), nil)
		result := run(t.Context(), one, ts.lead(t, 0, false))
		term := <-ts.starts
		require("one", interval)
		requireOfOne, stopOfOne := changes(t, ctx, one)
		defer stopOfOne()
		requireOfOne("one", 0)

		term.end <- election.ErrResign // the same process, but a new term
		term = <-ts.starts
		require("one", interval)

		s.Unreachable()
		require("unknown", time.Minute)
		time.Sleep(time.Minute)
		check.That(t, !one.Leading(), "leading after a minute without a server")
		s.Restore()
		term = <-ts.starts
		require("one", interval)
		cancel()
		require("end", 0)
		term.end <- nil
		<-result
	})
}

// TestWatchSeesOwnChangesAtOnce checks that Watch does not wait for its interval if the Run of its Election starts or stops
// leading, and that it ends when the keeper is closed.
func TestWatchSeesOwnChangesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := labelled(t, s, "one")
		one := newElection(t, newFair(t, k), &election.Options{WatchInterval: time.Hour, Logger: slog.New(slog.DiscardHandler)})
		require, stop := changes(t, t.Context(), one)
		defer stop()
		require("nobody", 0)
		ts := newTerms()
		result := run(t.Context(), one, ts.lead(t, 0, true))
		first := <-ts.starts
		require("one", 0)
		two := run(t.Context(), newElection(t, newFair(t, labelled(t, s, "two")), nil), ts.lead(t, 1, false))
		s.RequireWaiting(t, "boss", 1)
		_ = lockkeeper.LeaseFromContext(first.ctx).Release(t.Context()) // lead goes on
		second := <-ts.starts
		require("two", 0)
		first.end <- nil // one campaigns again
		s.RequireWaiting(t, "boss", 1)
		second.end <- nil
		must.Report(t, <-two)
		third := <-ts.starts
		require("one", 0)
		third.end <- nil
		must.Report(t, <-result)
		require("nobody", 0)
		_ = k.Close()
		require("unknown", time.Hour)
		require("end", 0)
	})
}

// TestWatchAsksAtItsInterval checks that Watch neither polls faster than its interval nor slower, and says once that it is not
// known who leads.
func TestWatchAsksAtItsInterval(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := &counted{Locker: newFair(t, s.Keeper(t, nil))}
		e := newElection(t, l, &election.Options{WatchInterval: time.Second})
		ctx := must.Within(t, 10500*time.Millisecond)
		n := 0
		for range e.Watch(ctx) {
			n++
		}
		check.That(t, n == 3 && l.asked == 11, "%d changes, asked %d times", n, l.asked)
		for range e.Watch(t.Context()) {
			break
		}
	})
}

// counted is a Locker that counts calls of Holder, and does not answer three of them.
type counted struct {
	election.Locker
	asked int
}

func (c *counted) Holder(ctx context.Context) (lockkeeper.Holder, bool, error) {
	if c.asked++; c.asked > 4 && c.asked < 8 {
		return lockkeeper.Holder{}, false, lockkeeper.ErrUnavailable
	}
	return lockkeeper.Holder{}, false, nil
}
