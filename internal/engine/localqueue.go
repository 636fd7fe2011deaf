package engine

import (
	"container/list"
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// localQueue holds the callers of this process that wait for one name. Only the first of them sends requests, so the server
// sees one waiter per process, however many callers there are.
type localQueue struct {
	health  server.Health // of the first caller, handed on with its turn
	waiting list.List     // of chan struct{}, each closed and removed when the turn comes; guarded by the engine's mu
}

// waitLocally blocks until it is the caller's turn, until ctx ends, or until the keeper is closed. It returns the health that
// the callers of the name share, for which an answer may be maxAge old. The caller must call leaveLocalQueue to end its turn.
//
// If the caller before has given up because the server does not answer, and this one has waited for as long since that time, it fails
// as well: an outage costs each caller one MaxElapsed, and not one for each caller before it.
func (e *Engine) waitLocally(ctx context.Context, key string, maxAge time.Duration, since time.Time) (shared *server.Health, err error) {
	e.mu.Lock()
	q := e.localQueues[key]
	if q == nil {
		q = &localQueue{health: server.Health{MaxAge: maxAge}}
		e.localQueues[key] = q
		e.mu.Unlock()
		return &q.health, nil
	}
	turn := make(chan struct{})
	place := q.waiting.PushBack(turn)
	e.mu.Unlock()

	near, stop := server.NearDeadline(ctx)
	defer stop()
	for waiting := true; waiting; {
		select {
		case <-turn:
			if err := q.health.Exhausted(e.Config.Retry, since, time.Now()); err != nil {
				e.leaveLocalQueue(key)
				return nil, err
			}
			return &q.health, nil
		case <-ctx.Done():
			err, waiting = q.health.WaitError(ctx), false
		case <-e.Closing().Done():
			err, waiting = server.ErrClosed, false
		case <-near:
			e.heartbeatIfStale(key)
		}
	}
	if e.abandonTurn(q, place) {
		return nil, err
	}
	e.leaveLocalQueue(key) // the turn came at the same time: hand it on
	return nil, err
}

// abandonTurn removes a caller that waits no more from the queue. It reports false if its turn has come: then it is no more in the queue.
func (e *Engine) abandonTurn(q *localQueue, place *list.Element) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-place.Value.(chan struct{}):
		return false
	default:
		q.waiting.Remove(place)
		return true
	}
}

// leaveLocalQueue ends a turn and begins the next one.
func (e *Engine) leaveLocalQueue(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.localQueues[key]
	first := q.waiting.Front()
	if first == nil {
		delete(e.localQueues, key)
		return
	}
	close(q.waiting.Remove(first).(chan struct{}))
}
