package transport

import (
	"errors"
	"slices"
)

// A call that is sent is queued until a sender takes it. Until then its caller can withdraw it.
const (
	callQueued uint32 = iota + 1
	callTaken
	callWithdrawn
)

// ErrQueueFull is the error of a call that was not queued because too many wait already.
var ErrQueueFull = errors.New("too many calls of this process wait for the server")

var errWithdrawn = errors.New("withdrawn before it was sent")

// Withdraw prevents a call from being sent, if it is still queued, because nobody wants the reply any more. It returns false if the call is under
// way or done. Done is called for a withdrawn call as well, with an error whose Outcome is NotSent, but perhaps only when a sender would have
// taken it. Withdraw may be called at any time, also before Send, more than once and concurrently.
func (call *Call) Withdraw() bool {
	return call.state.CompareAndSwap(callQueued, callWithdrawn) || call.state.CompareAndSwap(0, callWithdrawn) || call.Withdrawn()
}

// Withdrawn reports whether the call was withdrawn.
func (call *Call) Withdrawn() bool { return call.state.Load() == callWithdrawn }

// enqueue marks a call as queued. It returns false if the call was withdrawn before.
func (call *Call) enqueue() bool {
	if call.state.Swap(callQueued) != callWithdrawn {
		return true
	}
	call.state.Store(callWithdrawn)
	return false
}

// take marks a call as under way. It returns false if the call was withdrawn.
func (call *Call) take() bool { return call.state.CompareAndSwap(callQueued, callTaken) }

// notSent ends a call that is not sent. If it was withdrawn, that is the reason.
func (call *Call) notSent(err error) {
	if !call.take() && call.Withdrawn() {
		err = errWithdrawn
	}
	call.Err = &notSentError{err}
	call.end()
}

// end calls Done, also of the calls that were sent as part of this one.
func (call *Call) end() {
	for _, c := range call.joined {
		c.Joined, c.Sent, c.Reply, c.Err = true, call.Sent, call.Reply, call.Err
		c.Done.CallDone(c)
	}
	call.Done.CallDone(call)
}

// join lets the other call be sent as part of this one, if they differ in ARGV[1] alone. It reports whether it has joined them.
func (call *Call) join(other *Call) bool {
	at, n := 3+call.Args[2].(int), len(call.Args)-len(call.joined)
	if call.Key != other.Key || call.Script != other.Script || len(other.joined) > 0 || len(other.Args) != n ||
		!slices.Equal(call.Args[:at], other.Args[:at]) || !slices.Equal(call.Args[at+1:n], other.Args[at+1:]) {
		return false
	}
	call.Args, call.joined = append(call.Args, other.Args[at]), append(call.joined, other)
	return true
}

// joinAll joins the calls of the batch where possible, and returns those that are to be sent.
func joinAll(batch []*Call) []*Call {
	all := batch[:0]
	for _, call := range batch {
		if !slices.ContainsFunc(all, func(c *Call) bool { return c.join(call) }) {
			all = append(all, call)
		}
	}
	clear(batch[len(all):])
	return all
}

// endAll ends calls that are not sent. The caller must hold no mutex, because Done is called here.
func endAll(calls []*Call, err error) {
	for _, call := range calls {
		call.notSent(err)
	}
}

// callList is a queue of calls in the order in which they were added. Withdrawn calls stay until they are taken or make up half of a
// long list.
type callList struct {
	calls   []*Call
	pruneAt int // the length at which withdrawn calls are looked for
}

// pruneMin is the length up to which withdrawn calls are left in the list.
const pruneMin = 512

// add adds a call, unless there are limit calls that are still wanted; 0 means no limit. It returns the withdrawn calls that it has removed.
func (l *callList) add(call *Call, limit int) (removed []*Call, added bool) {
	if len(l.calls) >= max(l.pruneAt, pruneMin) || limit > 0 && len(l.calls) >= limit {
		kept := l.calls[:0]
		for _, c := range l.calls {
			if c.Withdrawn() {
				removed = append(removed, c)
			} else {
				kept = append(kept, c)
			}
		}
		clear(l.calls[len(kept):])
		l.calls, l.pruneAt = kept, 2*len(kept)
	}
	if limit > 0 && len(l.calls) >= limit {
		return removed, false
	}
	l.calls = append(l.calls, call)
	return removed, true
}

// take moves the first calls to a batch, until the list is empty or the batch has limit calls. It appends withdrawn calls to withdrawn instead.
func (l *callList) take(batch, withdrawn []*Call, limit int) (newBatch, newWithdrawn []*Call) {
	if len(batch) == 0 && len(l.calls) <= limit { // the usual case: swap the slices
		batch, l.calls = l.calls, batch
		kept := batch[:0]
		for _, call := range batch {
			if call.take() {
				kept = append(kept, call)
			} else {
				withdrawn = append(withdrawn, call)
			}
		}
		clear(batch[len(kept):])
		return kept, withdrawn
	}
	n := 0
	for ; n < len(l.calls) && len(batch) < limit; n++ {
		if call := l.calls[n]; call.take() {
			batch = append(batch, call)
		} else {
			withdrawn = append(withdrawn, call)
		}
	}
	l.removeFirst(n)
	return batch, withdrawn
}

// takeUntil removes and returns the calls that were added up to the number seq; see Call.seq.
func (l *callList) takeUntil(seq uint64) []*Call {
	n := 0
	for n < len(l.calls) && l.calls[n].seq <= seq {
		n++
	}
	first := append([]*Call(nil), l.calls[:n]...)
	l.removeFirst(n)
	return first
}

// removeFirst removes the first n calls. It copies nothing, so that taking a long list bit by bit is linear.
func (l *callList) removeFirst(n int) {
	clear(l.calls[:n])
	l.calls = l.calls[n:]
}
