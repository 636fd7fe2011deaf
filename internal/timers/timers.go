// Package timers calls functions at given times, with one heap and one runtime timer for all leases and heartbeats of a keeper. Packages keeper,
// server, share and ahead set Timers; when one is due, a goroutine calls the Handlers that are due, one after the other.
//
// Mutexes: that of a Scheduler, under which nothing is called.
package timers

import (
	"container/heap"
	"sync"
	"time"
)

// Scheduler calls the Handlers of timers that are due. It keeps no goroutine: the runtime timer starts one when a timer is
// due. The zero Scheduler is ready to use. It is safe for concurrent use.
type Scheduler struct {
	mu      sync.Mutex // guards the fields below
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

	at    time.Time
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
	t.at = at
	if t.index > 0 {
		heap.Fix(&s.timers, t.index-1)
	} else {
		heap.Push(&s.timers, t)
	}
	s.armLocked()
}

// SetIfSooner sets the timer unless it is set to that time or an earlier one already.
func (s *Scheduler) SetIfSooner(t *Timer, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.index == 0 || t.at.After(at) {
		s.setLocked(t, at)
	}
}

// Cancel unsets the timer. It does not wait for a call of Fire that has started.
func (s *Scheduler) Cancel(t *Timer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.index > 0 {
		heap.Remove(&s.timers, t.index-1)
	}
}

// Stop cancels all timers for good and waits for calls of Fire that have started. Setting a timer has no effect from
// then on.
func (s *Scheduler) Stop() {
	s.mu.Lock()
	s.stopped = true
	for _, t := range s.timers {
		t.index = 0
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
	at := s.timers[0].at
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
	for {
		now := time.Now()
		var due []*Timer
		for len(s.timers) > 0 && !s.timers[0].at.After(now) {
			due = append(due, heap.Pop(&s.timers).(*Timer))
		}
		if len(due) == 0 {
			break
		}
		s.mu.Unlock()
		for _, t := range due {
			t.Handler.Fire(now)
		}
		s.mu.Lock()
	}
	s.firing = false
	s.armLocked()
	s.mu.Unlock()
}

// timerHeap is a heap ordered by time. It implements heap.Interface.
type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (h *timerHeap) Push(x any) {
	t := x.(*Timer)
	*h = append(*h, t)
	t.index = len(*h)
}

// Pop implements heap.Interface.
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = 0
	return t
}
