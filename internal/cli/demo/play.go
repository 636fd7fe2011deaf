package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

const (
	actHeartbeatTimeout = 450 * time.Millisecond
	actLimit            = 15 * time.Second // after which an act is given up
)

// errLate means that an act was given up.
var errLate = errors.New("not in time")

// play is an act that is performed. Perform runs in one goroutine; it waits for events by until and pause, which show them.
type play struct {
	*timeline.Act
	workers []*worker // of the first lanes
	perform func() error
	observe func(w *worker, e event) // is called for each event of a worker

	ctx      context.Context // ends when the demo is interrupted
	display  display
	start    time.Time
	deadline <-chan time.Time
	events   chan workerEvent
	observed time.Time // when the event was that is being observed; zero otherwise
	running  int       // processes

	ranks      map[uint64]int
	lastFence  uint64
	violations []string
	suspicions []string // violations, unless a process has lost a lease that it was to hold
	losses     int      // of leases, because the machine paused a process for longer than the TTL
}

// newPlay returns an act with a worker for each of the roles.
func newPlay(a *timeline.Act, roles ...string) *play {
	p := &play{Act: a, events: make(chan workerEvent), ranks: map[uint64]int{}}
	for i, r := range roles {
		p.workers = append(p.workers, &worker{id: a.Lanes[i], role: r})
	}
	return p
}

// playAll performs the acts one after the other.
func playAll(ctx context.Context, s *server, d display) (all []*timeline.Act, err error) {
	defer d.close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "lockkeeper-demo-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	plays, err := newActs(s, dir)
	if err != nil {
		return nil, err
	}
	for i, p := range plays {
		p.ctx, p.display = ctx, d
		defer p.stop()
		for _, next := range plays[i:min(i+2, len(plays))] { // the processes of the next act start during this one
			if err := next.launch(self, s.addr); err != nil {
				return all, err
			}
		}
		all = append(all, p.Act)
		d.begin(i+1, p.Act)
		err := p.run()
		d.end(p.Act)
		if err != nil {
			return all, err
		}
		p.stop()
	}
	return all, nil
}

// launch starts the workers, unless they have been started. They wait for a command.
func (p *play) launch(self, addr string) error {
	if p.running > 0 {
		return nil
	}
	for _, w := range p.workers {
		if err := w.start(self, addr, p.events); err != nil {
			return err
		}
		p.running++
	}
	return nil
}

// stop kills the workers and waits for their ends.
func (p *play) stop() {
	if p.running == 0 {
		return
	}
	for _, w := range p.workers {
		if w.cmd != nil && w.cmd.Process != nil {
			_ = w.cmd.Process.Kill()
		}
	}
	for p.running > 0 {
		if e := <-p.events; e.State == "" {
			p.running--
		}
	}
}

// run performs the act. The error is nil also if the act was given up; its outcome says so.
func (p *play) run() error {
	p.deadline = time.After(actLimit)
	p.start = time.Now()
	ready := func() bool {
		for _, w := range p.workers {
			if w.keeper == "" {
				return false
			}
		}
		return true
	}
	err := p.until(ready)
	p.start = time.Now()
	if err == nil {
		err = p.perform()
	}
	if errors.Is(err, errLate) {
		p.Finish(p.now(), timeline.Incomplete, fmt.Sprintf("the act was not over after %v", actLimit))
		err = nil
	}
	if len(p.violations) > 0 { // whatever else happened
		p.Finish(p.now(), timeline.Violated, strings.Join(p.violations, "; "))
	}
	return err
}

// finish ends the act. The verdict is what it shows unless something went wrong.
func (p *play) finish(format string, args ...any) {
	switch {
	case len(p.suspicions) > 0 && p.losses == 0:
		p.violations = append(p.violations, p.suspicions...)
	case len(p.suspicions) > 0:
		p.Finish(p.now(), timeline.Incomplete, "the machine paused a process for longer than its lease")
		return
	}
	p.Finish(p.now(), timeline.Kept, fmt.Sprintf(format, args...))
}

