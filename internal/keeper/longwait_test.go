package keeper

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestLongWaitsAskOneAfterTheOther checks that waits for many names that become long at once are all logged, but ask for one lock at
// a time, and not for those that have ended meanwhile.
func TestLongWaitsAskOneAfterTheOther(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.longWaits.Bound = time.Second
		const n = 50
		var asking, asked atomic.Int32
		watch := func(names string) (stopAll func()) {
			asked.Store(0)
			var stops []func()
			for i := range n {
				stops = append(stops, s.lock(fmt.Sprint(names, i)).WatchWait(func(context.Context, int) ([]views.Holder, int, error) {
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
		var list []views.Holder
		var total int
		var err error
		few := commands(func() { list, total, err = views.FirstHolders(context.Background(), l.AtServer(), 3) })
		if err != nil || len(list) != 3 || total != n {
			s.Errorf("%d of %d, %v", len(list), total, err)
		}
		var all []views.Holder
		many := commands(func() { all, err = views.Holders(context.Background(), l.AtServer()) })
		if err != nil || len(all) != n {
			s.Errorf("%d, %v", len(all), err)
		}
		if few >= many || few > 12 {
			s.Errorf("the first holders took %d commands, all took %d", few, many)
		}
	})
}
