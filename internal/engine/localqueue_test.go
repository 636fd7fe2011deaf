package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/growth"
	"github.com/redis/go-redis/v9"
)

// TestAbandonedTurnsKeepTheOrder checks that callers of this process that give up, wherever in the queue, leave the others in their order.
func TestAbandonedTurnsKeepTheOrder(t *testing.T) {
	inBubble(t, func(s *fixture) {
		const n = 9
		if _, err := s.waitLocally(s.Context(), "x", time.Second, time.Now()); err != nil {
			t.Fatal(err)
		}
		var turns []int
		var group sync.WaitGroup
		var cancels []context.CancelFunc
		for i := range n {
			ctx, cancel := context.WithCancel(s.Context())
			cancels = append(cancels, cancel)
			group.Go(func() {
				_, err := s.waitLocally(ctx, "x", time.Second, time.Now())
				if gaveUp := i%2 == 0; gaveUp != (err != nil) || gaveUp && !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
				if err == nil {
					turns = append(turns, i)
					s.leaveLocalQueue("x")
				}
			})
			time.Sleep(time.Millisecond) // virtual: it is in the queue
		}
		for i := 0; i < n; i += 2 {
			cancels[i]()
		}
		time.Sleep(time.Millisecond)
		s.leaveLocalQueue("x")
		group.Wait()
		if fmt.Sprint(turns) != "[1 3 5 7]" {
			t.Errorf("turns %v", turns)
		}
		if len(s.localQueues) != 0 {
			t.Error("the queue is left")
		}
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// offline returns an engine that sends nothing.
func offline(t testing.TB) *Engine {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	c, err := client.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return New(Config{Config: server.Config{Client: c, Log: slog.New(slog.DiscardHandler)}, LongWait: time.Minute})
}

// abandonTurns lets so many callers give up at the end of a local queue in which others wait, and returns how long that took.
func abandonTurns(e *Engine, callers, others int) time.Duration {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = e.waitLocally(context.Background(), "x", time.Second, time.Now())
	e.mu.Lock()
	for range others {
		e.localQueues["x"].waiting.PushBack(make(chan struct{}))
	}
	e.mu.Unlock()
	took := growth.Took(func() {
		for range callers {
			_, _ = e.waitLocally(canceled, "x", time.Second, time.Now())
		}
	})
	for range others + 1 {
		e.leaveLocalQueue("x")
	}
	return took
}

// TestAbandonedTurnIsCheapInALongQueue checks that a caller that gives up does not look at those before it.
func TestAbandonedTurnIsCheapInALongQueue(t *testing.T) {
	e := offline(t)
	growth.AtMost(t, 10, func() time.Duration { return abandonTurns(e, 300, 10) }, func() time.Duration { return abandonTurns(e, 300, 100_000) })
}

// BenchmarkAbandonedTurns measures callers of one name that all give up.
func BenchmarkAbandonedTurns(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			e := offline(b)
			var took time.Duration
			for b.Loop() {
				took += abandonTurns(e, n, n)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*n), "ns/caller")
		})
	}
}