// violated notes that a guarantee was violated.
func (p *play) violated(format string, args ...any) {
	p.violations = append(p.violations, fmt.Sprintf(format, args...))
}

// suspected notes what violates a guarantee, unless the machine paused a process for longer than its lease. Such a process may
// also report late.
func (p *play) suspected(format string, args ...any) {
	p.suspicions = append(p.suspicions, fmt.Sprintf(format, args...))
}

func (p *play) now() time.Duration { return time.Since(p.start) }

// until handles events until the condition is true. It is checked after each event and every 40 ms.
func (p *play) until(is func() bool) error {
	tick := time.NewTicker(40 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case e := <-p.events:
			if err := p.handle(e); err != nil {
				return err
			}
		case <-tick.C:
			p.display.draw(p.Act, p.now())
		case <-p.deadline:
			return errLate
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
	return nil
}

// pause handles events for some time.
func (p *play) pause(d time.Duration) error {
	end := time.Now().Add(d)
	return p.until(func() bool { return !time.Now().Before(end) })
}

func (p *play) handle(e workerEvent) error {
	w := e.worker
	switch {
	case e.State == "":
		p.running--
		if w.state != stateKilled {
			return fmt.Errorf("%s ended unexpectedly", w.id)
		}
		return nil
	case e.Error != "":
		return fmt.Errorf("%s: %s", w.id, e.Error)
	case w.state == stateKilled: // sent before
		return nil
	}
	w.update(e.event)
	if e.Lost {
		p.losses++
	}
	if p.observe != nil && e.State != stateStarting {
		p.observed = e.At
		p.observe(w, e.event)
		p.observed = time.Time{}
	}
	return nil
}

// send sends a command to a worker. A worker that has ended is noticed by its event.
func (p *play) send(w *worker, command string) { _, _ = fmt.Fprintln(w.stdin, command) }

// at returns when the event was that is being observed, or what time it is.
func (p *play) at() time.Duration {
	if p.observed.IsZero() {
		return p.now()
	}
	return p.offset(p.observed)
}

// offset converts a time of an event.
func (p *play) offset(at time.Time) time.Duration {
	return min(max(at.Sub(p.start.Round(0)), 0), p.now()) // the events of other processes have no monotonic clock reading
}

// mark adds a change of a lane to the timeline.
func (p *play) mark(lane int, s timeline.State, label string) { p.Add(p.at(), lane, s, label) }

// lane returns the lane of a worker.
func (p *play) lane(w *worker) int {
	for i, x := range p.workers {
		if x == w {
			return i
		}
	}
	panic("bug: a worker of another act")
}

// note tells of an event that the verdict does not.
func (p *play) note(format string, args ...any) { p.noteAt(time.Now(), format, args...) }

// noteAt is note for an event that has been.
func (p *play) noteAt(at time.Time, format string, args ...any) {
	p.display.note(p.offset(at), fmt.Sprintf(format, args...))
}

// rank returns the label of a fence, and checks that it is larger than all before.
func (p *play) rank(fence uint64) string {
	if _, known := p.ranks[fence]; !known {
		p.ranks[fence] = len(p.ranks) + 1
		if fence < p.lastFence {
			p.suspected("a fence was smaller than an earlier one")
		}
		p.lastFence = max(p.lastFence, fence)
	}
	return fmt.Sprintf("+%d", p.ranks[fence])
}

// kill kills a worker.
func (p *play) kill(w *worker) error {
	if err := kill(w.cmd.Process); err != nil {
		return fmt.Errorf("killing %s: %w", w.id, err)
	}
	w.state, w.since = stateKilled, time.Now()
	p.mark(p.lane(w), timeline.Killed, "")
	return nil
}

// freeze suspends a worker.
func (p *play) freeze(w *worker) error {
	if err := process.Suspend(w.cmd.Process); err != nil {
		return fmt.Errorf("freezing %s: %w", w.id, err)
	}
	w.state, w.since = stateFrozen, time.Now()
	p.mark(p.lane(w), timeline.Frozen, "")
	return nil
}

// seconds formats a measured duration.
func seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	}
	return strconv.FormatFloat(d.Round(10*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
}
