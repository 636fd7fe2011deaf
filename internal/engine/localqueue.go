package engine

import (
	"context"
	"time"
)

// localQueue is the callers of this process that want one name, of which the first speaks to the server. So Redis sees
// one contender per process, however many there are.
type localQueue struct {
	health  ServerHealth // of whoever is the first
	waiting []chan struct{}
}

// waitLocally returns when it is the caller's turn, with what those before it know of the server; leave hands the turn
// on. What is known may be maxAge old.
func (e *Engine) waitLocally(ctx context.Context, key string, maxAge time.Duration) (shared *ServerHealth, leave func(), err error) {
	leave = func() { e.leaveLocalQueue(key) }
	e.mu.Lock()
	n := e.localQueues[key]
	if n == nil {
		n = &localQueue{health: ServerHealth{maxAge: maxAge}}
		e.localQueues[key] = n
		e.mu.Unlock()
		return &n.health, leave, nil
	}
	turn := make(chan struct{})
	n.waiting = append(n.waiting, turn)
	e.mu.Unlock()

	near, stop := nearDeadline(ctx)
	defer stop()
	for waiting := true; waiting; {
		select {
		case <-turn:
			return &n.health, leave, nil
		case <-ctx.Done():
			err, waiting = n.health.waitEnded(ctx), false
		case <-e.closing.Done():
			err, waiting = ErrClosed, false
		case <-near:
			e.askNow(key)
		}
	}
	e.mu.Lock()
	for i, t := range n.waiting {
		if t == turn {
			n.waiting = append(n.waiting[:i], n.waiting[i+1:]...)
			e.mu.Unlock()
			return nil, nil, err
		}
	}
	e.mu.Unlock()
	e.leaveLocalQueue(key) // the turn came as well: hand it on
	return nil, nil, err
}

func (e *Engine) leaveLocalQueue(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.localQueues[key]
	if len(n.waiting) == 0 {
		delete(e.localQueues, key)
		return
	}
	close(n.waiting[0])
	n.waiting = n.waiting[1:]
}
