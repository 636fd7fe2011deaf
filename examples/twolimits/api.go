//go:build unix

package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/examples/internal/window"
)

// api is an API that records when calls arrive, and when their permits were granted.
type api struct {
	mu             sync.Mutex
	arrived        []time.Time // by the clock of this process
	minute, second []time.Time // the permits, by the clock of Redis
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	var minute, second int64 // the number of a permit is the time at which it was granted, in microseconds
	if _, err := fmt.Sscan(r.Header.Get("Permits"), &minute, &second); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.arrived = append(a.arrived, now)
	a.minute = append(a.minute, time.UnixMicro(minute))
	a.second = append(a.second, time.UnixMicro(second))
}

// errMargin is not the limiters' fault.
var errMargin = errors.New("calls were under way longer than others by more than the margin")

// check returns the largest number of calls that arrived in a window of a limit, and by how much a call was under way longer than
// another. The error says that too many permits were granted, or matches errMargin if too many calls arrived nevertheless.
func (a *api) check(l limit, granted []time.Time) (most int, spread time.Duration, err error) {
	var ways []time.Duration // the clocks may differ, which adds the same to each
	for i := range granted {
		ways = append(ways, a.arrived[i].Sub(granted[i]))
	}
	spread = slices.Max(ways) - slices.Min(ways)
	most = window.Most(a.arrived, l.window)
	permits := window.Most(slices.SortedFunc(slices.Values(granted), time.Time.Compare), l.window+l.margin)
	switch {
	case permits > l.calls:
		err = fmt.Errorf("%s: %d permits in %v", l.name, permits, l.window+l.margin)
	case most > l.calls:
		err = fmt.Errorf("%s: %d calls in %v: %w, by %v", l.name, most, l.window, errMargin, spread-l.margin)
	}
	return most, spread, err
}
