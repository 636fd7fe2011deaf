package keeper

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// localQueues is the local queues of a keeper: who waits for a name, in this process, before one of them asks the server. It is safe for concurrent
// use.
type localQueues struct {
	s     *server.Server
	stale func(key string) // called if the answer that a caller's deadline needs is not recent

	mu     sync.Mutex // guards the fields below
	byName map[string]*localQueue
}

// newLocalQueues returns local queues. Shortly before the deadline of a caller, it calls stale with the name's key, so that a heartbeat finds out
// whether the server still answers.
func newLocalQueues(s *server.Server, stale func(key string)) *localQueues {
	return &localQueues{s: s, stale: stale, byName: map[string]*localQueue{}}
}

// localQueue holds the callers of this process that wait for one name. Only the first of them sends requests, so the server
// sees one waiter per process, however many callers there are.
type localQueue struct {
	waiting list.List // of chan struct{}, each closed and removed when the turn comes; guarded by localQueues' mu
}

// Turn is that of a caller in a local queue. The zero Turn is none.
type Turn struct {
	Since  time.Time // when the caller came
	Waited bool      // another one had the turn before it
}

// Judge says whether the servers of a lock answer: a Lock of its server, and a majority of several.
type Judge interface {
	// Outage returns why it is not known whether the lock is held, though others of the process are ahead of the caller; nil: they answer.
	Outage(now time.Time) error
	// Exhausted returns why the retry policy gives up requests of a caller who came at that time; nil: it does not.
	Exhausted(since, now time.Time) error
}

// Wait blocks until it is the caller's turn, until ctx ends, or until the keeper is closed. The caller must call Leave to end its turn.
//
// If the caller before has given up because the server does not answer, and this one has waited for as long since that time, it fails
// as well: an outage costs each caller one MaxElapsed, and not one for each caller before it.
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

// abandon removes a caller that waits no more from the queue. It reports false if its turn has come: then it is no more in the queue.
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
