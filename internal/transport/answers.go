package transport

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// SilenceTimeout is how long an answer may take before a node counts as silent. Less says nothing about it.
const SilenceTimeout = 100 * time.Millisecond

// Answers says how a node has answered the calls to it, of whatever name. What counts is when they were sent. When their answers came makes no
// difference: A and then B are sent, B is answered, and then A fails, because its connection was an old one; the node works.
type Answers struct {
	Last  time.Time // when the last call was sent that was answered; zero: none was
	Since time.Time // when the first call was sent, not before that, that has failed or is under way; zero: there is none
	Err   error     // of the last of them that has failed; nil: none has
}

// Answers returns how the node of a key has answered. In a Cluster it is the node to which a call would be sent now: after a failover another one,
// of which nothing is known until it has answered a call. So a wait that ends before that ends as in an outage. It does no I/O.
func (t *Transport) Answers(key string) Answers {
	node, _ := t.rdb.Primary(ended, key)
	t.mu.Lock()
	q := t.queues[node]
	t.mu.Unlock()
	if q == nil { // no call was sent to it lately; or the client does not know yet which node it is
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

// record is what the Answers of a node are made from.
type record struct {
	last     time.Time    // when the last batch was sent that was answered
	failed   [2]time.Time // when the first and the last were sent that have failed, of those after it; zero: there is none. Those between are forgotten
	err      error        // of the last
	underWay []time.Time  // when each batch was sent that has not ended
}

// sent notes that a batch is sent. ended must follow with the same time.
func (r *record) sent(at time.Time) { r.underWay = append(r.underWay, at) }

// ended notes that a batch has ended. What came of it, if that says something about the node, was noted before.
func (r *record) ended(at time.Time) {
	i := slices.IndexFunc(r.underWay, at.Equal)
	r.underWay = slices.Delete(r.underWay, i, i+1)
}

// answered notes that a batch was answered.
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

// note records what the results of a batch say about the node, before anybody learns of them. One answer is enough. lost says that the
// connection was lost before it was used.
func (q *nodeQueue) note(s *sender, lost bool) {
	answered, failure := false, error(nil)
	for _, call := range s.batch {
		switch {
		case lost && OutcomeOf(call.Err) == claim.NotSent, // it is sent again
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
