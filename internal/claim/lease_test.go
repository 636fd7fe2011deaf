package claim

import (
	"testing"
	"time"
)

func TestRefusedLeaseEndsWithinReasonTimeout(t *testing.T) {
	check(t, "whatever later renewals and an Extend are answered", after(held(), due), []step{
		{3_150, Event{Kind: ExtendBegan, TTL: 20_000}, Held, ""},
		{3_200, Event{Kind: Renewed, Code: Denied, Sent: at(3_127), TTL: 10_000}, Gone, "AskBreaker Timer=3400"},
		{3_210, Event{Kind: RenewFailed, Pause: 10 * time.Millisecond}, Gone, ""},
		{3_220, Event{Kind: RenewFailed, Lasting: true}, Gone, ""},
		{3_230, Event{Kind: Renewed, Code: Granted, Sent: at(3_127), TTL: 10_000}, Gone, ""},
		{3_240, Event{Kind: Extended, Code: Granted, Sent: at(3_150), TTL: 20_000}, Gone, ""},
		{3_400, Event{Kind: Timer}, Lost, "End StopTimer"},
	}, hasReason(ByServer))
	check(t, "and at its deadline all the same, if that comes first", after(held(), due), []step{
		{9_800, Event{Kind: Renewed, Code: Denied, Sent: at(3_127), TTL: 10_000}, Gone, "AskBreaker Timer=9898"},
		{9_898, Event{Kind: Timer}, Lost, "End StopTimer"},
	}, hasReason(ByServer))
}

func TestExtend(t *testing.T) {
	began := func(ms, ttl int64) step { return step{ms, Event{Kind: ExtendBegan, TTL: ttl}, Held, ""} }
	granted := func(ms, sent, ttl int64, out string) step {
		return step{ms, Event{Kind: Extended, Code: Granted, Sent: at(sent), TTL: ttl}, Held, out}
	}
	check(t, "to less, which changes nothing", held(), []step{began(100, 1_000), granted(200, 100, 1_000, "Timer=3413")}, hasDeadline(9_898, 10_000))
	check(t, "its answer comes after the deadline", held(), []step{
		began(100, 20_000),
		{9_898, Event{Kind: Extended, Code: Granted, Sent: at(100), TTL: 20_000}, Lost, "End StopTimer"},
	}, hasReason(ByDeadline))
	check(t, "two at once, of which the longer one is answered first", held(), []step{
		began(100, 20_000), began(101, 60_000), granted(110, 101, 60_000, "Timer=19017"), granted(120, 100, 20_000, "Timer=19644"),
	}, hasDeadline(101+59_398, 60_000))
	checkBy(t, func(r *Rules) { r.NoRenewal = true }, "of an unconfirmed lease that is not renewed, which is confirmed all the same",
		afterBy(&Rules{TTL: 10_000, ClaimTTL: 6_000, NoRenewal: true}, New(Wait, false, false), called, queued, woken), []step{
			{300, Event{Kind: ExtendBegan, TTL: 10_000}, Unconfirmed, ""},
			{400, Event{Kind: Extended, Outcome: NotSent, TTL: 10_000}, Unconfirmed, ""},
			{401, Event{Kind: Timer}, Unconfirmed, "RenewFor=9799 Timer=2263"},
			{410, Event{Kind: Renewed, Code: Granted, Sent: at(401), TTL: 9_799}, Held, "Confirmed Timer=10100"},
			{10_101, Event{Kind: Timer}, Lost, "End StopTimer"},
		}, hasReason(ByFixedTTL))
}

var due = step{3_127, Event{Kind: Timer}, Held, "RenewFor=10000 Timer=5384"}

func hasReason(want Reason) func(*testing.T, *Claim) {
	return func(t *testing.T, c *Claim) {
		if got := c.Reason(); got != want {
			t.Errorf("reason %s, want %s", reasonNames[got], reasonNames[want])
		}
	}
}

// hasDeadline expects the lease to be believed until that time, and renewals to ask for that ttl.
func hasDeadline(ms, ttl int64) func(*testing.T, *Claim) {
	return func(t *testing.T, c *Claim) {
		if c.Deadline() != at(ms) || c.TTL() != ttl {
			t.Errorf("deadline %d ms, ttl %d ms, want %d and %d", c.Deadline().Sub(at(0)).Milliseconds(), c.TTL(), ms, ttl)
		}
	}
}

