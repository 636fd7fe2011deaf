package transport

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// SilenceTimeout is how long a node may take to answer before it counts as silent. A call interrupted sooner says nothing about the node.
const SilenceTimeout = 100 * time.Millisecond

// Answers says how a node has answered the calls for all names. What counts is when a call was sent: one that was sent before Last counts no
// more. A case: A and then B are sent, B is answered, and then A fails because its connection was an old one. The node works.
type Answers struct {
	Last  time.Time // when the newest answered call was sent; zero: none was answered
	Since time.Time // when the oldest call was sent that has failed or is under way; zero: there is none
	Err   error     // of the newest call that has failed; nil: none has
}

// Answers returns how the node of a key has answered. On a cluster, this is the node to which a call would be sent now. After a failover it is a
// new one, of which nothing is known until it has answered a call: a wait that ends sooner ends as in an outage. Answers does no I/O.
func (t *Transport) Answers(key string) Answers {
	node, _ := t.rdb.Primary(ended, key)
	t.mu.Lock()
	q := t.queues[node]
	t.mu.Unlock()
	if q == nil { // no call was sent to the node lately, or the client does not know yet which one it is
		return Answers{}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.record.answers()
}

// ended is a context that has ended, with which the client does no I/O.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// record is what the Answers of a node are made from. A batch is known by when it was sent.
type record struct {
	last     time.Time    // the newest answered batch
	failed   [2]time.Time // the oldest and the newest batch since last that have failed; zero: none has. Those between are not kept
	err      error        // of the newest batch that has failed
	underWay []time.Time  // all batches that have not ended
}

// sent notes that a batch is sent. ended must follow with the same time.
func (r *record) sent(at time.Time) { r.underWay = append(r.underWay, at) }

// ended notes that a batch has ended. Before it, answered or fails notes the result, unless that says nothing about the node.
func (r *record) ended(at time.Time) {
	i := slices.IndexFunc(r.underWay, at.Equal)
	r.underWay = slices.Delete(r.underWay, i, i+1)
}

// answered notes that a batch was answered. Failures of batches that were sent before count no more.
func (r *record) answered(at time.Time) {
	if at.After(r.last) {
		r.last = at
	}
	switch first, last := r.failed[0], r.failed[1]; {
	case last.Before(at):
		r.failed, r.err = [2]time.Time{}, nil
	case first.Before(at):
		r.failed[0] = last
	}
}

// fails notes that a batch was not answered, or that its answer says that the node cannot serve.
func (r *record) fails(at time.Time, err error) {
	if at.Before(r.last) {
		return
	}
	if at.After(r.failed[1]) {
		r.failed[1], r.err = at, err
	}
	if r.failed[0].IsZero() || at.Before(r.failed[0]) {
		r.failed[0] = at
	}
}

func (r *record) answers() Answers {
	a := Answers{Last: r.last, Since: r.failed[0], Err: r.err}
	for _, at := range r.underWay {
		if !at.Before(r.last) && (a.Since.IsZero() || at.Before(a.Since)) {
			a.Since = at
		}
	}
	return a
}

// note records what the results of a batch say about the node, before Done is called: a caller whose call has failed finds the failure in
// Answers. One answered call is enough for the batch to count as answered. lost says that the connection was lost before the batch was sent.
func (q *nodeQueue) note(s *sender, lost bool) {
	answered, failure := false, error(nil)
	for _, call := range s.batch {
		switch {
		case lost && OutcomeOf(call.Err) == claim.NotSent, // the call is sent again
			errors.Is(call.Err, ErrInterrupted) && time.Since(s.began) < SilenceTimeout:
		case ofNode(call.Err):
			failure = call.Err
		default:
			answered = true
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case answered:
		q.record.answered(s.began)
	case failure != nil:
		q.record.fails(s.began, failure)
	}
}
