package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

const (
	demoName     = "orders:42"
	demoTTL      = 2 * time.Second
	demoLifetime = 1500 * time.Millisecond // of a waiter's heartbeat
	demoWorkers  = 6
)

func demoCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch processes contend for a lock on an embedded server",
		Long: `Watch six processes contend for one fair lock, on a server that is embedded in the demo: nothing needs to be
installed. They are served in the order in which they came.

A holder is killed (SIGKILL) while it works; the next one gets in when its lease of 2 s ends. Then the first in line is
killed, which costs the others nothing, and then the first in line is frozen (SIGSTOP), which costs them at most the
lifetime of its heartbeat, 1.5 s. At the end the demo says how often the lock was acquired, whether two were ever inside
at once, whether anybody was served out of turn, and whether the fences rose all the time. It takes about ten seconds.
On a terminal it draws, otherwise it prints lines.`,
		Example: "  lockkeeper demo\n  lockkeeper demo | head -20",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("demo takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return demo(os.Stdout) },
	}
	return c
}

// show is the state of the demo.
type show struct {
	out     io.Writer
	tty     bool
	start   time.Time
	lock    *fair.Lock // for looking
	workers []*worker
	drawn   int // lines on the screen

	acquired int
	overlaps int
	falls    int    // fences that did not rise
	unfair   int    // who was served out of turn
	next     string // who should be next: the keeper of the first in line
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

// worker is one process of the demo.
type worker struct {
	id     string
	keeper string
	cmd    *exec.Cmd
	in     io.Closer
	state  string
	since  time.Time
	fence  uint64
	leases int
}

// told is an event with the worker that told it; an event without a state says that the worker has ended.
type told struct {
	w *worker
	e event
}

func kill(w *worker) error { return w.cmd.Process.Kill() }

func demo(out *os.File) error {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	k, lock, err := demoLock(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s := &show{out: out, tty: isTerminal(out), start: time.Now(), lock: lock, acts: []*act{
		{after: 2 * time.Second, name: "is killed while it holds the lock", what: "killed while holding", to: kill,
			state: "killed", costs: fmt.Sprintf("its lease was of %v at the most", demoTTL)},
		{after: 5 * time.Second, name: "is killed while it is the first in line", what: "killed while first", to: kill,
			head: true, state: "killed", costs: "nobody heard that it was its turn"},
		{after: 6 * time.Second, name: "is frozen while it is the first in line", what: "frozen while first",
			to: func(w *worker) error { return freeze(w.cmd.Process) }, head: true, state: "frozen",
			costs: fmt.Sprintf("its heartbeat counted for %v", demoLifetime)},
	}}
	events := make(chan told)
	for i := range demoWorkers {
		w, err := startWorker(self, server.Addr(), fmt.Sprintf("worker-%d", i+1), events)
		if err != nil {
			return err
		}
		defer func() { _ = w.cmd.Process.Kill() }()
		s.workers = append(s.workers, w)
	}
	s.say("six processes contend for the fair lock %q; its lease is %v", demoName, demoTTL)

	end := time.After(10 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	stopping := false
	for alive := len(s.workers); alive > 0; {
		select {
		case t := <-events:
			if t.e.State == "" {
				alive--
				continue
			}
			s.take(t)
			if t.e.State == "holds" && !stopping {
				s.act(t.w)
			}
		case <-end:
			stopping = true
			for _, w := range s.workers {
				thaw(w.cmd.Process)
				_ = w.in.Close()
			}
		case <-tick.C:
			s.draw()
		}
	}
	return s.sum()
}

func startWorker(self, addr, id string, events chan<- told) (*worker, error) {
	w := &worker{id: id, state: "starts", since: time.Now()}
	w.cmd = exec.Command(self, "demo-worker", "--addr", addr, "--id", id)
	w.cmd.Stderr = os.Stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			var e event
			if json.Unmarshal(sc.Bytes(), &e) == nil && e.State != "" {
				events <- told{w, e}
			}
		}
		_ = w.cmd.Wait()
		events <- told{w: w}
	}()
	return w, nil
}

// take notes what a worker tells.
func (s *show) take(t told) {
	now := time.Now()
	if t.e.Keeper != "" {
		t.w.keeper = t.e.Keeper
	}
	t.w.state, t.w.since = t.e.State, now
	if t.e.Error != "" {
		s.say("%s: %s", t.w.id, t.e.Error)
	}
	if t.e.State == "leaves" {
		s.freeSeen = now
	}
	if t.e.State != "holds" {
		return
	}
	s.acquired++
	t.w.fence = t.e.Fence
	t.w.leases++
	struck := len(s.done) > 0 && s.done[len(s.done)-1].took == 0
	if t.e.Inside != "" && !(struck && s.done[len(s.done)-1].w.id == t.e.Inside) {
		s.overlaps++
	}
	if t.e.Fence <= t.e.LastFence {
		s.falls++
	}
	queue := s.waiting()
	if struck {
		a := s.done[len(s.done)-1]
		from := a.w.since
		if a.head {
			from = s.freeSeen
		}
		a.took = max(now.Sub(from), time.Microsecond)
		s.say("%s got in %v later: %s", t.w.id, a.took.Round(100*time.Microsecond), a.costs)
		if a.state == "frozen" {
			thaw(a.w.cmd.Process)
			a.w.state, a.w.since = "waits", now
			s.say("%s goes on, and stands in line again", a.w.id)
		}
	} else if s.next != "" && s.next != t.w.id {
		s.unfair++
		s.say("%s was served, but it was the turn of %s", t.w.id, s.next)
	}
	s.next = ""
	if len(queue) > 0 {
		s.next = queue[0]
	}
	if !s.tty {
		s.say("%s holds it, fence %d; in line: %s", t.w.id, t.e.Fence, strings.Join(queue, " "))
	}
}

// waiting is who waits, in order, as the server has it.
func (s *show) waiting() []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := s.lock.Waiters(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var ids []string
	for _, x := range list {
		for _, w := range s.workers {
			if w.keeper == x.Keeper {
				ids = append(ids, w.id)
			}
		}
	}
	return ids
}

// act does what is due to the holder, or to the first in line behind it.
func (s *show) act(holder *worker) {
	if len(s.acts) == 0 || time.Since(s.start) < s.acts[0].after {
		return
	}
	a := s.acts[0]
	a.w = holder
	if a.head {
		queue := s.waiting()
		if len(queue) < 2 {
			return // the next time
		}
		for _, w := range s.workers {
			if w.id == queue[0] {
				a.w = w
			}
		}
	}
	s.acts = s.acts[1:]
	if err := a.to(a.w); err != nil {
		s.say("%s cannot be struck here: %v", a.w.id, err)
		return
	}
	s.done = append(s.done, a)
	s.next = ""
	a.w.state, a.w.since = a.state, time.Now()
	s.say("%s %s", a.w.id, a.name)
}

// say prints a line, above the drawing if there is one.
func (s *show) say(format string, args ...any) {
	s.erase()
	fmt.Fprintf(s.out, "%6.3fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// draw paints the workers, over what was painted before.
func (s *show) draw() {
	if !s.tty {
		return
	}
	s.erase()
	var b strings.Builder
	fmt.Fprintf(&b, "\n")
	for _, w := range s.workers {
		mark := map[string]string{"holds": "\x1b[32m● holds \x1b[0m", "waits": "○ waits ", "killed": "\x1b[31m✗ killed\x1b[0m", "frozen": "\x1b[36m✻ frozen\x1b[0m"}[w.state]
		if mark == "" {
			mark = "  " + fmt.Sprintf("%-6s", w.state)
		}
		fmt.Fprintf(&b, "  %s  %s %6.2fs  %3d leases  last fence %d\n", w.id, mark, time.Since(w.since).Seconds(), w.leases, w.fence)
	}
	fmt.Fprintf(&b, "\n  in line: %s\n", strings.Join(s.waiting(), " "))
	fmt.Fprintf(&b, "  %d acquisitions, %d overlaps\n", s.acquired, s.overlaps)
	s.drawn = strings.Count(b.String(), "\n")
	fmt.Fprint(s.out, b.String())
}

func (s *show) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
}

// sum says what came of it.
func (s *show) sum() error {
	s.draw()
	s.drawn = 0
	rising := "yes"
	if s.falls > 0 {
		rising = fmt.Sprintf("no, %d were not larger than the one before", s.falls)
	}
	fmt.Fprintf(s.out, "\nacquisitions:           %d by %d processes\n", s.acquired, len(s.workers))
	fmt.Fprintf(s.out, "overlaps seen:          %d\n", s.overlaps)
	fmt.Fprintf(s.out, "served out of turn:     %d\n", s.unfair)
	fmt.Fprintf(s.out, "fences strictly rising: %s\n", rising)
	missing := len(s.acts)
	for _, a := range s.done {
		fmt.Fprintf(s.out, "%-23s %s; the next one ran %v later (%s)\n", a.what+":", a.w.id, a.took.Round(100*time.Microsecond), a.costs)
		if a.took == 0 {
			missing++
		}
	}
	if s.overlaps > 0 || s.unfair > 0 || s.falls > 0 || s.acquired == 0 || missing > 0 {
		return &exit{1, fmt.Errorf("the demo did not go as it should")}
	}
	return nil
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" && f.Name() != os.DevNull
}
