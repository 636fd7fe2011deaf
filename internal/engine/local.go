package engine

import "context"

// localLine is the callers of this process that want one name, of which the first speaks to the server. So Redis sees
// one contender per process, however many there are.
type localLine struct {
	waiting []chan struct{}
}

// standInLine returns when it is the caller's turn; leave hands the turn on.
func (e *Engine) standInLine(ctx context.Context, key string) (leave func(), err error) {
	leave = func() { e.leaveLine(key) }
	e.mu.Lock()
	n := e.locals[key]
	if n == nil {
		e.locals[key] = &localLine{}
		e.mu.Unlock()
		return leave, nil
	}
	turn := make(chan struct{})
	n.waiting = append(n.waiting, turn)
	e.mu.Unlock()

	select {
	case <-turn:
		err = nil
	case <-ctx.Done():
		err = ErrNotAcquired
	case <-e.closing.Done():
		err = ErrClosed
	}
	if err == nil {
		return leave, nil
	}
	e.mu.Lock()
	for i, t := range n.waiting {
		if t == turn {
			n.waiting = append(n.waiting[:i], n.waiting[i+1:]...)
			e.mu.Unlock()
			return nil, err
		}
	}
	e.mu.Unlock()
	e.leaveLine(key) // the turn came as well: hand it on
	return nil, err
}

func (e *Engine) leaveLine(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.locals[key]
	if len(n.waiting) == 0 {
		delete(e.locals, key)
		return
	}
	close(n.waiting[0])
	n.waiting = n.waiting[1:]
}