func TestLease(t *testing.T) {
	timer := func(ms int64, state State, out string) step { return step{ms, Event{Kind: Timer}, state, out} }
	check(t, "renewals that are not answered are repeated, but only a few are under way", held(), []step{
		due,
		timer(5_385, Held, "RenewFor=10000 Timer=6889"),
		timer(6_890, Held, "RenewFor=10000 Timer=7892"),
		timer(7_893, Held, "RenewFor=10000 Timer=9898"),
		{8_000, Event{Kind: RenewFailed, Pause: 100 * time.Millisecond}, Held, "Timer=8100"},
		timer(8_100, Held, "RenewFor=10000 Timer=9898"),
		timer(9_898, Lost, "End StopTimer"),
	}, hasReason(ByDeadline))
	check(t, "a renewal counts from when it was sent, and never shortens",
		after(held(), due, step{5_385, Event{Kind: Timer}, Held, ""}), []step{
			{5_400, Event{Kind: Renewed, Code: Granted, Sent: at(5_385), TTL: 10_000}, Held, "Confirmed Timer=8530"},
			{5_500, Event{Kind: Renewed, Code: Granted, Sent: at(3_127), TTL: 10_000}, Held, "Confirmed Timer=8704"},
		}, hasDeadline(5_385+9_898, 10_000))
	checkBy(t, func(r *Rules) { r.MetadataTTL = 10 * time.Second }, "the metadata are renewed now and then", held(), []step{
		{3_127, Event{Kind: Timer}, Held, "RenewFor=10000 Metadata Timer=5384"},
		{3_200, Event{Kind: Renewed, Code: Granted, Sent: at(3_127), TTL: 10_000, Metadata: true}, Held, "Confirmed Timer=6389"},
		timer(5_600, Held, "Timer=6389"),
		timer(6_390, Held, "RenewFor=10000 Metadata Timer=8601"),
	})
	checkBy(t, func(r *Rules) { r.NoRenewal = true }, "its time is over, and it is not renewed",
		New(Wait, false, false), []step{
			called,
			{1, granted.e, Held, "Deliver Timer=9898"},
			timer(9_898, Lost, "End StopTimer"),
		}, hasReason(ByFixedTTL))
	checkBy(t, func(r *Rules) { r.MaxLifetime = 12 * time.Second }, "it has reached its maximum lifetime", held(), []step{
		{3_127, Event{Kind: Timer}, Held, "RenewFor=8874 Timer=5384"},
		{3_130, Event{Kind: Renewed, Code: Granted, Sent: at(3_127), TTL: 8_874}, Held, "Confirmed Timer=5943"},
		timer(11_995, Lost, "End StopTimer"),
	}, hasReason(ByLifetime))
	check(t, "a part is to last for another time", held(), []step{
		{100, Event{Kind: TTLSet, TTL: 30_000}, Held, "Timer=100"},
		timer(100, Held, "RenewFor=30000 Metadata Timer=3366"),
	})
	check(t, "it is lost, and its holder learns of that and releases it",
		after(held(), due, step{9_898, Event{Kind: Timer}, Lost, ""}), []step{
			{9_900, Event{Kind: Renewed, Code: Granted, Sent: at(9_000), TTL: 10_000}, Lost, ""},
			{9_910, Event{Kind: Released}, Releasing, "Release"},
			{9_920, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Releasing, "Timer=9921"}, // as the renewal may have run
			{19_910, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Over, "Finished StopTimer"},
		}, hasReason(ByDeadline))
	check(t, "the process lets go of it, while a renewal is under way", after(held(), due), []step{
		{3_200, Event{Kind: Forgotten}, Over, "End StopTimer"},
		{3_210, Event{Kind: Renewed, Code: Denied, Sent: at(3_127)}, Over, "Finished"},
	}, hasReason(ByForgetting))
}

