package demo

import (
	"testing"
	"time"
)

func TestDemoMostWithinWindow(t *testing.T) {
	var all []arrival
	for i, ms := range []int64{1899, 0, 900, 1900, 1000, 1400} { // in any order
		all = append(all, arrival{at: time.UnixMilli(ms), permits: 1 + i%2})
	}
	// Those of 1000, 1400, 1899 and 1900: the one of 900 is a whole second before the last.
	if n := maxWithin(all, time.Second, func(a arrival) time.Time { return a.at }); n != 6 {
		t.Errorf("%d permits", n)
	}
}
