// Package timers calls what is due: one heap and one timer for all the leases and heartbeats of a keeper.
package timers

import (
	"container/heap"
	"sync"
	"time"
)

// Scheduler calls alarms when they are due. It keeps no goroutine: the runtime's timer starts one when something is due,
// and none runs while nothing is. The zero Clock is ready; it is safe for concurrent use.
type Scheduler struct {
	mu      sync.Mutex // guards what follows
	timers  timerHeap
	timer   *time.Timer
	armed   time.Time // what the timer is set to; zero if it is not running
	firing  bool      // a goroutine is in ring
	stopped bool
	fired   sync.WaitGroup
}

// Timer is something to be called at a time. Fill in Ring before it is set first.
type Timer struct {
	Fire func(now time.Time) // runs on the clock's goroutine: it must not block, and may set alarms

	at    time.Time
	index int // in the heap, from 1; 0 if it is not set
}

// Set makes the alarm ring at a time, instead of when it was to ring before.
func (c *Scheduler) Set(a *Timer, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setLocked(a, at)
}

func (c *Scheduler) setLocked(a *Timer, at time.Time) {
	if c.stopped {
		return
	}
	a.at = at
	if a.index > 0 {
		heap.Fix(&c.timers, a.index-1)
	} else {
		heap.Push(&c.timers, a)
	}
	c.armLocked()
}

// SetIfSooner is Set for an alarm that may have been set to an earlier time: then it stays.
func (c *Scheduler) SetIfSooner(a *Timer, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.index == 0 || a.at.After(at) {
		c.setLocked(a, at)
	}
}

// Cancel makes the alarm not ring. One that is ringing right now is not waited for.
func (c *Scheduler) Cancel(a *Timer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.index > 0 {
		heap.Remove(&c.timers, a.index-1)
	}
}

// Stop makes all alarms silent, for good, and waits for those that are ringing.
func (c *Scheduler) Stop() {
	c.mu.Lock()
	c.stopped = true
	for _, a := range c.timers {
		a.index = 0
	}
	c.timers = nil
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	c.fired.Wait()
}

// armLocked sets the timer to the first alarm. A timer that is set too early is left: it will ring for nothing once,
// which is cheaper than to set it anew for every lease that comes and goes.
func (c *Scheduler) armLocked() {
	if len(c.timers) == 0 || c.firing {
		return
	}
	at := c.timers[0].at
	if !c.armed.IsZero() && !at.Before(c.armed) {
		return
	}
	c.armed = at
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(at), c.fire)
	} else {
		c.timer.Reset(time.Until(at))
	}
}

func (c *Scheduler) fire() {
	c.mu.Lock()
	c.armed = time.Time{}
	if c.firing || c.stopped {
		c.mu.Unlock()
		return
	}
	c.firing = true
	c.fired.Add(1)
	defer c.fired.Done()
	for {
		now := time.Now()
		var due []*Timer
		for len(c.timers) > 0 && !c.timers[0].at.After(now) {
			due = append(due, heap.Pop(&c.timers).(*Timer))
		}
		if len(due) == 0 {
			break
		}
		c.mu.Unlock()
		for _, a := range due {
			a.Fire(now)
		}
		c.mu.Lock()
	}
	c.firing = false
	c.armLocked()
	c.mu.Unlock()
}

// timerHeap is a heap by time.
type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

// Push is part of heap.Interface.
func (h *timerHeap) Push(x any) {
	a := x.(*Timer)
	*h = append(*h, a)
	a.index = len(*h)
}

// Pop is part of heap.Interface.
func (h *timerHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.index = 0
	return a
}
