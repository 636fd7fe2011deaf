package views

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

// LongWaits logs the waits of a keeper that have become long, each lock's at most once within Bound. However many there are, they are
// logged one after the other, so that the server is asked for one lock at a time.
type LongWaits struct {
	Bound time.Duration // after which a wait is long; 0: never

	mu     sync.Mutex          // guards the fields below
	last   map[string]struct{} // the locks of which a wait was logged within Bound, by the key of the queue
	inTime []loggedWait        // the same, oldest first
	due    []*longWait
	busy   bool // a goroutine logs those that are due
}

// loggedWait says when a wait for a lock was logged; key is that of the lock's queue.
type loggedWait struct {
	key string
	at  time.Time
}

// longWait is one wait that is watched.
type longWait struct {
	of      *LongWaits
	lock    *server.Resource
	began   time.Time
	holders func(ctx context.Context, most int) ([]Holder, int, error)
	over    atomic.Bool // nobody waits any more
}

// Watch logs who holds the lock if stop is not called within Bound. holders reads the first leases, no more than most, and how many there are.
func (ws *LongWaits) Watch(l *server.Resource, holders func(ctx context.Context, most int) ([]Holder, int, error)) (stop func()) {
	if ws.Bound == 0 {
		return func() {}
	}
	w := &longWait{of: ws, lock: l, began: time.Now(), holders: holders}
	timer := time.AfterFunc(ws.Bound, w.becameLong)
	return func() {
		w.over.Store(true)
		timer.Stop()
	}
}

// becameLong logs the wait, and those that become long meanwhile, unless another goroutine is logging.
func (w *longWait) becameLong() {
	if !w.of.add(w) {
		return
	}
	for next := w.of.next(); next != nil; next = w.of.next() {
		next.log()
	}
}

// add adds a wait to those that are due, unless one for the same lock was logged lately. It reports whether the caller must log what is due.
func (ws *LongWaits) add(w *longWait) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !ws.mayLogLocked(w.lock.Key(), time.Now(), ws.Bound) {
		return false
	}
	ws.due = append(ws.due, w)
	first := !ws.busy
	ws.busy = true
	return first
}

// mayLogLocked reports whether no wait for this lock was logged within every, and if so notes that one is now.
func (ws *LongWaits) mayLogLocked(key string, now time.Time, every time.Duration) bool {
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

// next takes the first wait that is due. If there is none, it returns nil, and the caller must log no more.
func (ws *LongWaits) next() *longWait {
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
	s := l.Server()
	if w.over.Load() || !s.BeginWork(false) {
		return
	}
	defer s.EndWork()
	ctx, cancel := context.WithTimeout(s.Closing(), w.of.Bound)
	defer cancel()
	list, total, err := w.holders(ctx, maxDescribed)
	args := []any{"kind", l.Kind(), "name", l.Name(), "waited", time.Since(w.began)}
	switch {
	case s.Closing().Err() != nil:
		return
	case err != nil:
		args = append(args, "error", err)
	default:
		args = append(args, "holders", total, "held_by", describe(list, total))
	}
	s.Config.Log.Warn("lockkeeper: a call has been waiting for a long time", args...)
}

const maxDescribed = 3 // holders

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
