// Package window counts what happened in a window of time, wherever the window begins.
package window

import "time"

// Most returns the largest number of times that lie less than d apart. The times are in order.
func Most(times []time.Time, d time.Duration) (most int) {
	first := 0
	for i, t := range times {
		for t.Sub(times[first]) >= d {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
