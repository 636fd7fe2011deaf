package engine

import (
	"context"
	"time"
)

// localQueue holds the callers of this process that wait for one name. Only the first of them sends requests, so the server
// sees one waiter per process, however many callers there are.
type localQueue struct {
	health  ServerHealth    // of the first caller, handed on with its turn
	waiting []chan struct{} // closed when the turn comes; guarded by the engine's mu
}

// waitLocally blocks until it is the caller's turn, until ctx ends, or until the keeper is closed. It returns the health that
// the callers of the name share, for which an answer may be maxAge old. The caller must call leaveLocalQueue to end its turn.
func (e *Engine) waitLocally(ctx context.Context, key string, maxAge time.Duration) (shared *ServerHealth, err error) {
	e.mu.Lock()
	q := e.localQueues[key]
	if q == nil {
		q = &localQueue{health: ServerHealth{maxAge: maxAge}}
		e.localQueues[key] = q
		e.mu.Unlock()
		return &q.health, nil
	}
	turn := make(chan struct{})
	q.waiting = append(q.waiting, turn)
	e.mu.Unlock()

	near, stop := nearDeadline(ctx)
	defer stop()
	for waiting := true; waiting; {
		select {
		case <-turn:
			return &q.health, nil
		case <-ctx.Done():
			err, waiting = q.health.waitError(ctx), false
		case <-e.closing.Done():
			err, waiting = ErrClosed, false
		case <-near:
			e.heartbeatIfStale(key)
		}
	}
	e.mu.Lock()
	for i, t := range q.waiting {
		if t == turn {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			e.mu.Unlock()
			return nil, err
		}
	}
	e.mu.Unlock()
	e.leaveLocalQueue(key) // the turn came at the same time: hand it on
	return nil, err
}

// leaveLocalQueue ends a turn and begins the next one.
func (e *Engine) leaveLocalQueue(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.localQueues[key]
	if len(q.waiting) == 0 {
		delete(e.localQueues, key)
		return
	}
	close(q.waiting[0])
	q.waiting = q.waiting[1:]
}
