package claim

import (
	"testing"
	"time"
)

func TestTimerOfWhatHasEndedIsIgnored(t *testing.T) {
	failed := Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: 50 * time.Millisecond}
	check(t, "of a lease, while its release is under way", held(), []step{
		{3_126, Event{Kind: Released}, Releasing, "End Release StopTimer"},
		{3_126, Event{Kind: Timer}, Releasing, ""},
		{3_200, failed, Releasing, "Timer=3250"},
		{3_250, Event{Kind: Timer}, Releasing, "Release"},
		{3_251, Event{Kind: Timer}, Releasing, ""},
	})
	check(t, "of a request that was cancelled during a pause", New(Wait, false, false), []step{
		called,
		{1, Event{Kind: Timer}, Asking, ""},
		{2, Event{Kind: AskFailed, Outcome: InDoubt, Retryable: true}, Asking, "Pause"},
		{10, Event{Kind: Cancelled}, Releasing, "Deliver Release StopTimer"},
		{11, Event{Kind: Timer}, Releasing, ""},
	})
}

func TestConversion(t *testing.T) {
	check(t, "refused, so the lease is renewed at once", held(), []step{
		{100, Event{Kind: ConversionBegan}, Converting, ""},
		{200, Event{Kind: ConversionEnded}, Held, "Timer=200"},
		{200, Event{Kind: ConversionLeft}, Held, ""},
		{200, Event{Kind: ConversionEnded}, Held, ""},
	})
	check(t, "given up, and the lease is released before the outcome is known",
		after(held(), converting, step{e: Event{Kind: ConversionLeft}}), []step{
			{200, Event{Kind: Released}, Releasing, "End Release StopTimer"},
			{300, Event{Kind: ReleaseReplied, Code: Denied, Fast: true, QueueEmpty: true}, Over, "Finished StopTimer"},
		}, hasAnswer(Granted)) // it was another lease
	check(t, "given up without effect, and asked for again",
		after(held(), converting, step{e: Event{Kind: ConversionLeft}}), []step{
			{150, Event{Kind: ConversionBegan}, Converting, ""},
			{200, Event{Kind: Released}, Releasing, "End Release StopTimer"},
			{300, Event{Kind: ReleaseReplied, Code: Denied, Fast: true, QueueEmpty: true}, Releasing, "AskBreaker"},
			{310, Event{Kind: NotBroken}, Over, "Finished StopTimer"},
		}, hasAnswer(Denied))
	check(t, "it took place, and a copy of the request for the old lease may still run",
		after(New(Wait, false, false), called, lateFailure, step{e: Event{Kind: Timer}}, granted, converting), []step{
			{200, Event{Kind: Replaced}, Releasing, "End Release StopTimer"},
			{210, Event{Kind: ReleaseReplied, Code: Denied}, Over, "Finished StopTimer"},
		}, hasReason(ByReplacement), hasTombstone(true))
	check(t, "a renewal is refused meanwhile", after(held(), due, converting),
		[]step{{3_200, Event{Kind: Renewed, Code: Denied, Sent: at(3_127), TTL: 10_000}, Converting, "Timer=5384"}})
	check(t, "it took place, and nobody has the lease to be replaced any more",
		after(New(Wait, true, false), called, lateFailure, cancelled), []step{
			{100, Event{Kind: ReleaseReplied, Code: Present, OriginOver: true}, Releasing, "Release"},
			{110, Event{Kind: ReleaseReplied, Code: Granted}, Over, "Finished StopTimer"},
		}, func(t *testing.T, c *Claim) {
			if c.Converts() {
				t.Error("the second release keeps the lease")
			}
		})
	check(t, "it took place, and the answer that says its fence is late",
		after(New(Wait, true, false), called, lateFailure, cancelled), []step{
			{100, Event{Kind: ReleaseReplied, Code: Present}, Checking, "Check"},
			{120, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: 50 * time.Millisecond}, Checking, "Timer=170"},
			{170, Event{Kind: Timer}, Checking, "Check"},
			{10_100, Event{Kind: Checked, Code: Granted, Sent: at(170), Fence: 9}, Checking, "Check"},
			{10_200, Event{Kind: Checked, Code: Granted, Sent: at(10_150), Fence: 9}, Held, "Found Timer=13395"},
		})
	check(t, "it took place, and the new lease has ended",
		after(New(Wait, true, false), called, queued, step{e: Event{Kind: Cancelled}}, step{e: Event{Kind: ReleaseReplied, Code: Present}}),
		[]step{{120, Event{Kind: Checked, Code: Denied}, Over, "Finished StopTimer"}}, hasReason(ByConversion))
	check(t, "it took place, and the new lease has ended, but a copy of the request may still run",
		after(New(Wait, true, false), called, lateFailure, cancelled, step{e: Event{Kind: ReleaseReplied, Code: Present}}), []step{
			{120, Event{Kind: Checked, Code: Denied}, Releasing, "Release"},
			{130, Event{Kind: ReleaseReplied, Code: Denied}, Over, "Finished StopTimer"},
		}, hasReason(ByConversion), func(t *testing.T, c *Claim) {
			if tombstone, _, _, _ := c.Cleanup(); c.Converts() || !tombstone {
				t.Error("the second release leaves no tombstone")
			}
		})
	check(t, "it is not found out", after(New(Wait, true, false), called, lateFailure, cancelled),
		[]step{{120, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Last: true}, Over, "Finished StopTimer"}}, hasReason(ByDoubt))
}

