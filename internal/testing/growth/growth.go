// Package growth lets tests check how the cost of something grows with the amount of what there is.
package growth

import (
	"testing"
	"time"
)

const attempts = 5

// AtMost checks that large costs at most so many times as much as small. Both return what they have cost, in any unit. Where that is a
// time, another load of the machine can disturb one attempt, so it is repeated a few times unless it succeeds.
func AtMost[T time.Duration | int64](t testing.TB, times float64, small, large func() T) {
	t.Helper()
	for i := range attempts {
		few, many := small(), large()
		ratio := float64(many) / float64(max(few, 1))
		if ratio <= times {
			return
		}
		if i == attempts-1 {
			t.Errorf("cost %v and %v, %.0f times as much; want at most %.0f times", few, many, ratio, times)
		}
	}
}

// Took returns how long f takes.
func Took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}
