package window

import (
	"testing"
	"time"
)

func TestMost(t *testing.T) {
	var times []time.Time
	for _, ms := range []int{0, 900, 1000, 1400, 1899, 1900, 5000} {
		times = append(times, time.Unix(0, 0).Add(time.Duration(ms)*time.Millisecond))
	}
	if n := Most(times, time.Second); n != 4 { // 900 to 1899, or 1000 to 1900: a window does not hold its end
		t.Errorf("%d", n)
	}
}
