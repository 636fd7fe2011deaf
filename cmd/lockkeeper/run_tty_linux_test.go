package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal: the test writes to keys, and the command uses screen.
type terminal struct {
	*testing.T
	keys, screen *os.File
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	keys := must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = keys.Close() })
	must.OK(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	n := must.Get(unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN))(t)
	screen := must.Get(os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = screen.Close() })
	return &terminal{t, keys, screen}
}

// onTerminal starts a command on a new terminal of this size, and returns a function for what it has written there.
func onTerminal(t *testing.T, c *testCommand) (x *terminal, screen func() string) {
	t.Helper()
	x = newTerminal(t)
	x.resizes(100, 30)
	c.Stdout, c.Stderr = x.screen, x.screen
	screen = x.reads()
	x.runs(c)
	return x, screen
}

// runs starts the command as the session leader of the terminal.
func (x *terminal) runs(c *testCommand) {
	x.Helper()
	c.Stdin = x.screen
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	c.starts()
}

// foreground returns the process group in the foreground.
func (x *terminal) foreground() int {
	x.Helper()
	return must.Get(unix.IoctlGetInt(int(x.keys.Fd()), unix.TIOCGPGRP))(x)
}

// state waits until the process stops or ends.
func (x *terminal) state(c *testCommand) (status syscall.WaitStatus) {
	x.Helper()
	eventually(x.T, "it stops or ends", func() bool {
		id := must.Get(syscall.Wait4(c.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil))(x)
		return id != 0
	})
	return status
}

// The command uses builtins of the shell alone: a shell that is in vfork when the signal comes cannot stop before its child goes
// on, which is stopped as well.
func TestCtrlZStopsRunAndCommand(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	x := newTerminal(t)
	c := command(t, "run", "--redis", url, "x", "--", "sh", "-c", `: >ready; read line; : >over; exit 7`)
	c.Dir = t.TempDir()
	c.Stdout, c.Stderr = x.screen, x.screen
	is := func(file string) func() bool {
		return exists(filepath.Join(c.Dir, file))
	}
	x.runs(c)
	eventually(t, "it runs", is("ready"))
	if x.foreground() == c.Process.Pid {
		t.Error("the command is not in the foreground")
	}
	must.Get(x.keys.Write([]byte{'Z' - '@'}))(t)
	if s := x.state(c); !s.Stopped() {
		t.Fatalf("not stopped: %v", s)
	}
	if x.foreground() != c.Process.Pid {
		t.Error("the stopped command is still in the foreground")
	}
	c.signals(syscall.SIGCONT)
	must.Get(x.keys.Write([]byte("\n")))(t) // which only the foreground can read
	eventually(t, "the command goes on", is("over"))
	if s := x.state(c); s.ExitStatus() != 7 {
		t.Errorf("the status is %v", s)
	}
	if rdb.Exists(ctx, "lock:x").Val() != 0 {
		t.Error("the lock was not released")
	}
}

// The reader of the pipe may be a pager, which needs the foreground group.
func TestPipelineKeepsForegroundGroup(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	x := newTerminal(t)
	c := command(t, "run", "--redis", url, "x", "--", "sh", "-c", `echo ready; while ! [ -e go ]; do sleep 0.05; done`)
	c.Dir = t.TempDir()
	r, w, err := os.Pipe()
	must.OK(t, err)
	c.Stdout, c.Stderr = w, x.screen
	x.runs(c)
	_ = w.Close()
	if line, err := io.ReadAll(io.LimitReader(r, 6)); err != nil || string(line) != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if x.foreground() != c.Process.Pid {
		t.Error("the command is in the foreground")
	}
	must.OK(t, os.WriteFile(filepath.Join(c.Dir, "go"), nil, 0o600))
	if s := x.state(c); s.ExitStatus() != 0 {
		t.Errorf("the status is %v", s)
	}
	_ = r.Close()
}
