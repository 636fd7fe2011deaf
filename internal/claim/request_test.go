package claim

import (
	"fmt"
	"testing"
	"time"
)

func TestRequest(t *testing.T) {
	inDoubt := Event{Kind: AskFailed, Outcome: InDoubt, Retryable: true}
	check(t, "the fast script decides nothing, and the general one is repeated", New(Try, false, false), []step{
		called,
		{1, Event{Kind: Replied, Code: Undecided, Fast: true}, Asking, "Ask AskGeneral"},
		{2, Event{Kind: AskFailed, Outcome: NotSent, Retryable: true}, Asking, "Pause"},
		{9, Event{Kind: Timer}, Asking, "Ask AskGeneral"},
		{9, granted.e, Held, "Deliver Timer=3304"},
		{10, Event{Kind: Released}, Releasing, "End Release StopTimer"},
	}, func(t *testing.T, c *Claim) {
		if c.NeedsGeneral() || c.InDoubt() {
			t.Error("the script of the request says something about the release")
		}
	})
	check(t, "a try is sent three times at most", New(Try, false, false), []step{
		called,
		{1, inDoubt, Asking, "Pause"},
		{2, Event{Kind: Timer}, Asking, "Ask AskGeneral"},
		{20_000, granted.e, Asking, "Ask AskGeneral"}, // too late
		{20_001, inDoubt, Releasing, "Deliver Release StopTimer"},
	}, hasReason(ByError), hasTombstone(true))
	for _, m := range []Mode{Try, Wait} {
		check(t, fmt.Sprint("a grant comes too late, and the retry policy repeats no more, in mode ", m), New(m, false, false), []step{
			called,
			{20_000, Event{Kind: Replied, Code: Granted, Sent: at(0), Exhausted: true}, Releasing, "Deliver Release StopTimer"},
		}, hasReason(ByLateness))
	}
	check(t, "cancelled before a pipeline took the call", New(Wait, false, false), []step{
		called,
		{1, Event{Kind: Cancelled, Withdrawn: true}, Over, "Deliver Finished StopTimer"},
	}, hasReason(ByCaller))
	check(t, "refused", New(Try, false, false),
		[]step{called, {1, Event{Kind: Replied, Code: Denied, Fast: true}, Over, "Deliver Finished StopTimer"}}, hasReason(ByDenial))
	check(t, "refused by a script that could sweep no more", New(Try, false, false),
		[]step{called, {1, Event{Kind: Replied, Code: Denied, More: true}, Asking, "Ask AskGeneral"}})
	check(t, "another upgrade waits", New(Wait, true, false),
		[]step{called, {1, Event{Kind: Replied, Code: Conflict}, Releasing, "Deliver Release StopTimer"}}, hasReason(ByConflict))
	check(t, "an earlier request with the token may still run", New(Part, false, true), []step{
		called,
		{1, Event{Kind: Replied, Code: Denied}, Over, "Deliver Finished StopTimer"},
	}, func(t *testing.T, c *Claim) {
		if !c.InDoubt() {
			t.Error("the owner does not learn that a copy may run")
		}
	})
}

func TestPart(t *testing.T) {
	inDoubt := Event{Kind: AskFailed, Outcome: InDoubt, Retryable: true}
	check(t, "it is sent twice, if the first call may have run", New(Part, false, false), []step{
		called,
		{1, inDoubt, Asking, "Ask AskGeneral"},
		{2, inDoubt, Over, "Deliver Finished StopTimer"},
	}, func(t *testing.T, c *Claim) {
		if !c.NeedsCleanup() {
			t.Error("the owner is not told to release what may be left")
		}
	})
	check(t, "and once, if it has not", New(Part, false, false), []step{
		called,
		{1, Event{Kind: AskFailed, Outcome: NotSent, Retryable: true}, Over, "Deliver Finished StopTimer"},
	})
	check(t, "its reply is late, though the retry policy repeats no more", New(Part, false, false), []step{
		called,
		{10_000, Event{Kind: Replied, Code: Granted, Sent: at(0), Exhausted: true}, Over, "Deliver Finished StopTimer"},
	})
	check(t, "a reply that is none of its script", New(Part, false, false), []step{
		called,
		{1, Event{Kind: Replied, Code: Queued, Sent: at(0), Place: 1}, Over, "Deliver Finished StopTimer"},
	}, func(t *testing.T, c *Claim) {
		if !c.InDoubt() {
			t.Error("the owner does not learn that a copy may run")
		}
	})
	checkBy(t, func(r *Rules) { r.MaxLifetime = 20 * time.Second }, "its lifetime is that of the whole",
		since(New(Part, false, false), -15_000), []step{
			called, granted,
			{3_127, Event{Kind: Timer}, Held, "RenewFor=1873 Timer=5384"},
			{3_130, Event{Kind: Renewed, Code: Granted, Sent: at(3_127), TTL: 1_873}, Held, "Confirmed Timer=3730"},
		})
}

