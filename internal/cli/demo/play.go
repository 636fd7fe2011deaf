package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

// errLate means that an act was given up.
var errLate = errors.New("the act was not over after 15s")

// play is an act that is performed. One goroutine runs perform, which sends commands to the workers and waits for their events by
// until and pause.
type play struct {
	timeline.Act
	kind    string // of the lock
	noun    string // for what is done with a lease
	limit   int    // of workers that hold the lock at the same time
	others  int    // number of the last lanes, which stand for no worker
	perform func(p *play) (verdict string)
	observe func(w *worker, e event) // is called for each event; perform sets it

	ctx        context.Context // ends when the demo is interrupted, or the act given up
	keeper     *lockkeeper.Keeper
	display    *display
	start      time.Time
	events     chan event
	workers    []*worker
	running    int // number of their processes
	fences     int // number of those that were granted
	lastFence  uint64
	violations []string
	losses     int // of leases, because the machine paused a process for longer than the TTL
}

// worker is a process of the demo.
type worker struct {
	name   string
	lane   int
	keeper string // ID; "" until the worker is ready
	cmd    *exec.Cmd
	stdin  io.Writer

	state          timeline.State
	grants, reads  int       // so far
	granted, freed time.Time // the last grant, and the last release
	fence          uint64    // of the last grant
	rank           string    // of the fence, among those of the act
	lost           bool      // the last lease was lost before it was released
}

// launch starts the process of a worker.
func (p *play) launch(w *worker, addr string) {
	self, err := os.Executable()
	p.fail(err)
	w.cmd = exec.Command(self, "demo-worker", addr, p.kind)
	w.cmd.Stderr = os.Stderr
	process.KillWithParent(w.cmd)
	w.stdin, err = w.cmd.StdinPipe()
	p.fail(err)
	out, err := w.cmd.StdoutPipe()
	p.fail(err)
	p.fail(w.cmd.Start())
	p.workers = append(p.workers, w)
	p.running++
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			e := event{worker: w}
			if json.Unmarshal(sc.Bytes(), &e) == nil {
				p.events <- e
			}
		}
		_ = w.cmd.Wait()
		p.events <- event{worker: w, ended: true}
	}()
}

// send sends a command. If the worker has ended, an event says so.
func (w *worker) send(command string) { _, _ = fmt.Fprintln(w.stdin, command) }

// run starts the workers, performs the act and stops them. The error is nil if the outcome is Kept.
func (p *play) run(ctx context.Context, addr string, k *lockkeeper.Keeper, d *display) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 15*time.Second, errLate)
	defer cancel()
	p.ctx, p.keeper, p.display, p.events = ctx, k, d, make(chan event)
	defer p.stop()
	verdict, err := p.try(addr)
	p.End = p.since(time.Now())
	if n := p.Together(timeline.Holding, timeline.Holding); n > p.limit {
		p.violated("%d processes held the lock at the same time", n)
	}
	switch {
	case len(p.violations) > 0 && p.losses == 0: // whatever else happened
		p.Outcome, p.Verdict = timeline.Violated, strings.Join(p.violations, "; ")
		return &exit.Error{Code: exitViolated, Err: errors.New("the demo failed: a guarantee was violated")}
	case len(p.violations) > 0:
		p.Outcome, p.Verdict = timeline.Incomplete, "the machine paused a process for longer than its lease"
	case errors.Is(context.Cause(p.ctx), errLate):
		p.Outcome, p.Verdict = timeline.Incomplete, errLate.Error()
	case err != nil:
		return err
	default:
		p.Outcome, p.Verdict = timeline.Kept, verdict
		return nil
	}
	return &exit.Error{Code: exitIncomplete, Err: errors.New("the machine was too slow for the demo")}
}

// failure is what fail panics with.
type failure struct{ error }

