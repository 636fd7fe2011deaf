package queue

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

const (
	start    claim.Instant = 1e12
	ms                     = time.Millisecond
	interval               = 2 * time.Second
)

var rules = Rules{Interval: interval, MaxElapsed: 10 * time.Second}

// at returns the time that long after the start.
func at(d time.Duration) claim.Instant { return start.Add(d) }

// event is something that happens to a queue at a time after the start, and what comes of it.
type event struct {
	at   time.Duration
	does func(q *Queue, now claim.Instant, out *Effects)
	want Effects
}

func join(retryIn int64, more bool) func(*Queue, claim.Instant, *Effects) {
	return func(q *Queue, now claim.Instant, out *Effects) { q.Join(&rules, now, retryIn, more, out) }
}

func leave(q *Queue, _ claim.Instant, out *Effects)    { q.Leave(out) }
func fired(q *Queue, now claim.Instant, out *Effects)  { q.Fired(&rules, now, out) }
func allNow(q *Queue, now claim.Instant, out *Effects) { q.AllBy(now, out) }
func notified(q *Queue, n claim.Instant, out *Effects) { q.Notified(n, n.Add(100*ms), out) }
func answered(q *Queue, n claim.Instant, out *Effects) {
	q.Answered(&rules, n, 1, 0, false, 0, false, out)
}
func lasting(q *Queue, now claim.Instant, out *Effects) { q.Failed(&rules, now, false, ms, out) }
func transient(pause time.Duration) func(*Queue, claim.Instant, *Effects) {
	return func(q *Queue, now claim.Instant, out *Effects) { q.Failed(&rules, now, true, pause, out) }
}

func answeredWith(of, unknown int, rejoins bool, retryIn int64, more bool) func(*Queue, claim.Instant, *Effects) {
	return func(q *Queue, now claim.Instant, out *Effects) {
		q.Answered(&rules, now, of, unknown, rejoins, retryIn, more, out)
	}
}

func TestQueue(t *testing.T) {
	var none Effects
	empties, givesUp := Effects{Empty: true}, Effects{GiveUp: true}
	set := func(d time.Duration) Effects { return Effects{Timer: at(d)} }
	beat := func(b Beat, d time.Duration) Effects { return Effects{Beat: b, Timer: at(d)} }
	for name, events := range map[string][]event{
		"heartbeats follow each other": {
			{0, join(0, false), set(interval)}, {interval, fired, beat(All, 2*interval)},
			{interval + ms, answered, none}, {2 * interval, fired, beat(All, 3*interval)},
			{2*interval + ms, leave, empties}, {2*interval + ms, answered, none}, {3 * interval, fired, none},
		},
		"the last one that leaves empties the queue": {
			{0, join(0, false), set(interval)}, {ms, join(0, false), none}, {2 * ms, leave, none},
			{3 * ms, leave, empties}, {interval, join(1, false), set(interval + 2*ms)},
			{interval + 2*ms, fired, beat(First, 2*interval)}, // as of a queue that is new
		},
		"the first waiter asks when the lock may be free": {
			{0, join(50, false), set(51 * ms)}, {51 * ms, fired, beat(First, interval)},
			{52 * ms, answeredWith(1, 0, false, 30, false), set(83 * ms)},
			{83 * ms, fired, beat(First, interval)}, {84 * ms, answeredWith(1, 0, false, 2000, false), none}, // no sooner than the interval
			{interval, fired, beat(All, 2*interval)},
		},
		"the lock may be free later than the interval": {
			{0, join(2000, false), set(interval)},
		},
		"there is more to be admitted": {
			{0, join(0, true), set(0)}, {0, fired, beat(First, interval)},
			{ms, answeredWith(1, 0, false, 40, true), set(ms)},
		},
		"all ask at once": {
			{0, join(0, false), set(interval)}, {7 * ms, allNow, set(7 * ms)},
			{7 * ms, fired, beat(All, interval+7*ms)},
		},
		"one more after the one under way": {
			{0, join(0, false), set(interval)}, {interval, fired, beat(All, 2*interval)},
			{interval + ms, notified, set(interval + 101*ms)},
			{interval + 101*ms, fired, set(2*interval + 101*ms)},
			{interval + 200*ms, answered, set(interval + 200*ms)},
			{interval + 200*ms, fired, beat(First, 2*interval)}, {interval + 300*ms, answered, none}, // no more
		},
		"one that is not answered for two intervals does not hold the next one back": {
			{0, join(0, false), set(interval)}, {interval, fired, beat(All, 2*interval)},
			{2 * interval, fired, set(3 * interval)}, {3 * interval, fired, beat(All, 4*interval)},
		},
		"the unknown join again, and the others ask": {
			{0, join(0, false), set(interval)}, {0, join(0, false), none}, {ms, notified, set(101 * ms)},
			{101 * ms, fired, beat(First, interval)},
			{102 * ms, answeredWith(1, 1, true, 0, false), set(102 * ms)},
			{102 * ms, fired, set(interval + 102*ms)}, // the rejoining one is under way
			{103 * ms, answeredWith(1, 0, false, 0, false), set(103 * ms)},
			{103 * ms, fired, beat(All, interval+103*ms)},
		},
		"all were unknown": {
			{0, join(0, false), set(interval)}, {interval, fired, beat(All, 2*interval)},
			{interval + ms, answeredWith(1, 1, true, 0, false), none},
		},
		"after rejoining, the first waiter asks soon, and less and less often": {
			{0, join(0, false), set(interval)}, {interval, fired, beat(All, 2*interval)},
			{interval, answeredWith(1, 1, true, 0, false), none}, {interval, answered, set(interval + interval/256)},
			{interval + interval/256, fired, beat(First, 2*interval)},
			{interval + interval/256, answered, set(interval + interval*5/256)},
		},
		"the unknown has left": {
			{0, join(0, false), set(interval)}, {0, join(0, false), none},
			{interval, fired, beat(All, 2*interval)}, {interval + ms, leave, none},
			{interval + ms, answeredWith(2, 1, false, 0, false), none},
			{interval + 2*ms, allNow, set(interval + 2*ms)}, {interval + 2*ms, fired, beat(All, 2*interval+2*ms)}, // none is under way
		},
		"failures are repeated after a pause, by all": {
			{0, join(20, false), set(21 * ms)}, {21 * ms, fired, beat(First, interval)},
			{22 * ms, transient(8 * ms), set(30 * ms)}, {30 * ms, fired, beat(All, interval+30*ms)},
			{31 * ms, transient(time.Hour), none}, // they are due before
			{interval + 30*ms, fired, beat(All, 2*interval+30*ms)}, {10*time.Second + 21*ms, transient(ms), none},
			{10*time.Second + 22*ms, transient(ms), givesUp},
		},
		"a reply ends a series of failures": {
			{0, join(20, false), set(21 * ms)}, {21 * ms, fired, beat(First, interval)},
			{22 * ms, transient(8 * ms), set(30 * ms)}, {30 * ms, fired, beat(All, interval+30*ms)},
			{31 * ms, answered, none}, {11 * time.Second, fired, beat(All, 13*time.Second)},
			{11 * time.Second, transient(ms), set(11*time.Second + ms)},
		},
		"waiters that must rejoin do not end a series of failures": {
			{0, join(20, false), set(21 * ms)}, {21 * ms, fired, beat(First, interval)},
			{22 * ms, transient(8 * ms), set(30 * ms)}, {30 * ms, fired, beat(All, interval+30*ms)},
			{31 * ms, answeredWith(1, 1, true, 0, false), none}, {11 * time.Second, transient(ms), givesUp},
		},
		"a lasting error is not repeated": {
			{0, join(20, false), set(21 * ms)}, {21 * ms, fired, beat(First, interval)},
			{22 * ms, lasting, givesUp},
		},
		"a failure after the last has left": {
			{0, join(20, false), set(21 * ms)}, {21 * ms, fired, beat(First, interval)},
			{22 * ms, leave, empties}, {23 * ms, transient(8 * ms), none},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var q Queue
			timer := claim.Instant(0)
			for i, e := range events {
				var out Effects
				e.does(&q, at(e.at), &out)
				check.That(t, out == e.want, "%d, after %v: %+v, want %+v", i, e.at, out, e.want)
				if e.want.Timer > 0 || e.want.Empty { // otherwise it stays as it is
					timer = e.want.Timer
				}
				check.That(t, q.Timer() == timer,
					"%d, after %v: the timer fires at %v, want %v", i, e.at, q.Timer().Sub(start), timer.Sub(start))
			}
		})
	}
}

