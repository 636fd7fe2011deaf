// Package timeline models what several processes did over time, with one lane for each, and draws it as text.
package timeline

import (
	"slices"
	"time"
)

// State is what a process, or whatever else a lane stands for, does at some time.
type State int

// States of a lane.
const (
	Idle    State = iota
	Waiting       // for a lock
	Holding       // a lock that excludes others
	Sharing       // a lock together with others
	Frozen
	Killed
	Stored // a value that is up to date
	Stale  // a value that should not have been stored
	Refused
)

// Event is a change of the state of a lane.
type Event struct {
	At    time.Duration // since the start of the act; events of a lane are in this order
	Lane  int
	State State
	Label string // drawn where the state begins, for example a fence
}

// Word is an entry of the legend: what a state is called in an act.
type Word struct {
	State State
	Text  string
}

// Outcome is what an act has shown about its guarantees.
type Outcome int

// Outcomes of an act.
const (
	Pending    Outcome = iota // the act is not over
	Kept                      // the guarantees were kept
	Violated                  // a guarantee was violated
	Incomplete                // the machine was too slow to tell
)

// Act is one part of a demonstration: lanes, and what happened in them so far.
type Act struct {
	Caption string
	Lanes   []string // names
	Legend  []Word
	Span    time.Duration // of the axis; it grows if the act takes longer
	Events  []Event
	Counts  []string      // a counter for each lane, drawn at its end
	End     time.Duration // when the act ended; 0 while it goes on

	Outcome Outcome
	Verdict string
}

// Add appends an event.
func (a *Act) Add(at time.Duration, lane int, s State, label string) {
	i := len(a.Events)
	for i > 0 && a.Events[i-1].At > at { // an event of another process can be learned of earlier than one that was before it
		i--
	}
	a.Events = slices.Insert(a.Events, i, Event{at, lane, s, label})
}

// Finish ends the act at a time, with a verdict.
func (a *Act) Finish(at time.Duration, o Outcome, verdict string) {
	a.End, a.Outcome, a.Verdict = at, o, verdict
}

// Segment is a period in which a lane is in one state.
type Segment struct {
	From, To time.Duration
	State    State
	Label    string
}

// Segments returns what a lane did until now, in order. A process that was killed stays so.
func (a *Act) Segments(lane int, now time.Duration) (all []Segment) {
	now = a.clock(now)
	for _, e := range a.Events {
		if e.Lane != lane || e.At > now {
			continue
		}
		if n := len(all); n > 0 {
			if all[n-1].State == Killed {
				return all
			}
			all[n-1].To = e.At
		}
		all = append(all, Segment{e.At, now, e.State, e.Label})
	}
	return all
}

// clock limits a time to the end of the act.
func (a *Act) clock(now time.Duration) time.Duration {
	if a.End > 0 {
		return min(now, a.End)
	}
	return now
}

// Axis returns the length of the time axis, a multiple of 100 ms that includes now, and the distance of its marks.
func (a *Act) Axis(now time.Duration) (length, step time.Duration) {
	const unit = 100 * time.Millisecond
	length = max(a.Span, unit)
	if a.End > 0 {
		length = max(a.End, unit)
	}
	if now = a.clock(now); now > length {
		length = now + now/4 // so that it need not grow at each frame
	}
	length = (length + unit - 1) / unit * unit
	for _, step = range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second} {
		if length/step <= 6 {
			break
		}
	}
	return length, step
}
