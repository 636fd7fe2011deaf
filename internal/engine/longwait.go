package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// This file logs who keeps callers waiting for long.

// longWaits are the waits that have become long. However many there are, they are logged one after the other, so that the server is
// asked for one lock at a time.
type longWaits struct {
	mu     sync.Mutex          // guards the fields below
	last   map[string]struct{} // the locks of which a wait was logged lately, by the name's queue
	inTime []loggedWait        // the same, in order
	due    []*longWait
	busy   bool // a goroutine logs those that are due
}

// loggedWait is when a line about a lock was due, by the name's queue.
type loggedWait struct {
	key string
	at  time.Time
}

// longWait is one wait that is watched.
type longWait struct {
	lock    *Lock
	began   time.Time
	holders func(ctx context.Context, most int) ([]Holder, int, error)
	over    atomic.Bool // nobody waits any more
}

// WatchWait logs who holds the lock if stop is not called within the keeper's LongWait; at most once per lock and LongWait, however
// many wait. holders reads the first of those that hold it, and how many there are.
func (l *Lock) WatchWait(holders func(ctx context.Context, most int) ([]Holder, int, error)) (stop func()) {
	bound := l.e.cfg.LongWait
	if bound == 0 {
		return func() {}
	}
	w := &longWait{lock: l, began: time.Now(), holders: holders}
	timer := time.AfterFunc(bound, w.becameLong)
	return func() {
		w.over.Store(true)
		timer.Stop()
	}
}

// becameLong logs the wait, and those that become long meanwhile, unless a goroutine does already.
func (w *longWait) becameLong() {
	e := w.lock.e
	if !e.longWaits.add(w, e.cfg.LongWait) {
		return
	}
	for {
		next := e.longWaits.next()
		if next == nil {
			return
		}
		next.log()
	}
}

// add notes that a wait is to be logged, unless one for the same lock was lately. It reports whether the caller is to log what is due.
func (ws *longWaits) add(w *longWait, every time.Duration) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !ws.mayLogLocked(w.lock.KeyOf(server.QueueKey), time.Now(), every) {
		return false
	}
	ws.due = append(ws.due, w)
	first := !ws.busy
	ws.busy = true
	return first
}

// mayLogLocked reports whether it is time for a line about this lock, and notes that there is one.
func (ws *longWaits) mayLogLocked(key string, now time.Time, every time.Duration) bool {
	for len(ws.inTime) > 0 && now.Sub(ws.inTime[0].at) >= every {
		delete(ws.last, ws.inTime[0].key)
		ws.inTime = ws.inTime[1:]
	}
	if _, logged := ws.last[key]; logged {
		return false
	}
	if ws.last == nil {
		ws.last = map[string]struct{}{}
	}
	ws.last[key] = struct{}{}
	ws.inTime = append(ws.inTime, loggedWait{key, now})
	return true
}

// next returns a wait that is due, or nil: then the caller has ended.
func (ws *longWaits) next() *longWait {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.due) == 0 {
		ws.due, ws.busy = nil, false
		return nil
	}
	w := ws.due[0]
	ws.due = ws.due[1:]
	return w
}

// log logs the wait, unless it has ended.
func (w *longWait) log() {
	l := w.lock
	e := l.e
	if w.over.Load() || !e.BeginWork(false) {
		return
	}
	defer e.EndWork()
	ctx, cancel := context.WithTimeout(e.Closing(), e.cfg.LongWait)
	defer cancel()
	list, total, err := w.holders(ctx, maxDescribed)
	args := []any{"kind", l.spec.Scripts.Kind, "name", l.spec.Name, "waited", time.Since(w.began), "holders", total}
	switch {
	case e.Closing().Err() != nil:
		return
	case err != nil:
		args = append(args, "error", err)
	default:
		args = append(args, "held_by", describe(list, total))
	}
	e.Config.Log.Warn("lockkeeper: a call has been waiting for a long time", args...)
}

// maxDescribed is how many holders are described.
const maxDescribed = 3

// describe returns who holds a lock and since when, by the server's clock. list has the first of them.
func describe(list []Holder, total int) string {
	if len(list) == 0 {
		return "nobody at present"
	}
	var all []string
	for _, h := range list[:min(len(list), maxDescribed)] {
		who := h.Owner
		if who == "" {
			who = "token " + protocol.Shown(h.Token)
		}
		if h.Fence > 0 {
			who += " since " + time.UnixMicro(int64(h.Fence)).UTC().Format(time.RFC3339Nano)
		}
		all = append(all, who)
	}
	if others := total - len(all); others > 0 {
		all = append(all, fmt.Sprintf("and %d others", others))
	}
	return strings.Join(all, ", ")
}
