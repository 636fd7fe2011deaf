// Package demo implements the command demo, in which processes contend for locks on an embedded server.
package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

const (
	demoTTL      = 2 * time.Second
	demoLifetime = 1500 * time.Millisecond // of a waiter's heartbeat
)

func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch processes contend for locks on an embedded server",
		Long: `Watch processes contend for locks, on a server that is embedded in the demo: nothing needs to be installed.

First six processes contend for one fair lock. They are served in the order in which they came. A holder is killed
(SIGKILL) while it works; the next one gets in when its lease of 2 s ends. Then the first in line is killed, which costs
the others nothing, and then the first in line is frozen (SIGSTOP), which costs them at most the lifetime of its
heartbeat, 1.5 s. At the end the demo says how often the lock was acquired, whether two were ever inside at once, whether
anybody was served out of turn, and whether the fences rose all the time.

Then four processes read under a read-write lock without a pause, so that there is always one inside, and a fifth one
writes now and then. It gets in all the same, as soon as those have left who were inside when it came. At the end the demo
says how many reads and writes there were, whether a write was ever beside a read, and how long the writer had to wait.

At last six processes call an API that stands four calls at once and twenty in any second, two of them in bulk, which
counts for two. They keep to it by a semaphore. One is killed in a call; its permits come back when its lease ends. At the
end the demo says how many calls the API has seen, and how many at once and in any second at the most.

It takes about seventeen seconds. On a terminal it draws, otherwise it prints lines.`,
		Example: "  lockkeeper demo\n  lockkeeper demo | head -20",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("demo takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return demo(os.Stdout) },
	}
	return c
}

// show is the demo as it is seen.
type show struct {
	out   io.Writer
	tty   bool
	start time.Time
	drawn int // lines on the screen that are to be drawn over
}

// part is a part of the demo: workers that contend for a lock, and what is seen of it.
type part interface {
	take(w *worker, e event, stopping bool) // a worker tells something
	paint(b *strings.Builder)               // how things stand
	sum() (asItShould bool)                 // say what came of it
}

func demo(out *os.File) error {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	k, err := demoKeeper(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }()
	s := &show{out: out, tty: isTerminal(out), start: time.Now()}
	first, err := newLine(s, k)
	if err != nil {
		return err
	}
	second, err := newReaders(s, k)
	if err != nil {
		return err
	}
	third, err := newCalls(s, k, rdb)
	if err != nil {
		return err
	}
	s.say("six processes contend for the fair lock %q; its lease is %v", lineName, demoTTL)
	if err := s.play(first, first.workers, server.Addr(), 8*time.Second); err != nil {
		return err
	}
	good := first.sum()
	fmt.Fprintln(out)
	s.say("four processes read under the read-write lock %q without a pause, a fifth one writes now and then", readersName)
	if err := s.play(second, second.workers, server.Addr(), 3500*time.Millisecond); err != nil {
		return err
	}
	good = second.sum() && good
	fmt.Fprintln(out)
	s.say("six processes call the API %q, which stands %d calls at once and %d in any second", apiName, apiAtOnce, apiMany)
	if err := s.play(third, third.workers, server.Addr(), 5500*time.Millisecond); err != nil {
		return err
	}
	if !third.sum() || !good {
		return &exit.Error{Code: 1, Err: fmt.Errorf("the demo did not go as it should")}
	}
	return nil
}

// demoKeeper is the keeper of each process of the demo.
func demoKeeper(rdb *redis.Client) (*lockkeeper.Keeper, error) {
	return lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatTimeout: demoLifetime})
}

// play shows a part, until the last of its workers has ended.
func (s *show) play(p part, workers []*worker, addr string, length time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	events := make(chan told)
	for _, w := range workers {
		if err := w.begin(self, addr, events); err != nil {
			return err
		}
		defer func() { _ = w.cmd.Process.Kill() }()
	}
	end := time.After(length)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	stopping := false
	for alive := len(workers); alive > 0; {
		select {
		case t := <-events:
			if t.e.State == "" {
				alive--
				continue
			}
			t.w.note(t.e)
			if t.e.Error != "" {
				s.say("%s: %s", t.w.id, t.e.Error)
			}
			p.take(t.w, t.e, stopping)
		case <-end:
			stopping = true
			for _, w := range workers {
				process.Resume(w.cmd.Process)
				_ = w.in.Close()
			}
		case <-tick.C:
			s.draw(p)
		}
	}
	s.draw(p)
	s.drawn = 0
	return nil
}

// say prints a line, above the drawing if there is one.
func (s *show) say(format string, args ...any) {
	s.erase()
	fmt.Fprintf(s.out, "%6.3fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// draw paints a part, over what was painted before.
func (s *show) draw(p part) {
	if !s.tty {
		return
	}
	var b strings.Builder
	p.paint(&b)
	s.erase()
	s.drawn = strings.Count(b.String(), "\n")
	fmt.Fprint(s.out, b.String())
}

func (s *show) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
}

// marks is how the states of a worker are drawn.
var marks = map[string]string{
	"holds":  "\x1b[32m● holds \x1b[0m",
	"reads":  "\x1b[32m● reads \x1b[0m",
	"calls":  "\x1b[32m● calls \x1b[0m",
	"writes": "\x1b[33m◆ writes\x1b[0m",
	"waits":  "○ waits ",
	"killed": "\x1b[31m✗ killed\x1b[0m",
	"frozen": "\x1b[36m✻ frozen\x1b[0m",
}

// paint draws a worker that is in the state.
func (w *worker) paint(b *strings.Builder, state string) {
	mark := marks[state]
	if mark == "" {
		mark = fmt.Sprintf("  %-6s", state)
	}
	fmt.Fprintf(b, "  %-8s  %s %6.2fs  %3d leases  last fence %d\n", w.id, mark, time.Since(w.since).Seconds(), w.leases, w.fence)
}

// look asks the server who holds or waits, in the words of the demo: ids of workers, or why it could not be told.
func look[T any](workers []*worker, ask func(context.Context) ([]T, error), keeper func(T) string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := ask(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var ids []string
	for _, x := range list {
		for _, w := range workers {
			if w.keeper == keeper(x) {
				ids = append(ids, w.id)
			}
		}
	}
	return ids
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" && f.Name() != os.DevNull
}
