package keeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestAbandonedTurnsKeepTheOrder checks that callers of this process that give up, wherever in the queue, leave the others in their order.
func TestAbandonedTurnsKeepTheOrder(t *testing.T) {
	inBubble(t, func(s *fixture) {
		const n = 9
		if _, err := s.local.Wait(s.Context(), "x", time.Second, time.Now()); err != nil {
			t.Fatal(err)
		}
		var turns []int
		var group sync.WaitGroup
		var cancels []context.CancelFunc
		for i := range n {
			ctx, cancel := context.WithCancel(s.Context())
			cancels = append(cancels, cancel)
			group.Go(func() {
				_, err := s.local.Wait(ctx, "x", time.Second, time.Now())
				if gaveUp := i%2 == 0; gaveUp != (err != nil) || gaveUp && !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
				if err == nil {
					turns = append(turns, i)
					s.local.Leave("x")
				}
			})
			time.Sleep(time.Millisecond) // virtual: it is in the queue
		}
		for i := 0; i < n; i += 2 {
			cancels[i]()
		}
		time.Sleep(time.Millisecond)
		s.local.Leave("x")
		group.Wait()
		if fmt.Sprint(turns) != "[1 3 5 7]" {
			t.Errorf("turns %v", turns)
		}
		if _, err := s.local.Wait(s.Context(), "x", time.Second, time.Now()); err != nil {
			t.Errorf("the queue is left: %v", err)
		}
		s.local.Leave("x")
		for _, cancel := range cancels {
			cancel()
		}
	})
}
