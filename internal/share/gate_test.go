package share

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

func TestGateAdmitsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		check.That(t, !g.IsOpen() && !g.Enter(), "it is open at first")
		g.Admit(time.Now(), time.Second, false, true)
		time.Sleep(time.Second - 1)
		check.That(t, g.InTime() && g.Enter(), "not admitted before the end")
		time.Sleep(time.Nanosecond)
		check.That(t, !g.InTime() && !g.Enter() && g.IsOpen(), "admitted at the end")
		was, empty := g.Close()
		check.That(t, was && !empty && !g.IsOpen() && !g.OneLeft(), "closed: %t, empty: %t", was, empty)
		check.That(t, !g.Leave() && g.OneLeft() && g.Leave(), "two were inside")
		was, empty = g.Close()
		check.That(t, !was && !empty, "closed twice: %t, %t", was, empty)
	})
}

func TestGateForOneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.Admit(time.Now(), time.Second, true, true)
		check.That(t, !g.Enter(), "two are inside")
		check.That(t, !g.Leave() && g.Enter() && !g.Leave(), "the last one of an open Gate")
		was, empty := g.Close()
		check.That(t, was && empty && !g.Enter(), "closed: %t, empty: %t", was, empty)

		g.Admit(time.Now(), time.Second, true, false)
		check.That(t, !g.Enter() && g.OneLeft() && g.Leave(), "it is shared")
	})
}

// TestGateTellsOneOfTheLast lets callers enter and leave while the Gate is closed: one of them, or who has closed it, is told that nobody is
// inside, and from then on nobody is.
func TestGateTellsOneOfTheLast(t *testing.T) {
	for round := range 500 {
		var g Gate
		var believing, told atomic.Int64
		g.Admit(time.Now(), time.Minute, round%2 == 0, true)
		last := func() {
			if told.Add(1); believing.Load() != 0 {
				t.Error("somebody is inside after the last has left")
			}
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 300 {
					if !g.Enter() {
						continue
					}
					believing.Add(1)
					if told.Load() > 0 {
						t.Error("entered after the last has left")
					}
					believing.Add(-1)
					if g.Leave() {
						last()
					}
				}
			})
		}
		all.Go(func() {
			if g.Leave() {
				last()
			}
			if _, empty := g.Close(); empty {
				last()
			}
		})
		all.Wait()
		if told.Load() != 1 {
			t.Fatalf("%d were told that they are the last", told.Load())
		}
	}
}
