package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

const (
	lineName    = "orders:42"
	lineWorkers = 6
)

// line is the part of the demo in which workers stand in line for a fair lock, and are struck while they do.
type line struct {
	*show
	lock    *fair.Lock // for looking
	workers []*worker

	acquired int
	overlaps int
	falls    int    // fences that did not rise
	unfair   int    // who was served out of turn
	next     string // who should be next: the first in line
	acts     []*act // what is still to be done
	done     []*act
	freeSeen time.Time // when the last holder began to leave
}

// act is something that is done to the workers once.
type act struct {
	after time.Duration // since the start; and then when somebody gets in
	name  string
	what  string              // for the summary
	to    func(*worker) error // what is done to
	head  bool                // the first in line, or else to the holder
	state string              // of the worker then
	costs string              // why the next one gets in when it does
	w     *worker
	took  time.Duration // until the next one got in; counted from its release if the holder lives
}

func kill(w *worker) error { return w.cmd.Process.Kill() }

// demoLine is the lock that all contend for.
func demoLine(k *lockkeeper.Keeper) (*fair.Lock, error) {
	return fair.New(k, lineName, &fair.Options{TTL: demoTTL})
}

func newLine(s *show, k *lockkeeper.Keeper) (*line, error) {
	lock, err := demoLine(k)
	if err != nil {
		return nil, err
	}
	l := &line{show: s, lock: lock, acts: []*act{
		{after: time.Second, name: "is killed while it holds the lock", what: "killed while holding", to: kill,
			state: "killed", costs: fmt.Sprintf("its lease was of %v at the most", demoTTL)},
		{after: 3500 * time.Millisecond, name: "is killed while it is the first in line", what: "killed while first", to: kill,
			head: true, state: "killed", costs: "nobody heard that it was its turn"},
		{after: 4500 * time.Millisecond, name: "is frozen while it is the first in line", what: "frozen while first",
			to: func(w *worker) error { return process.Suspend(w.cmd.Process) }, head: true, state: "frozen",
			costs: fmt.Sprintf("its heartbeat counted for %v", demoLifetime)},
	}}
	for i := range lineWorkers {
		l.workers = append(l.workers, &worker{id: fmt.Sprintf("worker-%d", i+1), role: "stand-in-line"})
	}
	return l, nil
}

func (l *line) take(w *worker, e event, stopping bool) {
	if e.State == "leaves" {
		l.freeSeen = w.since
	}
	if e.State != "holds" {
		return
	}
	l.acquired++
	struck := len(l.done) > 0 && l.done[len(l.done)-1].took == 0
	if e.Inside != "" && !(struck && l.done[len(l.done)-1].w.id == e.Inside) {
		l.overlaps++
	}
	if e.Fence <= e.LastFence {
		l.falls++
	}
	queue := l.waiting()
	if struck {
		a := l.done[len(l.done)-1]
		from := a.w.since
		if a.head {
			from = l.freeSeen
		}
		a.took = max(w.since.Sub(from), time.Microsecond)
		l.say("%s got in %v later: %s", w.id, a.took.Round(100*time.Microsecond), a.costs)
		if a.state == "frozen" {
			process.Resume(a.w.cmd.Process)
			a.w.state, a.w.since = "waits", time.Now()
			l.say("%s goes on, and stands in line again", a.w.id)
		}
	} else if l.next != "" && l.next != w.id && !stopping { // who is told to stop leaves the line
		l.unfair++
		l.say("%s was served, but it was the turn of %s", w.id, l.next)
	}
	l.next = ""
	if len(queue) > 0 {
		l.next = queue[0]
	}
	if !l.tty {
		l.say("%s holds it, fence %d; in line: %s", w.id, e.Fence, strings.Join(queue, " "))
	}
	if !stopping {
		l.act(w)
	}
}

// waiting is who waits, in order, as the server has it.
func (l *line) waiting() []string {
	return look(l.workers, l.lock.Waiters, func(w lockkeeper.Waiter) string { return w.Keeper })
}

// act does what is due to the holder, or to the first in line behind it.
func (l *line) act(holder *worker) {
	if len(l.acts) == 0 || time.Since(l.start) < l.acts[0].after {
		return
	}
	a := l.acts[0]
	a.w = holder
	if a.head {
		queue := l.waiting()
		if len(queue) < 2 {
			return // the next time
		}
		for _, w := range l.workers {
			if w.id == queue[0] {
				a.w = w
			}
		}
	}
	l.acts = l.acts[1:]
	if err := a.to(a.w); err != nil {
		l.say("%s cannot be struck here: %v", a.w.id, err)
		return
	}
	l.done = append(l.done, a)
	l.next = ""
	a.w.state, a.w.since = a.state, time.Now()
	l.say("%s %s", a.w.id, a.name)
}

func (l *line) paint(b *strings.Builder) {
	fmt.Fprintln(b)
	for _, w := range l.workers {
		w.paint(b, w.state)
	}
	fmt.Fprintf(b, "\n  in line: %s\n", strings.Join(l.waiting(), " "))
	fmt.Fprintf(b, "  %d acquisitions, %d overlaps\n", l.acquired, l.overlaps)
}

func (l *line) sum() bool {
	rising := "yes"
	if l.falls > 0 {
		rising = fmt.Sprintf("no, %d were not larger than the one before", l.falls)
	}
	fmt.Fprintf(l.out, "\nacquisitions:           %d by %d processes\n", l.acquired, len(l.workers))
	fmt.Fprintf(l.out, "overlaps seen:          %d\n", l.overlaps)
	fmt.Fprintf(l.out, "served out of turn:     %d\n", l.unfair)
	fmt.Fprintf(l.out, "fences strictly rising: %s\n", rising)
	missing := len(l.acts)
	for _, a := range l.done {
		fmt.Fprintf(l.out, "%-23s %s; the next one ran %v later (%s)\n", a.what+":", a.w.id, a.took.Round(100*time.Microsecond), a.costs)
		if a.took == 0 {
			missing++
		}
	}
	return l.overlaps == 0 && l.unfair == 0 && l.falls == 0 && l.acquired > 0 && missing == 0
}