func hasAnswer(want Code) func(*testing.T, *Claim) {
	return func(t *testing.T, c *Claim) {
		if got := c.Answer(); got != want {
			t.Errorf("answer %d, want %d", got, want)
		}
	}
}

var (
	converting  = step{100, Event{Kind: ConversionBegan}, Converting, ""}
	lateFailure = step{5, Event{Kind: AskFailed, Outcome: InDoubt, Retryable: true}, Asking, "Pause"}
	cancelled   = step{50, Event{Kind: Cancelled}, Releasing, "Deliver Release StopTimer"}
)

func TestRelease(t *testing.T) {
	check(t, "others wait, so the fast script decides nothing", held(), []step{
		{100, Event{Kind: Released}, Releasing, "End Release StopTimer"},
		{101, Event{Kind: ReleaseReplied, Code: Denied, Fast: true}, Releasing, "Release"},
		{102, Event{Kind: ReleaseReplied, Code: Granted}, Over, "Finished StopTimer"},
	}, func(t *testing.T, c *Claim) {
		if !c.NeedsGeneral() || c.Answer() != Granted {
			t.Error("the general script does not follow, or has no answer")
		}
	})
	check(t, "the server does not know the token", after(held(), released), []step{
		{101, Event{Kind: ReleaseReplied, Code: Denied, QueueEmpty: true}, Releasing, "AskBreaker"},
		{102, Event{Kind: Broken}, Over, "Explained Finished StopTimer"},
	}, hasAnswer(Denied))
	check(t, "the server does not know the token, but an earlier attempt may have removed it",
		after(held(), released), []step{
			{101, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Releasing, "Timer=102"},
			{102, Event{Kind: Timer}, Releasing, "Release"},
			{103, Event{Kind: ReleaseReplied, Code: Denied, QueueEmpty: true}, Over, "Finished StopTimer"},
		}, hasAnswer(Granted))
	check(t, "repeated until the lease must have ended", after(held(), released), []step{
		{9_990, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: 10 * time.Millisecond}, Releasing, "Timer=10000"},
		{10_000, Event{Kind: Timer}, Releasing, "Release"},
		{10_000, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Over, "Finished StopTimer"},
	}, hasAnswer(None))
	check(t, "a renewal is under way, which is waited for", after(held(), due), []step{
		{3_200, Event{Kind: Released, Until: at(60_000)}, Releasing, "End Release StopTimer"},
		{3_210, Event{Kind: ReleaseReplied, Code: Granted, QueueEmpty: true}, Over, "StopTimer"},
		{3_220, Event{Kind: RenewFailed, Outcome: InDoubt}, Over, "Finished"},
	}, func(t *testing.T, c *Claim) {
		if _, _, record, until := c.Cleanup(); record != at(60_000) || until != at(10_000) {
			t.Errorf("record until %v, repeated until %v", record.Sub(at(0)), until.Sub(at(0)))
		}
	})
	check(t, "its deadline has passed unnoticed", held(),
		[]step{{9_999, Event{Kind: Released}, Releasing, "End Release StopTimer"}}, hasReason(ByDeadline))
	check(t, "of an adopted token, whose request may still be under way", adopted(),
		[]step{{100, Event{Kind: Released}, Releasing, "End Release StopTimer"}}, hasTombstone(true))
	check(t, "a copy of the request is under way, and its outcome comes later",
		after(held(), step{e: Event{Kind: CopySent}}), []step{
			{100, Event{Kind: Released}, Releasing, "End Release StopTimer"},
			{110, Event{Kind: CopyEnded, Outcome: Answered}, Releasing, ""},
		}, hasTombstone(true))
	check(t, "of a token of which nothing is known", Clean(at(500)), []step{
		{100, Event{Kind: Released}, Releasing, "Release"},
		{400, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: 50 * time.Millisecond}, Releasing, "Timer=450"},
		{450, Event{Kind: Timer}, Releasing, "Release"},
		{480, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: 50 * time.Millisecond}, Over, "Finished StopTimer"},
	}, hasTombstone(true))
	checkBy(t, func(r *Rules) { r.ByClock = true }, "of permits that return by the clock, to a caller who was cancelled as they were granted",
		New(Wait, false, false), []step{
			called,
			{1, granted.e, Permitted, "Deliver StopTimer"},
			{1, Event{Kind: Cancelled}, Permitted, ""},
			{1, Event{Kind: Released, Unused: true}, Releasing, "Release"},
		}, hasTombstone(false))
}

var released = step{100, Event{Kind: Released}, Releasing, "End Release StopTimer"}

func hasTombstone(want bool) func(*testing.T, *Claim) {
	return func(t *testing.T, c *Claim) {
		if got, _, _, _ := c.Cleanup(); got != want {
			t.Errorf("tombstone: %v, want %v", got, want)
		}
	}
}

func adopted() Claim {
	var out Effects
	return Adopt(&rules, 7, at(0), at(1), &out)
}
