package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/cobra"
)

const (
	demoName    = "orders:42"
	demoTTL     = 2 * time.Second
	demoWorkers = 6
)

func demoCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch processes contend for a lock on an embedded server",
		Long: `Watch six processes contend for one lock, on a server that is embedded in the demo: nothing needs to be installed.

A holder is killed (SIGKILL) while it works; the next one gets in when its lease of 2 s ends. At the end the demo says
how often the lock was acquired, whether two were ever inside at once, and whether the fences rose all the time. It
takes about eight seconds. On a terminal it draws, otherwise it prints lines.`,
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
	workers []*worker
	drawn   int // lines on the screen

	acquired int
	overlaps int
	falls    int // fences that did not rise
	killed   *worker
	killedAt time.Time
	nextIn   time.Duration // from the kill to the next holder
}

// worker is one process of the demo.
type worker struct {
	id     string
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

func demo(out *os.File) error {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s := &show{out: out, tty: isTerminal(out), start: time.Now()}
	events := make(chan told)
	for i := range demoWorkers {
		w, err := startWorker(self, server.Addr(), fmt.Sprintf("worker-%d", i+1), events)
		if err != nil {
			return err
		}
		defer func() { _ = w.cmd.Process.Kill() }()
		s.workers = append(s.workers, w)
	}
	s.say("six processes contend for the lock %q; its lease is %v", demoName, demoTTL)

	kill := time.After(3 * time.Second)
	end := time.After(8 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	alive := len(s.workers)
	stopping := false
	for alive > 0 {
		select {
		case t := <-events:
			if t.e.State == "" {
				alive--
				continue
			}
			s.take(t)
			if kill == nil && s.killed == nil && t.e.State == "holds" && !stopping {
				s.kill(t.w)
			}
		case <-kill:
			kill = nil // the next one that gets in
		case <-end:
			stopping = true
			for _, w := range s.workers {
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
	t.w.state, t.w.since = t.e.State, now
	if t.e.Error != "" {
		s.say("%s: %s", t.w.id, t.e.Error)
	}
	if t.e.State != "holds" {
		return
	}
	s.acquired++
	t.w.fence = t.e.Fence
	t.w.leases++
	if t.e.Inside != "" && (s.killed == nil || t.e.Inside != s.killed.id) {
		s.overlaps++
	}
	if t.e.Fence <= t.e.LastFence {
		s.falls++
	}
	if s.killed != nil && s.nextIn == 0 {
		s.nextIn = now.Sub(s.killedAt)
		s.say("%s got in %v after the kill", t.w.id, s.nextIn.Round(time.Millisecond))
	}
	if !s.tty {
		s.say("%s holds it, fence %d; waiting: %s", t.w.id, t.e.Fence, strings.Join(s.waiting(), " "))
	}
}

// waiting is who waits, the longest first.
func (s *show) waiting() []string {
	var list []*worker
	for _, w := range s.workers {
		if w.state == "waits" {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b *worker) int { return a.since.Compare(b.since) })
	var ids []string
	for _, w := range list {
		ids = append(ids, w.id)
	}
	return ids
}

func (s *show) kill(w *worker) {
	_ = w.cmd.Process.Kill()
	s.killed, s.killedAt = w, time.Now()
	w.state, w.since = "killed", s.killedAt
	s.say("%s is killed while it holds the lock", w.id)
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
		mark := map[string]string{"holds": "\x1b[32m● holds \x1b[0m", "waits": "○ waits ", "killed": "\x1b[31m✗ killed\x1b[0m"}[w.state]
		if mark == "" {
			mark = "  " + fmt.Sprintf("%-6s", w.state)
		}
		fmt.Fprintf(&b, "  %s  %s %6.2fs  %3d leases  last fence %d\n", w.id, mark, time.Since(w.since).Seconds(), w.leases, w.fence)
	}
	fmt.Fprintf(&b, "\n  %d acquisitions, %d overlaps\n", s.acquired, s.overlaps)
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
	fmt.Fprintf(s.out, "fences strictly rising: %s\n", rising)
	if s.killed != nil {
		fmt.Fprintf(s.out, "killed while holding:   %s; the next holder ran %v later (its lease was %v)\n",
			s.killed.id, s.nextIn.Round(time.Millisecond), demoTTL)
	}
	if s.overlaps > 0 || s.falls > 0 || s.acquired == 0 || s.nextIn == 0 {
		return &exit{1, fmt.Errorf("the demo did not go as it should")}
	}
	return nil
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" && f.Name() != os.DevNull
}
