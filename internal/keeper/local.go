package keeper

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// localQueues has a queue for each name that callers of this process want. The caller that has the turn asks the server, and the others wait for
// the turn, so the server sees one waiter per process. It is safe for concurrent use.
type localQueues struct {
	s     *server.Server
	stale func(key string) // see newLocalQueues

	mu     sync.Mutex // guards the fields below
	byName map[string]*localQueue
}

// newLocalQueues returns local queues without callers. They call stale with a name's key shortly before the deadline of a caller, so that a
// heartbeat finds out whether the server still answers.
func newLocalQueues(s *server.Server, stale func(key string)) *localQueues {
	return &localQueues{s: s, stale: stale, byName: map[string]*localQueue{}}
}

// localQueue holds the callers that wait for the turn of one name. It exists while a caller has the turn.
type localQueue struct {
	waiting list.List // of chan struct{}, each closed and removed when its caller gets the turn; guarded by localQueues' mu
}

// Turn says how a caller came by its turn in a local queue. The zero Turn is none.
type Turn struct {
	Since  time.Time // when the caller came
	Waited bool      // the caller had to wait for another one
}

// Judge says whether the servers of a lock answer: a Lock for its one server, quorum.Majority for several.
type Judge interface {
	// Outage returns why the servers do not answer, so that nobody knows whether the lock is held; nil: they answer.
	Outage(now time.Time) error
	// Exhausted returns why the retry policy gives up on the requests of a caller who came at since; nil: it does not.
	Exhausted(since, now time.Time) error
}

// Wait blocks until it is the caller's turn, until ctx ends, or until the keeper is closed. The caller must call Leave to end its turn.
//
// A caller whose turn comes when the server has not answered for MaxElapsed since the caller came fails at once. Ten callers in a queue
// thus fail after one MaxElapsed, and the last one not after ten.
func (w *localQueues) Wait(ctx context.Context, key string, j Judge) (Turn, error) {
	since := time.Now()
	w.mu.Lock()
	q := w.byName[key]
	if q == nil {
		w.byName[key] = &localQueue{}
		w.mu.Unlock()
		return Turn{Since: since}, nil
	}
	turn := make(chan struct{})
	place := q.waiting.PushBack(turn)
	w.mu.Unlock()

	var err error
	near := server.NearDeadline(ctx)
	for waiting := true; waiting; {
		select {
		case <-turn:
			if err := j.Exhausted(since, time.Now()); err != nil {
				w.Leave(key)
				return Turn{}, err
			}
			return Turn{since, true}, nil
		case <-ctx.Done():
			err, waiting = server.WaitError(ctx, j.Outage(time.Now())), false
		case <-w.s.Closing().Done():
			err, waiting = server.ErrClosed, false
		case <-near:
			w.stale(key)
		}
	}
	if !w.abandon(q, place) {
		w.Leave(key) // the turn came at the same time: hand it on
	}
	return Turn{}, err
}

// abandon removes a caller that gives up from the queue. It reports false if the caller has got the turn, and so has to call Leave.
func (w *localQueues) abandon(q *localQueue, place *list.Element) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-place.Value.(chan struct{}):
		return false
	default:
		q.waiting.Remove(place)
		return true
	}
}

// Leave ends a turn and begins the next one.
func (w *localQueues) Leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.byName[key]
	first := q.waiting.Front()
	if first == nil {
		delete(w.byName, key)
		return
	}
	close(q.waiting.Remove(first).(chan struct{}))
}
