package timers

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestTimersFireOnceInOrder checks that after any sequence of setting, moving and cancelling, each timer fires once,
// at the time it was last set to.
func TestTimersFireOnceInOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			var c Scheduler
			start := time.Now()
			var mu sync.Mutex
			want := map[int]time.Duration{}
			timers := make([]*Timer, 24) // three levels of the heap
			for i := range timers {
				timers[i] = &Timer{Handler: Func(func(now time.Time) {
					mu.Lock()
					defer mu.Unlock()
					if at, set := want[i]; !set || at != now.Sub(start) || !now.Equal(time.Now()) {
						r.Errorf("timer %d fired at %v, with time %v; set: %v, to %v", i, time.Since(start), now.Sub(start), set, at)
					}
					delete(want, i)
				})}
			}
			for range rapid.IntRange(1, 80).Draw(r, "steps") {
				i := rapid.IntRange(0, len(timers)-1).Draw(r, "timer")
				after := time.Duration(rapid.IntRange(-5, 50).Draw(r, "after")) * time.Millisecond
				at := time.Now().Add(after)
				due := max(after, 0) + time.Since(start)
				mu.Lock()
				switch rapid.IntRange(0, 3).Draw(r, "what") {
				case 0:
					delete(want, i)
					mu.Unlock()
					c.Cancel(timers[i])
				case 1:
					if old, set := want[i]; !set || old > due {
						want[i] = due
					}
					mu.Unlock()
					c.SetIfSooner(timers[i], at)
				case 2:
					want[i] = due
					mu.Unlock()
					c.Set(timers[i], at)
				case 3:
					mu.Unlock()
					time.Sleep(max(after, 0))
				}
				synctest.Wait()
			}
			time.Sleep(time.Second)
			c.Stop()
			c.Set(timers[0], time.Now())
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			if len(want) > 0 {
				r.Fatalf("never fired: %v", want)
			}
		})
	})
}

func TestStopWaitsForFiringTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Scheduler
		ended := false
		c.Set(&Timer{Handler: Func(func(time.Time) {
			time.Sleep(time.Second)
			ended = true
		})}, time.Now())
		synctest.Wait()
		c.Stop()
		if !ended {
			t.Error("Stop returned while a timer was firing")
		}
	})
}

// TestEarliestConcurrentTimeWins sets a timer from many goroutines at once.
func TestEarliestConcurrentTimeWins(t *testing.T) {
	var c Scheduler
	defer c.Stop()
	for round := range 20000 {
		now := time.Now()
		a := &Timer{Handler: Func(func(time.Time) {})}
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { c.SetIfSooner(a, now.Add(time.Duration(i+1)*time.Hour)) })
		}
		all.Wait()
		c.mu.Lock()
		at := c.start.Add(c.timers[a.index-1].at).Sub(now)
		c.mu.Unlock()
		if at != time.Hour {
			t.Fatalf("round %d: set to %v", round, at)
		}
		c.Cancel(a)
	}
}
