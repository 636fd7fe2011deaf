// Package timers calls functions at given times, with one heap and one runtime timer for all leases and heartbeats of a keeper. Packages keeper,
// server, share and ahead set Timers; when one is due, a goroutine calls the Handlers that are due, one after the other.
//
// Mutexes: that of a Scheduler, under which nothing is called.
package timers

import (
	"sync"
	"time"
)

// Scheduler calls the Handlers of timers that are due. It keeps no goroutine: the runtime timer starts one when a timer is
// due. The zero Scheduler is ready to use. It is safe for concurrent use.
type Scheduler struct {
	mu      sync.Mutex // guards the fields below
	start   time.Time  // when a timer was first set
	timers  timerHeap
	timer   *time.Timer
	armed   time.Time // when timer fires; zero if it is not running
	firing  bool      // a goroutine is in fire
	stopped bool
	fired   sync.WaitGroup
}

// Timer has a time at which its Handler is called. Set the Handler before the timer is first set.
type Timer struct {
	Handler Handler

	index int // in the heap, from 1; 0 if the timer is not set
}

// Handler is called when a timer is due, from the scheduler's goroutine. Fire must not block; it may set timers.
type Handler interface{ Fire(now time.Time) }

// Func is a Handler that calls the function.
type Func func(now time.Time)

// Fire implements Handler.
func (f Func) Fire(now time.Time) { f(now) }

// Set sets the time at which the timer fires. It replaces an earlier setting.
func (s *Scheduler) Set(t *Timer, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setLocked(t, at)
}

func (s *Scheduler) setLocked(t *Timer, at time.Time) {
	if s.stopped {
		return
	}
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.timers.set(t, at.Sub(s.start))
	s.armLocked()
}

// SetIfSooner sets the timer unless it is set to that time or an earlier one already.
func (s *Scheduler) SetIfSooner(t *Timer, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.index == 0 || s.timers[t.index-1].at > at.Sub(s.start) {
		s.setLocked(t, at)
	}
}

// Cancel unsets the timer. It does not wait for a call of Fire that has started.
func (s *Scheduler) Cancel(t *Timer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.index > 0 {
		s.timers.remove(t.index - 1)
	}
}

// Stop cancels all timers for good and waits for calls of Fire that have started. Setting a timer has no effect from
// then on.
func (s *Scheduler) Stop() {
	s.mu.Lock()
	s.stopped = true
	for _, e := range s.timers {
		e.timer.index = 0
	}
	s.timers = nil
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.fired.Wait()
}

// armLocked makes the runtime timer fire when the first Timer is due, or earlier if it is set to an earlier time: firing once
// for nothing is cheaper than setting it again for every lease that ends.
func (s *Scheduler) armLocked() {
	if len(s.timers) == 0 || s.firing {
		return
	}
	at := s.start.Add(s.timers[0].at)
	if !s.armed.IsZero() && !at.Before(s.armed) {
		return
	}
	s.armed = at
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(at), s.fire)
	} else {
		s.timer.Reset(time.Until(at))
	}
}

// maxDue is how many timers are taken from the heap at once, so that Set need not wait for long while very many are due.
const maxDue = 64

// fire calls the Handlers that are due, including those that become due meanwhile.
func (s *Scheduler) fire() {
	s.mu.Lock()
	s.armed = time.Time{}
	if s.firing || s.stopped {
		s.mu.Unlock()
		return
	}
	s.firing = true
	s.fired.Add(1)
	defer s.fired.Done()
	var due [maxDue]*Timer
	for {
		now, n := time.Now(), 0
		for n < maxDue && len(s.timers) > 0 && s.timers[0].at <= now.Sub(s.start) {
			due[n] = s.timers.remove(0)
			n++
		}
		if n == 0 {
			break
		}
		s.mu.Unlock()
		for _, t := range due[:n] {
			t.Handler.Fire(now)
		}
		s.mu.Lock()
	}
	s.firing = false
	s.armLocked()
	s.mu.Unlock()
}

// timerHeap is a heap of timers by their times: each entry is due no later than its children. It has the times itself, and up to four children
// for an entry, because of a hundred thousand timers few are in the processor's cache.
type timerHeap []entry

// entry is a timer that is set.
type entry struct {
	at    time.Duration // after the Scheduler's start
	timer *Timer
}

const children = 4

// set sets the time of a timer, and adds it unless it is in the heap.
func (h *timerHeap) set(t *Timer, at time.Duration) {
	i := t.index - 1
	if i < 0 {
		i = len(*h)
		*h = append(*h, entry{})
	}
	h.put(i, entry{at, t})
}

// remove removes the timer at position i, and returns it.
func (h *timerHeap) remove(i int) *Timer {
	t, last := (*h)[i].timer, len(*h)-1
	moved := (*h)[last]
	(*h)[last] = entry{}
	*h = (*h)[:last]
	if i < last {
		h.put(i, moved)
	}
	t.index = 0
	return t
}

// put puts an entry where it belongs, and shifts others into position i, which is free.
func (h timerHeap) put(i int, e entry) {
	for i > 0 {
		parent := (i - 1) / children
		if h[parent].at <= e.at {
			break
		}
		h.place(i, h[parent])
		i = parent
	}
	for {
		first := children*i + 1
		if first >= len(h) {
			break
		}
		least := first
		for c := first + 1; c < min(first+children, len(h)); c++ {
			if h[c].at < h[least].at {
				least = c
			}
		}
		if h[least].at >= e.at {
			break
		}
		h.place(i, h[least])
		i = least
	}
	h.place(i, e)
}

// place puts an entry at position i.
func (h timerHeap) place(i int, e entry) {
	h[i] = e
	e.timer.index = i + 1
}
