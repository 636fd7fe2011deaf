package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/pubsub"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/growth"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
)

// offline returns local queues of a server to which nothing is sent.
func offline(t *testing.T) *localQueues {
	t.Helper()
	c, end := embedded.Connect(t, faultnet.New(faultnet.TCP), time.Second)
	t.Cleanup(end)
	s := server.New(server.Config{Client: c, Log: quiet.Logger(nil)}, pubsub.Config{})
	return newLocalQueues(s, func(string) {})
}

// answers is a Judge of servers that answer.
type answers struct{}

func (answers) Outage(time.Time) error               { return nil }
func (answers) Exhausted(time.Time, time.Time) error { return nil }

// abandonTurns lets so many callers give up at the end of a local queue in which others wait, and returns how long that took.
func abandonTurns(w *localQueues, callers, others int) time.Duration {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = w.Wait(context.Background(), "x", answers{})
	w.mu.Lock()
	for range others {
		w.byName["x"].waiting.PushBack(make(chan struct{}))
	}
	w.mu.Unlock()
	took := growth.Took(func() {
		for range callers {
			_, _ = w.Wait(canceled, "x", answers{})
		}
	})
	for range others + 1 {
		w.Leave("x")
	}
	return took
}

// TestAbandonedTurnIsCheapInALongQueue checks that a caller that gives up does not look at those before it.
func TestAbandonedTurnIsCheapInALongQueue(t *testing.T) {
	w := offline(t)
	growth.AtMost(t, 10, func() time.Duration { return abandonTurns(w, 300, 10) }, func() time.Duration { return abandonTurns(w, 300, 100_000) })
}

// exhausted is a Judge of servers that have not answered for so long that the retry policy gives up.
type exhausted struct{ answers }

func (exhausted) Exhausted(time.Time, time.Time) error { return server.ErrUnavailable }

// TestCallerWhoseTurnComesTooLateHandsItOn checks that the next caller gets the turn of one for whom the retry policy has given up.
func TestCallerWhoseTurnComesTooLateHandsItOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := offline(t)
		_, err := w.Wait(t.Context(), "x", answers{})
		must.OK(t, err)
		errs := make(chan error, 2)
		for _, j := range []Judge{exhausted{}, answers{}} {
			go func() {
				_, err := w.Wait(t.Context(), "x", j)
				errs <- err
			}()
			synctest.Wait() // until it is queued
		}
		w.Leave("x")
		check.Is(t, <-errs, server.ErrUnavailable, "the first caller")
		check.Is(t, must.Receive(t, errs, time.Minute, "the next caller's turn"), nil, "the next caller")
		w.Leave("x")
	})
}
