package transport

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// end is how a batch has ended.
type end int

const (
	inFlight end = iota
	answered
	failed
	dropped // which says nothing about the node
)

// sentBatch is a batch: when it was sent, how it has ended, and the error of all that were sent at that time, if they fail.
type sentBatch struct {
	at  time.Time
	end end
	err error
}

// history is a sequence of events, and the record that was told of them.
type history struct {
	t       *testing.T
	events  []string
	now     time.Time
	batches []sentBatch
	record  record
}

// The events are these, and from ends on how one of the batches ends.
const (
	sendsBatch   = iota
	sendsAnother // at the same time
	ends
)

// play makes a record, and tells it of the events. It reports false if one is impossible, or if another sequence does the same.
func (h *history) play(events []int) bool {
	*h = history{t: h.t, now: time.Unix(0, 0)}
	for i, event := range events {
		h.now = h.now.Add(time.Millisecond)
		switch {
		case event == sendsBatch:
			h.send(h.now, fmt.Errorf("of batch %d", len(h.batches)))
		case event == sendsAnother:
			if i == 0 || events[i-1] > sendsAnother {
				return false
			}
			h.send(h.batches[len(h.batches)-1].at, h.batches[len(h.batches)-1].err)
		default:
			which, how := (event-ends)/3, end((event-ends)%3+1)
			if which >= len(h.batches) || h.batches[which].end != inFlight {
				return false
			}
			h.end(which, how)
		}
	}
	return true
}

func (h *history) send(at time.Time, err error) {
	h.events = append(h.events, fmt.Sprint("sent at ", at.Sub(time.Unix(0, 0))))
	h.batches = append(h.batches, sentBatch{at: at, err: err})
	h.record.sent(at)
}

func (h *history) end(which int, how end) {
	b := &h.batches[which]
	b.end = how
	h.events = append(h.events, fmt.Sprintf("%d %s", which, [...]string{"in flight", "answered", "failed", "dropped"}[how]))
	switch how {
	case answered:
		h.record.answered(b.at)
	case failed:
		h.record.fails(b.at, b.err)
	}
	h.record.ended(b.at)
}

// check compares what the record says with what follows from all batches: what counts is the last one that was answered, and those not sent before it.
func (h *history) check() {
	var want Answers
	for _, b := range h.batches {
		if b.end == answered {
			want.Last = b.at // the batches are in the order in which they were sent
		}
	}
	for _, b := range h.batches {
		if b.at.Before(want.Last) || b.end != failed && b.end != inFlight {
			continue
		}
		want.Since = cmp.Or(want.Since, b.at)
		if b.end == failed {
			want.Err = b.err
		}
	}
	if got := h.record.answers(); got != want {
		h.t.Fatalf("after %q: %v, want %v", h.events, got, want)
	}
}

// TestAnswersAfterEachSequence tells a record of every sequence of seven events with three batches.
func TestAnswersAfterEachSequence(t *testing.T) {
	h := &history{t: t}
	sequences := 0
	var extend func(events []int)
	extend = func(events []int) {
		if !h.play(events) {
			return
		}
		sequences++
		sent := len(h.batches)
		h.check()
		if len(events) == 7 {
			return
		}
		for e := range ends + 3*sent {
			if e > sendsAnother || sent < 3 {
				extend(append(slices.Clip(events), e))
			}
		}
	}
	extend(nil)
	t.Log(sequences, "sequences")
}
