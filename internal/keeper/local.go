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
	health  server.Health // of the first caller, handed on with its turn
	waiting list.List     // of chan struct{}, each closed and removed when the turn comes; guarded by localQueues' mu
}

// Wait blocks until it is the caller's turn, until ctx ends, or until the keeper is closed. It returns the health that
// the callers of the name share, for which an answer may be maxAge old. The caller must call Leave to end its turn.
//
// If the caller before has given up because the server does not answer, and this one has waited for as long since that time, it fails
// as well: an outage costs each caller one MaxElapsed, and not one for each caller before it.
func (w *localQueues) Wait(ctx context.Context, key string, maxAge time.Duration, since time.Time) (shared *server.Health, err error) {
	w.mu.Lock()
	q := w.byName[key]
	if q == nil {
		q = &localQueue{health: server.Health{MaxAge: maxAge}}
		w.byName[key] = q
		w.mu.Unlock()
		return &q.health, nil
	}
	turn := make(chan struct{})
	place := q.waiting.PushBack(turn)
	w.mu.Unlock()

	near := server.NearDeadline(ctx)
	for waiting := true; waiting; {
		select {
		case <-turn:
			q.health.SetMaxAge(maxAge)
			if err := q.health.Exhausted(w.s.Config.Retry, since, time.Now()); err != nil {
				w.Leave(key)
				return nil, err
			}
			return &q.health, nil
		case <-ctx.Done():
			err, waiting = q.health.WaitError(ctx), false
		case <-w.s.Closing().Done():
			err, waiting = server.ErrClosed, false
		case <-near:
			w.stale(key)
		}
	}
	if w.abandon(q, place) {
		return nil, err
	}
	w.Leave(key) // the turn came at the same time: hand it on
	return nil, err
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
