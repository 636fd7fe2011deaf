package server

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// end is how a request has ended.
type end int

const (
	inFlight end = iota
	answered
	failed
	withdrawn
	dropped
)

// sentRequest is a request: when it was sent, how it has ended, and the error of all that were sent at that time, if they fail.
type sentRequest struct {
	at  time.Time
	end end
	err error
}

// history is a sequence of events, and the health that was told of them.
type history struct {
	t        *testing.T
	events   []string
	now      time.Time
	requests []sentRequest
	health   Health
}

const (
	testedMaxAge   = 3 * time.Second
	testedInterval = SilenceTimeout / 4 // between events
	testedOld      = testedMaxAge + time.Millisecond
)

// The events are these, and from ends on how one of the requests ends.
const (
	sendsRequest = iota
	sendsAnother // at the same time
	getsOld      // time passes until all answers are old
	ends
)

// play makes a health, and tells it of the events. It reports false if one is impossible, or if another sequence does the same.
func (h *history) play(events []int) bool {
	*h = history{t: h.t, now: time.Unix(0, 0), health: Health{MaxAge: time.Nanosecond}}
	h.health.SetMaxAge(testedMaxAge)
	for i, event := range events {
		h.now = h.now.Add(testedInterval)
		switch {
		case event == sendsRequest:
			h.send(h.now, fmt.Errorf("of request %d", len(h.requests)))
		case event == sendsAnother:
			if i == 0 || events[i-1] > sendsAnother {
				return false
			}
			h.send(h.requests[len(h.requests)-1].at, h.requests[len(h.requests)-1].err)
		case event == getsOld:
			if i == 0 || events[i-1] == getsOld {
				return false
			}
			h.events = append(h.events, "old")
			h.now = h.now.Add(testedOld)
		default:
			which, how := (event-ends)/4, end((event-ends)%4+1)
			if which >= len(h.requests) || h.requests[which].end != inFlight {
				return false
			}
			h.end(which, how)
		}
	}
	return true
}

func (h *history) send(at time.Time, err error) {
	h.events = append(h.events, fmt.Sprint("sent at ", at.Sub(time.Unix(0, 0))))
	h.requests = append(h.requests, sentRequest{at: at, err: err})
	h.health.Sent(at)
}

func (h *history) end(which int, how end) {
	r := &h.requests[which]
	r.end = how
	h.events = append(h.events, fmt.Sprintf("%d %s", which, [...]string{"in flight", "answered", "failed", "withdrawn", "dropped"}[how]))
	switch how {
	case answered:
		h.health.Answered(r.at)
	case failed:
		h.health.Failed(r.at, r.err)
	case withdrawn:
		h.health.Withdrawn(r.at)
	case dropped:
		h.health.Dropped(r.at)
	}
}

// check compares what the health says at some time with what a caller may conclude then: what counts is the last request that was answered,
// and those sent after it.
func (h *history) check(now time.Time) {
	var last time.Time
	for _, r := range h.requests {
		if r.end == answered {
			last = r.at // the requests are in the order in which they were sent
		}
	}
	var outage, exhausted error
	var failing time.Time
	known, silent, pending := !last.IsZero() && now.Sub(last) <= testedMaxAge, false, false
	for _, r := range h.requests {
		pending = pending || r.end == inFlight
		switch {
		case !r.at.After(last):
		case r.end == failed:
			outage = r.err
			failing = cmp.Or(failing, r.at)
		case r.end == inFlight, r.end == withdrawn:
			silent = silent || now.Sub(r.at) >= SilenceTimeout
		}
	}
	if !failing.IsZero() && now.Sub(failing) >= testedMaxAge {
		exhausted = outage
	}
	stale := outage == nil && !pending && now.Sub(last) > testedMaxAge
	if outage == nil && (silent || !known) {
		outage = ErrNoAnswer
	}
	says := func(what string, got, want any) {
		if got != want {
			h.t.Fatalf("after %q and %v, %s: %v, want %v", h.events, now.Sub(h.now), what, got, want)
		}
	}
	says("outage", h.health.Outage(now), outage)
	says("stale", h.health.Stale(now, testedMaxAge), stale)
	policy := Retry{MaxElapsed: testedMaxAge}
	says("exhausted for who has been there before", h.health.Exhausted(policy, time.Unix(0, 0), now), exhausted)
	says("exhausted for who came later", h.health.Exhausted(policy, now.Add(1-testedMaxAge), now), error(nil))
}

// TestHealthAfterEachSequence tells a health of every sequence of seven events with three requests, and asks it at the times at which the
// promise changes.
func TestHealthAfterEachSequence(t *testing.T) {
	h := &history{t: t}
	sequences := 0
	var extend func(events []int)
	extend = func(events []int) {
		if !h.play(events) {
			return
		}
		sequences++
		times := []time.Time{h.now}
		for _, r := range h.requests {
			for _, d := range []time.Duration{SilenceTimeout, testedMaxAge} {
				times = append(times, r.at.Add(d-1), r.at.Add(d), r.at.Add(d+1))
			}
		}
		for _, now := range times {
			if !now.Before(h.now) {
				h.check(now)
			}
		}
		if len(events) == 7 {
			return
		}
		sent := len(h.requests)
		for e := range ends + 4*sent {
			if e > sendsAnother || sent < 3 {
				extend(append(slices.Clip(events), e))
			}
		}
	}
	extend(nil)
	t.Log(sequences, "sequences")
}