// fail ends the act with an error, unless it is nil. It saves perform, which reads like a script, from handling errors.
func (p *play) fail(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// try starts the workers and performs the act. It returns the error by which this failed.
func (p *play) try(addr string) (verdict string, err error) {
	defer func() {
		x := recover()
		if f, ok := x.(failure); ok {
			err = f.error
		} else if x != nil {
			panic(x)
		}
	}()
	p.start = time.Now()
	for i, name := range p.Lanes[:len(p.Lanes)-p.others] {
		p.launch(&worker{name: name, lane: i}, addr)
	}
	for _, w := range p.workers {
		p.until(func() bool { return w.keeper != "" })
	}
	p.start = time.Now()
	return p.perform(p), nil
}

// stop kills the workers and waits until they have ended.
func (p *play) stop() {
	for _, w := range p.workers {
		_ = w.cmd.Process.Kill()
	}
	for p.running > 0 {
		if e := <-p.events; e.ended {
			p.running--
		}
	}
}

// violated notes that a guarantee was violated. It does not count if the machine paused a process for longer than its lease.
func (p *play) violated(format string, args ...any) {
	p.violations = append(p.violations, fmt.Sprintf(format, args...))
}

// since returns the time from the start of the act to a time of this process or of a worker.
func (p *play) since(at time.Time) time.Duration {
	return max(at.Round(0).Sub(p.start.Round(0)), 0) // by the clock of the machine: events have no monotonic clock reading
}

// until handles events until the condition is true. It is checked after each event and every 40 ms.
func (p *play) until(is func() bool) {
	tick := time.NewTicker(40 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case e := <-p.events:
			p.handle(e)
		case <-tick.C:
			p.display.draw(&p.Act, p.since(time.Now()))
		case <-p.ctx.Done():
			p.fail(p.ctx.Err())
		}
	}
}

// pause handles events for some time.
func (p *play) pause(d time.Duration) {
	end := time.Now().Add(d)
	p.until(func() bool { return !time.Now().Before(end) })
}

// handle applies an event to its worker and to the timeline.
func (p *play) handle(e event) {
	w := e.worker
	switch {
	case e.ended:
		p.running--
		if w.state != timeline.Killed {
			p.fail(fmt.Errorf("%s ended unexpectedly", w.name))
		}
		return
	case e.Error != "":
		p.fail(fmt.Errorf("%s: %s", w.name, e.Error))
	case w.state == timeline.Killed: // sent before
		return
	case e.Keeper != "":
		w.keeper = e.Keeper
		return
	case e.Writes:
		p.observe(w, e)
		return
	}
	label, count := "", ""
	switch {
	case e.Reads > 0:
		w.reads += e.Reads
		p.mark(w, e.Since, timeline.Sharing, "", "")
		count = p.millions(w) + " M/s"
	case e.State == timeline.Holding:
		w.grants, w.granted, w.fence = w.grants+1, e.At, e.Fence
		if count = fmt.Sprint(w.grants, " ", p.noun); w.grants != 1 {
			count += "s"
		}
		if p.limit == 1 {
			w.rank = p.rank(e.Fence)
			label = w.rank
		}
	case e.State == timeline.Idle:
		w.freed, w.lost = e.At, e.Lost
	}
	if e.Lost {
		p.losses++
	}
	p.mark(w, e.At, e.State, label, count)
	p.observe(w, e)
}

// millions returns how many millions of times a second workers have read.
func (p *play) millions(workers ...*worker) string {
	reads := 0
	for _, w := range workers {
		reads += w.reads
	}
	return fmt.Sprintf("%.2f", float64(reads)/1e6/time.Since(p.start).Seconds())
}

// rounded rounds a measured duration.
func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// mark notes that a worker is in a state since a time.
func (p *play) mark(w *worker, at time.Time, s timeline.State, label, count string) {
	w.state = s
	p.Add(timeline.Event{At: p.since(at), Lane: w.lane, State: s, Label: label, Count: count})
}

// note says what happened at a time.
func (p *play) note(at time.Time, format string, args ...any) {
	p.Notes = append(p.Notes, timeline.Event{At: p.since(at), Label: fmt.Sprintf(format, args...)})
}

// rank numbers a fence, and checks that it is larger than the one before.
func (p *play) rank(fence uint64) string {
	if fence <= p.lastFence {
		p.violated("fence %d was granted after %d", fence, p.lastFence)
	}
	p.fences, p.lastFence = p.fences+1, fence
	return fmt.Sprintf("+%d", p.fences)
}

// force notes that something was done to the process of a worker, and returns when.
func (p *play) force(w *worker, s timeline.State, err error) (at time.Time) {
	p.fail(err)
	at = time.Now()
	p.mark(w, at, s, "", "")
	return at
}

// holder waits until a worker holds the lock.
func (p *play) holder() *worker {
	i := -1
	p.until(func() bool {
		i = slices.IndexFunc(p.workers, func(w *worker) bool { return w.state == timeline.Holding })
		return i >= 0
	})
	return p.workers[i]
}

// release lets a worker release the lock, and waits until it has.
func (p *play) release(w *worker) {
	before := w.freed
	w.send("release")
	p.until(func() bool { return !w.freed.Equal(before) })
}

// inspect returns the state of the lock at the server.
func (p *play) inspect() *admin.LockState {
	i, err := admin.Inspect(p.ctx, p.keeper, lockkeeper.Kind(p.kind), p.kind)
	p.fail(err)
	return i
}
