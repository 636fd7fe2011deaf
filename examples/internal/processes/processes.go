//go:build unix

// Package processes starts an example several times, as the processes that share a lock, so that the example can kill and
// freeze them.
package processes

import (
	"bufio"
	"crypto/fips140"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

// timeout is how long Until waits.
const timeout = time.Minute

// Line is what a process printed.
type Line struct {
	Process string
	Text    string
}

// Group is a number of processes of this program and the server that they use.
type Group struct {
	URL string // of the server

	out    io.Writer
	server *miniredis.Miniredis // nil unless it is embedded
	lines  chan Line
	all    map[string]*exec.Cmd
	ended  sync.WaitGroup
}

// New returns a group without processes. What they print is written to out, each line after the name of its process. They use
// the server of the environment variable REDIS_URL or, if that is not set, a server within this process.
func New(out io.Writer) (*Group, error) {
	g := &Group{URL: os.Getenv("REDIS_URL"), out: out, lines: make(chan Line, 100), all: map[string]*exec.Cmd{}}
	if g.URL == "" {
		g.server = miniredis.NewMiniRedis()
		var err error
		fips140.WithoutEnforcement(func() { err = g.server.Start() }) // because the server computes SHA-1, in goroutines that begin here
		if err != nil {
			return nil, err
		}
		g.server.ClockTTL(true) // leases end
		g.URL = "redis://" + g.server.Addr()
	}
	return g, nil
}

// Start starts this program as another process with these arguments. It finds the server in REDIS_URL.
func (g *Group) Start(name string, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(self, args...)
	c.Env = append(os.Environ(), "REDIS_URL="+g.URL)
	c.Stderr = os.Stderr
	process.KillWithParent(c)
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	g.all[name] = c
	g.ended.Go(func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			g.lines <- Line{name, sc.Text()}
		}
		_ = c.Wait()
		g.lines <- Line{name, "(ended)"}
	})
	return nil
}

// Until waits until a process prints a line that contains a text and that satisfies all conditions, and returns that line.
// "(ended)" is the line of a process that has ended.
func (g *Group) Until(text string, conditions ...func(Line) bool) (Line, error) {
	lines, err := g.UntilAll(All(append(conditions, Says(text))...))
	if err != nil {
		return Line{}, fmt.Errorf("no process printed %q within %v", text, timeout)
	}
	return lines[0], nil
}

// UntilAll waits until there was a line for each condition, in any order, and returns these lines. What several processes print
// at the same time has no order.
func (g *Group) UntilAll(conditions ...func(Line) bool) ([]Line, error) {
	late := time.After(timeout)
	found, missing := make([]Line, len(conditions)), len(conditions)
	for {
		select {
		case l := <-g.lines:
			fmt.Fprintf(g.out, "%-9s %s\n", l.Process+":", l.Text)
			for i, ok := range conditions {
				if found[i] == (Line{}) && ok(l) {
					found[i] = l
					missing--
				}
			}
			if missing == 0 {
				return found, nil
			}
		case <-late:
			return nil, fmt.Errorf("%d of %d lines were not printed within %v", missing, len(conditions), timeout)
		}
	}
}

// All is a condition: the line satisfies all of these.
func All(conditions ...func(Line) bool) func(Line) bool {
	return func(l Line) bool {
		for _, ok := range conditions {
			if !ok(l) {
				return false
			}
		}
		return true
	}
}

// Says is a condition: the line contains a text.
func Says(text string) func(Line) bool {
	return func(l Line) bool { return strings.Contains(l.Text, text) }
}

// By is a condition: the line is of this process.
func By(process string) func(Line) bool { return func(l Line) bool { return l.Process == process } }

// NotBy is a condition: the line is of another process.
func NotBy(process string) func(Line) bool { return func(l Line) bool { return l.Process != process } }

// Kill kills a process, as kill -9 does: it has no time to release anything.
func (g *Group) Kill(name string) error { return g.signal(name, syscall.SIGKILL, "killed") }

// Freeze freezes a process: it does nothing until Thaw.
func (g *Group) Freeze(name string) error { return g.signal(name, syscall.SIGSTOP, "frozen") }

// Thaw lets a frozen process continue.
func (g *Group) Thaw(name string) error { return g.signal(name, syscall.SIGCONT, "continues") }

// Terminate asks a process to end, as an orchestrator does.
func (g *Group) Terminate(name string) error { return g.signal(name, syscall.SIGTERM, "SIGTERM") }

func (g *Group) signal(name string, s syscall.Signal, what string) error {
	fmt.Fprintf(g.out, "%-9s -- %s --\n", name+":", what)
	return g.all[name].Process.Signal(s)
}

// Close kills all processes, waits for their ends, and stops the server. It may be called again.
func (g *Group) Close() {
	for _, c := range g.all {
		_ = c.Process.Kill()
	}
	ended := make(chan struct{})
	go func() { g.ended.Wait(); close(ended) }()
	for {
		select {
		case <-g.lines:
			continue
		case <-ended:
		}
		break
	}
	if g.server != nil {
		g.server.Close()
		g.server = nil
	}
}
