package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/growth"
	"github.com/lockkeeper/lockkeeper/lua"
)

// logWaits notes so many lines about locks that others precede, and returns how long that took.
func logWaits(lines, others int) time.Duration {
	var ws longWaits
	now := time.Now()
	for i := range others {
		ws.mayLogLocked(fmt.Sprint(i), now, time.Minute)
	}
	keys := make([]string, lines)
	for i := range keys {
		keys[i] = fmt.Sprint("x", i)
	}
	return growth.Took(func() {
		for _, key := range keys {
			ws.mayLogLocked(key, now, time.Minute)
		}
	})
}

// TestLongWaitIsCheapAmongMany checks that a wait that has become long does not look at the others.
func TestLongWaitIsCheapAmongMany(t *testing.T) {
	growth.AtMost(t, 20, func() time.Duration { return logWaits(500, 10) }, func() time.Duration { return logWaits(500, 20_000) })
}

// BenchmarkLongWaits measures waits for so many names that all become long.
func BenchmarkLongWaits(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			var took time.Duration
			for b.Loop() {
				took += logWaits(n, 0)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*n), "ns/name")
		})
	}
}

// TestLongWaitsOfALockAreLoggedOncePerInterval checks that the time of the last line about each lock counts, and is forgotten.
func TestLongWaitsOfALockAreLoggedOncePerInterval(t *testing.T) {
	var ws longWaits
	began := time.Now()
	for _, c := range []struct {
		key  string
		at   time.Duration
		want bool
	}{
		{"a", 0, true}, {"b", 30 * time.Second, true}, {"a", 59 * time.Second, false}, {"a", 60 * time.Second, true},
		{"b", 89 * time.Second, false}, {"b", 90 * time.Second, true}, {"a", 119 * time.Second, false},
	} {
		if got := ws.mayLogLocked(c.key, began.Add(c.at), time.Minute); got != c.want {
			t.Errorf("%s after %v: %v", c.key, c.at, got)
		}
	}
	if !ws.mayLogLocked("c", began.Add(time.Hour), time.Minute) || len(ws.last) != 1 || len(ws.inTime) != 1 {
		t.Errorf("%d and %d are remembered, want 1", len(ws.last), len(ws.inTime))
	}
}

// TestLongWaitsAskOneAfterTheOther checks that waits for many names that become long at once are all logged, but ask for one lock at
// a time, and not for those that have ended meanwhile.
func TestLongWaitsAskOneAfterTheOther(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.cfg.LongWait = time.Second
		const n = 50
		var asking, asked atomic.Int32
		watch := func(names string) (stopAll func()) {
			asked.Store(0)
			var stops []func()
			for i := range n {
				stops = append(stops, s.lock(fmt.Sprint(names, i)).WatchWait(func(context.Context, int) ([]Holder, int, error) {
					if asking.Add(1) > 1 {
						s.Error("two at once")
					}
					time.Sleep(time.Millisecond)
					asking.Add(-1)
					asked.Add(1)
					return nil, 0, nil
				}))
			}
			return func() {
				for _, stop := range stops {
					stop()
				}
			}
		}
		stop := watch("a")
		time.Sleep(2 * time.Second)
		stop()
		if asked := asked.Load(); asked != n {
			s.Errorf("%d of %d were logged", asked, n)
		}
		stop = watch("b")
		time.Sleep(time.Second + n/2*time.Millisecond)
		stop()
		time.Sleep(time.Second)
		if asked := asked.Load(); asked < n/4 || asked > n/2+2 {
			s.Errorf("%d of %d were logged, whose waits ended half-way", asked, n)
		}
	})
}

// TestFirstHoldersReadsNoOthers checks that whoever needs one holder does not list a thousand.
func TestFirstHoldersReadsNoOthers(t *testing.T) {
	inBubble(t, func(s *fixture) {
		const n = 1200
		l := s.lock("x", func(spec *Spec) {
			spec.Scripts, spec.LocalQueue, spec.Limits, spec.NoRenewal = lua.Semaphore, false, &Limits{AtOnce: n}, true
		})
		for range n {
			if _, err := l.Try(context.Background(), Terms{Flags: "h", Number: 1}); err != nil {
				s.Fatal(err)
			}
		}
		commands := func(f func()) int {
			before := s.mini.CommandCount()
			f()
			return s.mini.CommandCount() - before
		}
		var list []Holder
		var total int
		var err error
		few := commands(func() { list, total, err = l.FirstHolders(context.Background(), 3) })
		if err != nil || len(list) != 3 || total != n {
			s.Errorf("%d of %d, %v", len(list), total, err)
		}
		var all []Holder
		many := commands(func() { all, err = l.Holders(context.Background()) })
		if err != nil || len(all) != n {
			s.Errorf("%d, %v", len(all), err)
		}
		if few >= many || few > 12 {
			s.Errorf("the first holders took %d commands, all took %d", few, many)
		}
	})
}
