package engine

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// This file logs who keeps callers waiting for long.

// WatchWait logs who holds the lock if stop is not called within the keeper's LongWait; at most once per lock and LongWait, however
// many wait. holders reads who holds it.
func (l *Lock) WatchWait(holders func(ctx context.Context) ([]Holder, error)) (stop func()) {
	bound := l.e.cfg.LongWait
	if bound == 0 {
		return func() {}
	}
	began := time.Now()
	timer := time.AfterFunc(bound, func() {
		if !l.e.mayLogWait(l.key(keyQueue), time.Now()) || !l.e.beginWork(false) {
			return
		}
		defer l.e.endWork()
		ctx, cancel := context.WithTimeout(l.e.closing, bound)
		defer cancel()
		list, err := holders(ctx)
		args := []any{"kind", l.spec.Scripts.Kind, "name", l.spec.Name, "waited", time.Since(began), "holders", len(list)}
		switch {
		case l.e.closing.Err() != nil:
			return
		case err != nil:
			args = append(args, "error", err)
		default:
			args = append(args, "held_by", describe(list))
		}
		l.e.cfg.Log.Warn("lockkeeper: a call has been waiting for a long time", args...)
	})
	return func() { timer.Stop() }
}

// mayLogWait reports whether it is time for a line about this lock, and notes that there is one.
func (e *Engine) mayLogWait(key string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for other, at := range e.longWaits {
		if now.Sub(at) >= e.cfg.LongWait {
			delete(e.longWaits, other)
		}
	}
	if _, logged := e.longWaits[key]; logged {
		return false
	}
	e.longWaits[key] = now
	return true
}

// maxDescribed is how many holders are described.
const maxDescribed = 3

// describe returns who holds a lock and since when, by the server's clock.
func describe(list []Holder) string {
	if len(list) == 0 {
		return "nobody at present"
	}
	var all []string
	for i, h := range list {
		if i == maxDescribed {
			all = append(all, fmt.Sprintf("and %d others", len(list)-i))
			break
		}
		who := h.Owner
		if who == "" {
			who = "token " + h.Token
		}
		if h.Fence > 0 {
			who += " since " + time.UnixMicro(int64(h.Fence)).UTC().Format(time.RFC3339Nano)
		}
		all = append(all, who)
	}
	return strings.Join(all, ", ")
}
