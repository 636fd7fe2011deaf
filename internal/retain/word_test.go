package retain

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// TestHoldValue does the same steps to a Hold and to a HoldValue.
func TestHoldValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(3000) {
			random := rand.New(rand.NewPCG(seed, 1))
			var epoch atomic.Uint64
			epoch.Store(1 + random.Uint64N(2))
			base := time.Now().Add(-1)
			now := func() claim.Instant { return claim.Instant(time.Since(base)) }
			h, v := New(base, &epoch), NewValue(epoch.Load())
			at := func() HoldAt { return v.At(now(), epoch.Load()) }
			var log []string
			for range 20 {
				n := random.IntN(16)
				if random.IntN(2) == 0 {
					n = random.IntN(7) // those that usually follow each other
				}
				var a, b any
				switch n {
				case 0:
					ok, settle := h.Enter()
					valueOK, valueSettle := at().Enter()
					a, b = [2]bool{ok, settle}, [2]bool{valueOK, valueSettle}
				case 1:
					a, b = h.EnterAlone(), at().EnterAlone()
				case 2, 3:
					if h.Inside() == 0 {
						continue
					}
					left, settle := h.LeaveAlone()
					valueLeft, valueSettle := at().LeaveAlone()
					a, b = [2]bool{left, settle}, [2]bool{valueLeft, valueSettle}
				case 4:
					a, b = h.Want(), at().Want()
				case 5:
					if h.Inside() != 1 {
						continue
					}
					a, b = h.Pass(), at().Pass()
				case 6:
					h.Unwant()
					at().Unwant()
				case 7:
					if len(log) > 0 && h.word.Load()&uint64(opened) != 0 {
						continue
					}
					closed := random.IntN(4) == 0
					h.Open(closed)
					at().Open(closed)
				case 8:
					if random.IntN(3) == 0 {
						a, b = h.Close(), at().Close()
					}
				case 9:
					if random.IntN(3) == 0 {
						h.End()
						at().End()
					}
				case 10:
					a, b = h.TakeUses() > 0, at().TakeUses() > 0
				case 11:
					epoch.Add(1)
				case 12:
					h.Confirm(epoch.Load())
					at().Confirm(at().Current())
				case 13:
					d := time.Duration(random.IntN(3))
					h.SetDeadline(time.Now().Add(d))
					v.SetDeadline(now().Add(d))
				case 14:
					time.Sleep(time.Nanosecond)
				case 15:
					if h.Inside() == 0 {
						continue
					}
					a, b = h.Leave(), at().Leave()
				}
				log = append(log, fmt.Sprint(n))
				if a != b || h.Inside() != at().Inside() || h.Certain() != at().Certain() {
					t.Fatalf("seed %d: %v and %v after %v", seed, a, b, log)
				}
			}
		}
	})
}
