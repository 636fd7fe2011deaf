package claim

// kindSet is a set of kinds of events.
type kindSet uint32

// Groups of events that may come late, because their sender does not know yet what became of the claim. README.md has the same groups.
const (
	// Messages and heartbeats, which were sent while the request waited.
	toWaiter kindSet = 1<<Woken | 1<<RetryAt | 1<<StillQueued | 1<<Admitted | 1<<Refused | 1<<Rejoining | 1<<GaveUp | 1<<CopyEnded
	// The same, and the end of a request that is given up at the moment of its grant.
	toRequest = toWaiter | 1<<Cancelled | 1<<Closed | 1<<Broken
	// The first call and its reply, of a request that was given up meanwhile.
	toAsking kindSet = 1<<Called | 1<<Replied | 1<<AskFailed
	// Timers, calls, answers and the user of a lease that has ended.
	toLease kindSet = 1<<CopySent | 1<<Timer | 1<<NotBroken | 1<<Renewed | 1<<RenewFailed | 1<<ExtendBegan | 1<<Extended | 1<<TTLSet |
		1<<Failed | 1<<Released | 1<<Forgotten
)

// ignored has for each state the events that may come late and change nothing but the account of the calls, unless the state handles them. An
// event that a state neither handles nor ignores is impossible: its sender has a bug.
var ignored = [states]kindSet{
	Waiting:     1 << CopyEnded,
	Barred:      toWaiter,
	Permitted:   toRequest | 1<<CopySent,
	Held:        toRequest | 1<<CopySent,
	Unconfirmed: toRequest | 1<<CopySent,
	Gone:        toRequest | 1<<CopySent,
	Lost:        toRequest | toLease,
	Releasing:   toRequest | toLease | toAsking,
	Inquiring:   toRequest | toLease,
	Over:        toRequest | toLease | toAsking,
}

// ignore handles an event to which the state does not react.
func (c *Claim) ignore(e *Event, out *Effects) {
	out.Impossible = ignored[c.state]&(1<<e.Kind) == 0
}