// TestBatches checks that a new heartbeat waits for all commands of the last one.
func TestBatches(t *testing.T) {
	var q Queue
	for range 2*Batch + 1 {
		q.Join(&rules, start, 0, false, &Effects{})
	}
	q.Fired(&rules, at(interval), &Effects{})
	for i := range 3 {
		q.AllBy(at(interval), &Effects{})
		var out Effects
		if q.Fired(&rules, at(interval), &out); out.Beat != NoBeat {
			t.Errorf("heartbeats are sent after %d replies", i)
		}
		q.Answered(&rules, at(interval), Batch, 0, false, 0, false, &Effects{})
	}
	var out Effects
	if q.Fired(&rules, at(interval), &out); out.Beat != All {
		t.Error("no heartbeats are sent after the last reply")
	}
	out = Effects{}
	if q.Answered(&rules, at(interval), Batch, 1, true, 0, false, &out); out.Timer != 0 {
		t.Error("all ask again although the command was as large as one can be")
	}
}

func TestNeverGivesUp(t *testing.T) {
	r := Rules{Interval: interval, MaxElapsed: -1}
	var q Queue
	q.Join(&r, start, 0, false, &Effects{})
	for _, after := range []time.Duration{0, 1000 * time.Hour} {
		var out Effects
		if q.Failed(&r, at(after), true, ms, &out); out.GiveUp || !q.Failing() {
			t.Errorf("after %v: %+v", after, out)
		}
	}
}

func TestMissed(t *testing.T) {
	for _, c := range []struct {
		since, asked, notified, now claim.Instant
		want                        bool
	}{
		{1, 2, 0, 3, true},
		{0, 2, 0, 3, false}, // not subscribed
		{2, 2, 0, 3, false}, // perhaps not subscribed when the server passed over the waiter
		{3, 2, 0, 3, false},
		{1, 3, 2, 4, true},
		{1, 3, 3, 4, true},
		{1, 3, 4, 4, false}, // messages come
		{1, 2, 0, 11, true},
		{1, 2, 0, 12, false}, // its heartbeat has lapsed
	} {
		var q Queue
		if c.notified > 0 {
			q.Notified(c.notified, c.notified, &Effects{})
		}
		got := q.Missed(&Rules{Timeout: 10}, c.now, c.since, c.asked)
		check.That(t, got == c.want,
			"subscribed at %d, asked at %d, notified at %d, now %d: %v", c.since, c.asked, c.notified, c.now, got)
	}
}
