package claim

import "time"

// Kind is the kind of an event.
type Kind uint8

// The events. After the semicolon stand the fields of Event that are set besides Kind.
const (
	Called    Kind = iota // the caller asks for the lease
	Cancelled             // the caller no longer waits: its context has ended, or the driver gives up for it
	Closed                // the keeper is closed
	Broken                // somebody has ended the request or the lease, for a reason that the driver knows
	NotBroken             // nobody has ended it, as far as the server knows; the answer to AskBreaker
	Timer                 // the time that Effects.Timer asked for has come

	CopySent    // the driver is about to send a call with the token that no effect asked for
	CopyEnded   // that call has ended; Outcome
	Replied     // acquire was answered; Sent, Code, Fast, More, Fence, Clock, Place, Exhausted
	AskFailed   // acquire failed; Outcome, Retryable, Exhausted
	Woken       // a message says that the request was granted the lease; Fence
	RetryAt     // a message asks for a heartbeat; At
	StillQueued // a heartbeat found the waiter in the queue; Sent, Fence (the last one drawn), Clock, Place
	Admitted    // a heartbeat found that the waiter has been granted the lease; Sent, Fence, TTL
	Refused     // a heartbeat, a renewal that was waited for, or an Extend found that the server refuses the token; Code
	Rejoining   // the waiter is about to be queued again
	GaveUp      // heartbeats have failed for so long that they are not repeated

	Renewed     // a renewal was answered; Sent, TTL, Metadata, Code
	RenewFailed // a renewal failed; Lasting, Pause
	ExtendBegan // the call of Extend is about to be sent; TTL
	Extended    // that call has ended; Sent, TTL, Code, Outcome
	TTLSet      // renewals are to ask for this ttl at least, and the next one is sent at once; TTL
	Failed      // the lease does not count any more, for a reason that the driver knows

	Released       // the holder releases the lease, or nobody wants the grant; Unused, Until
	ReleaseReplied // release or complete was answered; Code, Fast, QueueEmpty
	ReleaseFailed  // release or complete failed; Outcome, Retryable, Pause, Last
	Forgotten      // the process gives up the lease, and leaves it at the server

	kinds
)

// String returns the name of the kind.
func (k Kind) String() string {
	return [...]string{
		"Called", "Cancelled", "Closed", "Broken", "NotBroken", "Timer", "CopySent", "CopyEnded", "Replied", "AskFailed", "Woken", "RetryAt",
		"StillQueued", "Admitted", "Refused", "Rejoining", "GaveUp", "Renewed", "RenewFailed", "ExtendBegan", "Extended", "TTLSet", "Failed",
		"Released", "ReleaseReplied", "ReleaseFailed", "Forgotten",
	}[k]
}

// Code is what a script has replied.
type Code uint8

// The codes. What they mean depends on the event.
const (
	None       Code = iota
	Granted         // granted; a renewal: renewed
	Undecided       // a fast script has decided nothing
	Queued          // the request waits
	Denied          // refused: the lock is not free, or the server does not know the token
	Tombstoned      // the token is not granted any more
	Conflict        // another upgrade waits
	AboveLimit      // more permits than the limit in force
)

// Event is something that happened to a claim. Which fields are set depends on its kind.
type Event struct {
	Kind    Kind
	Code    Code
	Outcome Outcome

	Fast       bool // the call was of a fast script; ReleaseReplied: which has decided nothing
	More       bool // a refusal: more leases have ended than one script sweeps
	Retryable  bool // the same call may succeed later
	Exhausted  bool // the retry policy repeats no more
	Withdrawn  bool // the call under way was withdrawn: it will not be sent
	Unused     bool // nobody has used the lease
	Metadata   bool // the renewal included the metadata
	Lasting    bool // the error says that the lease is gone: its key has another type
	QueueEmpty bool // nobody waits
	Last       bool // no further attempt is allowed

	Sent  Instant // when the answered call was sent
	At    Instant
	Until Instant       // until when the record of a release lasts; 0: none
	Pause time.Duration // before the next attempt

	Fence, Clock, Place, TTL int64
}

// Effects are what the driver has to do after an event.
type Effects struct {
	Ask        bool // send acquire
	AskGeneral bool // by the general script
	Pause      bool // draw a pause and set the timer; when it fires, the claim asks again

	Queue       bool    // the waiter joins the queue of its name in this process, which sends its heartbeats
	HeartbeatBy Instant // all waiters of the queue are to send heartbeats at this time at the latest; 0: none
	FirstBeatBy Instant // the same, for the first waiter alone
	Place       int64   // of Rejoining: the place to ask for; 0: the end of the queue
	Joins       bool    // of Rejoining: the waiter is to be queued again
	WakeupHeard bool    // report that a message brought the grant
	AskBreaker  bool    // ask the server who has broken the request or the lease
	Deliver     bool    // the request has ended: unblock its caller
	RenewFor    int64   // send a renewal for so many ms; 0: none
	Metadata    bool    // it includes the metadata
	Confirmed   bool    // report that the lease was renewed
	End         bool    // end the lease for its holder, for the reason that the claim has now
	Release     bool    // send release, or complete
	Explained   bool    // tell the holder, who has released the lease, that somebody had broken it before
	Finished    bool    // nothing is left to be done at the server, and no renewal is under way
	Timer       Instant // when the timer of the claim is to fire; 0: as before
	StopTimer   bool    // stop the timer
	Impossible  bool    // there is a bug: the event cannot come in this state
}

// Reason says why a request has failed or a lease has ended.
type Reason uint8

// The reasons.
const (
	NoReason     Reason = iota
	ByCaller            // cancelled
	ByClose             // the keeper was closed
	ByBreak             // somebody has broken it
	ByDenial            // the lock is held elsewhere
	ByTombstone         // the token has a tombstone, and nobody knows why
	ByConflict          // another upgrade waits
	ByLimit             // more permits than the limit in force
	ByLateness          // granted, but the reply came when too little of the lease was left
	ByError             // the last call failed
	ByRelease           // released by its holder
	ByForgetting        // the process has let go of it; see Forgotten
	ByDeadline          // not renewed in time
	ByFixedTTL          // its time is over, and it is not renewed
	ByLifetime          // it has reached its maximum lifetime
	ByServer            // the server does not know the token
	ByDriver            // see Failed
	reasons
)
