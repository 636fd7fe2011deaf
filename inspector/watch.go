package inspector

import (
	"context"
	"sync"
	"time"
)

// A watch looks at one thing, the list or a lock, while somebody wants to see it, and keeps what it saw last. However many
// pages want to see it, one goroutine looks.
type watch[T any] struct {
	ctx      context.Context // of the handler
	look     func(context.Context) (T, error)
	timeout  time.Duration // of a look
	interval time.Duration
	pace     *pace
	started  func(func()) // runs a function in a goroutine that the handler waits for

	mu      sync.Mutex
	viewers int  // streams that want to see each state
	wanted  bool // a page waits for the next state
	running bool // the goroutine exists
	used    time.Time
	state   state[T]
	changed chan struct{} // closed when the state changes
}

// state is what was seen last.
type state[T any] struct {
	value T
	at    time.Time // of value; zero if there is none yet
	err   error     // of the last look; nil if value is from that
}

// current returns a state that is not older than the interval, or the last one if there is no newer one within patience.
func (w *watch[T]) current(ctx context.Context, patience time.Duration) state[T] {
	w.mu.Lock()
	w.used = time.Now()
	if !w.state.at.IsZero() && time.Since(w.state.at) < w.interval {
		defer w.mu.Unlock()
		return w.state
	}
	w.wanted = true
	w.runLocked()
	changed := w.changed
	w.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	case <-w.ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// join makes the watch look in each interval, until leave is called.
func (w *watch[T]) join() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.viewers++
	w.runLocked()
}

func (w *watch[T]) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.viewers--
	w.used = time.Now()
}

// last returns the last state and a channel that is closed when there is a newer one.
func (w *watch[T]) last() (state[T], <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state, w.changed
}

// idle returns when the watch was last used, and false if it is in use.
func (w *watch[T]) idle() (since time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used, w.viewers == 0 && !w.running
}

func (w *watch[T]) runLocked() {
	if !w.running && w.ctx.Err() == nil {
		w.running = true
		w.started(w.run)
	}
}

// run looks until nobody wants to see anything.
func (w *watch[T]) run() {
	for w.pace.begin(w.ctx) && w.needed() {
		began := time.Now()
		ctx, cancel := context.WithTimeout(w.ctx, w.timeout)
		value, err := w.look(ctx)
		cancel()
		w.pace.end(began, err == nil)
		w.publish(value, err)
	}
}

// needed reports whether another look is needed. If not, the goroutine must end.
func (w *watch[T]) needed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.viewers > 0 || w.wanted {
		return true
	}
	w.running = false
	w.pace.cancel()
	return false
}

func (w *watch[T]) publish(value T, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = false
	w.state.err = err
	if err == nil {
		w.state.value, w.state.at = value, time.Now()
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// pace keeps looks apart. Watches that share one look in turn.
type pace struct {
	interval time.Duration
	turn     chan struct{} // has an element while a look is not in progress
	next     time.Time     // the earliest begin of the next look; owned by who has the turn
}

func newPace(interval time.Duration) *pace {
	p := &pace{interval: interval, turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p
}

// begin waits until a look may begin. It returns false if ctx has ended before; otherwise cancel or end must be called.
func (p *pace) begin(ctx context.Context) bool {
	select {
	case <-p.turn:
	case <-ctx.Done():
		return false
	}
	timer := time.NewTimer(time.Until(p.next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		p.cancel()
		return false
	}
}

// end ends a look. After one that took long there is a pause of three times as long, so that at most a quarter of the time is
// spent on looking; a look that failed may just have waited for an answer.
func (p *pace) end(began time.Time, ok bool) {
	p.next = began.Add(p.interval)
	if now := time.Now(); ok && now.Add(3*now.Sub(began)).After(p.next) {
		p.next = now.Add(3 * now.Sub(began))
	} else if now.After(p.next) {
		p.next = now
	}
	p.turn <- struct{}{}
}

// cancel is for a look that was not necessary.
func (p *pace) cancel() { p.turn <- struct{}{} }