// TestUpgrade: an upgrade is granted no lease, but changes another one, which has a claim of its own. To give it up is to release it.
func TestUpgrade(t *testing.T) {
	check(t, "granted at once, and given up", New(Wait, true, false), []step{
		called,
		{1, granted.e, Permitted, "Deliver StopTimer"},
		{100, Event{Kind: Released, Unused: true}, Releasing, "Release"},
		{110, Event{Kind: ReleaseReplied, Code: Granted}, Over, "Finished StopTimer"},
	}, hasTombstone(false), func(t *testing.T, c *Claim) {
		if !c.NeedsGeneral() {
			t.Error("it is released by the fast script, which knows only leases")
		}
	})
}

func hasAnswer(want Code) func(*testing.T, *Claim) {
	return func(t *testing.T, c *Claim) {
		if got := c.Answer(); got != want {
			t.Errorf("answer %d, want %d", got, want)
		}
	}
}

func TestRelease(t *testing.T) {
	check(t, "the server does not know the token", after(held(), released), []step{
		{101, Event{Kind: ReleaseReplied, Code: Denied, QueueEmpty: true}, Inquiring, "AskBreaker"},
		{102, Event{Kind: Broken}, Over, "Explained Finished StopTimer"},
	}, hasAnswer(Denied))
	check(t, "the server does not know the token, but an earlier attempt may have removed it",
		after(held(), released), []step{
			{101, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Releasing, "Timer=102"},
			{102, Event{Kind: Timer}, Releasing, "Release"},
			{103, Event{Kind: ReleaseReplied, Code: Denied, QueueEmpty: true}, Over, "Finished StopTimer"},
		}, hasAnswer(Granted))
	check(t, "repeated until the lease must have ended", after(held(), released), []step{
		{10_090, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: 10 * time.Millisecond}, Releasing, "Timer=10100"},
		{10_100, Event{Kind: Timer}, Releasing, "Release"},
		{10_100, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Over, "Finished StopTimer"},
	}, hasAnswer(None))
	check(t, "an Extend that was not answered may have made it last for longer", after(held(),
		step{e: Event{Kind: ExtendBegan, TTL: 60_000}}, step{e: Event{Kind: Extended, Outcome: InDoubt, TTL: 60_000}}, released), []step{
		{60_098, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Releasing, "Timer=60099"},
		{60_100, Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: time.Millisecond}, Over, "Finished StopTimer"},
	}, hasAnswer(None))
	check(t, "a renewal is under way, which is waited for", after(held(), due), []step{
		{3_200, Event{Kind: Released, Until: at(60_000)}, Releasing, "End Release StopTimer"},
		{3_210, Event{Kind: ReleaseReplied, Code: Granted, QueueEmpty: true}, Over, "StopTimer"},
		{3_220, Event{Kind: RenewFailed, Outcome: InDoubt}, Over, "Finished"},
	}, func(t *testing.T, c *Claim) {
		if _, _, record, until := c.Cleanup(); record != at(60_000) || until != at(13_200) {
			t.Errorf("record until %v, repeated until %v", record.Sub(at(0)), until.Sub(at(0)))
		}
	})
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
	checkBy(t, func(r *Rules) { r.ByClock = true }, "of permits by the clock, to a caller who was cancelled as they were granted",
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

// A renewal that failed is repeated after the pause of the retry policy, but not later than it would have been without that answer.
func TestRenewalsWithPausesAtTheirBounds(t *testing.T) {
	for _, c := range []struct {
		pause time.Duration
		next  string
	}{{time.Millisecond, "Timer=3201"}, {time.Second, "Timer=4200"}, {time.Minute, "Timer=5384"}, {time.Hour, "Timer=5384"}} {
		check(t, "after a pause of "+c.pause.String(), after(held(), due), []step{
			{3_200, Event{Kind: RenewFailed, Pause: c.pause}, Held, c.next},
		})
	}
}

func TestMaxLifetimeBoundsLateRenewal(t *testing.T) {
	r := &Rules{TTL: 10_000, ClaimTTL: 6_000, MaxLifetime: 12 * time.Second}
	checkBy(t, func(r *Rules) { r.MaxLifetime = 12 * time.Second }, "the renewal was sent two seconds after it was decided",
		afterBy(r, New(Wait, false, false), called, granted), []step{
			{3_127, Event{Kind: Timer}, Held, "RenewFor=8874 Timer=5384"},
			{5_200, Event{Kind: Renewed, Code: Granted, Sent: at(5_127), TTL: 8_874}, Held, "Confirmed Timer=7363"},
		}, hasDeadline(12_001, 10_000))
}