func since(c Claim, ms int64) Claim {
	c.SetSince(at(ms))
	return c
}

func TestWakeup(t *testing.T) {
	check(t, "the grant counts from the last answer",
		waiting(step{e: Event{Kind: StillQueued, Sent: at(150), Fence: 3, Clock: 1_100}}),
		[]step{{200, woken.e, Unconfirmed, "WakeupHeard Deliver Timer=2106"}}, hasDeadline(150+6_000-62, 10_000))
	check(t, "an answer to an earlier call comes after that to a later one",
		waiting(step{e: Event{Kind: StillQueued, Sent: at(150), Fence: 5, Clock: 1_100}}), []step{
			{180, Event{Kind: StillQueued, Sent: at(100), Fence: 3, Clock: 1_050}, Waiting, ""},
			{200, woken.e, Waiting, "HeartbeatBy=200"}, // about an earlier grant
		})
	check(t, "it is larger than what the server can have drawn", waiting(),
		[]step{{200, Event{Kind: Woken, Fence: 1_001*1_000 + 150_000 + 1_000_001}, Waiting, "HeartbeatBy=200"}})
	check(t, "too little is left of the lease", waiting(),
		[]step{{50 + 6_000 - 62 - 749, woken.e, Waiting, "HeartbeatBy=5239"}})
}

func TestHeartbeat(t *testing.T) {
	check(t, "it finds the grant too late", waiting(),
		[]step{{6_000, Event{Kind: Admitted, Sent: at(100), Fence: 5, TTL: 5_900}, Waiting, "HeartbeatBy=6001"}})
	check(t, "the server does not know the waiter, which keeps its place", waiting(), []step{
		{6_050, Event{Kind: Rejoining}, Waiting, "Place=1 Joins"},
		{6_060, Event{Kind: Cancelled}, Releasing, "Deliver Release StopTimer"},
		{6_070, Event{Kind: CopyEnded, Outcome: Answered}, Releasing, ""},
	}, hasTombstone(true))
	check(t, "the request was broken, and the message lost; another one is about the grant before", waiting(), []step{
		{100, Event{Kind: Refused, Code: Tombstoned}, Barred, "AskBreaker"},
		{105, woken.e, Barred, ""},
		{110, Event{Kind: Broken}, Releasing, "Deliver Release StopTimer"},
	}, hasReason(ByBreak))
	check(t, "the waiter cannot be granted what it asks for any more", waiting(),
		[]step{{100, Event{Kind: Refused, Code: AboveLimit}, Releasing, "Deliver Release StopTimer"}}, hasReason(ByLimit))
}

// TestWakeupCountsAtMost checks the bound of fences in messages: by the clock in the answer that the waiter waits, or by the last
// fence if that is ahead of the clock, and by the time since.
func TestWakeupCountsAtMost(t *testing.T) {
	const ttl, clock = 60_000, 1_700_000_000_000 // ms
	const asked = Instant(time.Hour)
	for _, x := range []struct {
		floor, fence int64
		after        time.Duration
		counts       bool
	}{
		{7, 7, 0, false},
		{7, 8, 0, true},
		{7, clock * 1000, 0, true},
		{7, (clock+1001)*1000 + 1, 0, false},
		{7, (clock+1001)*1000 + 1, time.Second, true},
		{7, (clock + 30_000) * 1000, 30 * time.Second, true},
		{7, (clock + 32_000) * 1000, 30 * time.Second, false},
		{(clock + 1e6) * 1000, (clock+1e6)*1000 + 1, 0, true}, // the clock was set back
		{(clock + 1e6) * 1000, (clock + 1e6 + 1001) * 1000, 0, false},
	} {
		if got := wakeupCounts(x.fence, x.floor, clock, asked, asked.Add(x.after), ttl); got != x.counts {
			t.Errorf("fence %d after %d, %v after the answer: %t", x.fence, x.floor, x.after, got)
		}
	}
}
