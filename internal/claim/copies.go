package claim

// Outcome says whether the server ran a call that has ended.
type Outcome uint8

// The outcomes. Package transport tells them apart by the error of a call.
const (
	Answered Outcome = iota // the server has replied
	NotSent                 // the call was not sent
	InDoubt                 // it may have run, in whole or in part, or may run later
)

// presence is what the server may have of a token.
type presence uint8

const (
	absent  presence = iota // nothing: no call has reached the server, or it has refused the request
	present                 // perhaps a lease or a queue entry, which a release removes
	inDoubt                 // as present; and a copy of a call may run later, and be granted a lease unless there is a tombstone
)

// copies is what a keeper knows of the calls that ask for a lease under one token. The zero value is for a token that was never sent.
type copies struct {
	atServer presence // by the calls that have ended; see presence
	inFlight int16    // calls under way
}

// sent notes that a call is about to be sent.
func (t *copies) sent() { t.inFlight++ }

// done notes the outcome of a call.
func (t *copies) done(outcome Outcome) {
	t.inFlight--
	switch outcome {
	case Answered:
		t.atServer = max(t.atServer, present)
	case InDoubt:
		t.atServer = inDoubt
	}
}

// refused notes that the server has refused the request. A copy that is in doubt may still be granted something.
func (t *copies) refused() {
	if t.atServer != inDoubt {
		t.atServer = absent
	}
}

// presence returns what the server may have of the token. While a call is under way, its outcome is unknown.
func (t *copies) presence() presence {
	if t.inFlight > 0 {
		return inDoubt
	}
	return t.atServer
}

// needCleanup reports whether the server may have a lease or a queue entry of the token.
func (t *copies) needCleanup() bool { return t.presence() != absent }

// needTombstone reports whether a copy of a call may still run. For example, the connection broke before the reply: the copy may reach the server
// after the release, and would be granted a lease that nobody has.
func (t *copies) needTombstone() bool { return t.presence() == inDoubt }
