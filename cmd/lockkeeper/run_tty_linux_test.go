package main

import (
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal: the test writes to keys, and the command uses screen.
type terminal struct {
	*testing.T
	keys, screen *os.File
	written      quiet.Buffer // what the command has written to the screen
}

// newTerminal returns a terminal of this size.
func newTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	x := &terminal{T: t, keys: must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0))(t)}
	t.Cleanup(func() { _ = x.keys.Close() })
	must.OK(t, unix.IoctlSetPointerInt(int(x.keys.Fd()), unix.TIOCSPTLCK, 0))
	n := must.Get(unix.IoctlGetInt(int(x.keys.Fd()), unix.TIOCGPTN))(t)
	x.screen = must.Get(os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = x.screen.Close() })
	x.resizes(columns, rows)
	go func() { _, _ = io.Copy(&x.written, x.keys) }()
	return x
}

// onTerminal starts a command on a new terminal.
func onTerminal(t *testing.T, c *testCommand) *terminal {
	t.Helper()
	x := newTerminal(t, 100, 30)
	c.Stdout, c.Stderr = x.screen, x.screen
	x.runs(c)
	return x
}

// runs starts the command as the session leader of the terminal.
func (x *terminal) runs(c *testCommand) {
	x.Helper()
	c.Stdin = x.screen
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	c.starts()
}

// shows waits until the command has written a text.
func (x *terminal) shows(text string) {
	x.Helper()
	eventually(x.T, "it shows "+text, func() bool { return strings.Contains(x.written.String(), text) })
}

// resizes sets the size of the window, of which the kernel informs the command by SIGWINCH.
func (x *terminal) resizes(columns, rows uint16) {
	x.Helper()
	must.OK(x, unix.IoctlSetWinsize(int(x.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
}

// types sends keys to the command.
func (x *terminal) types(keys string) {
	x.Helper()
	must.Get(io.WriteString(x.keys, keys))(x)
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
	c := runner(t, url)("x", "--", "sh", "-c", `: >ready; read line; : >over; exit 7`)
	c.Dir = t.TempDir()
	x := onTerminal(t, c)
	c.creates("ready")
	check.That(t, x.foreground() != c.Process.Pid, "the command is not in the foreground")
	x.types("\x1a")
	if s := x.state(c); !s.Stopped() {
		t.Fatalf("not stopped: %v", s)
	}
	check.That(t, x.foreground() == c.Process.Pid, "the stopped command is still in the foreground")
	c.signals(syscall.SIGCONT)
	x.types("\n") // which only the foreground can read
	c.creates("over")
	if s := x.state(c); s.ExitStatus() != 7 {
		t.Errorf("the status is %v", s)
	}
	isFree(t, rdb, "lock:x")
}

// In a pipeline control-Z reaches lockkeeper, but not the command, which is in another group. It must not go on without the lock.
func TestCommandStopsWithLockkeeper(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	c := runner(t, url)("x", "--", "sh", "-c", `while :; do : >alive; sleep 0.02; done`)
	c.Dir = t.TempDir()
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.starts().creates("alive")
	for range 2 {
		c.signals(syscall.SIGTSTP)
		s := (&terminal{T: t}).state(c)
		must.That(t, s.Stopped(), "not stopped: %v", s)
		c.stopsCreating("alive")
		c.signals(syscall.SIGCONT)
		c.creates("alive")
	}
	c.isEndedBy(syscall.SIGTERM)
}

// The reader of the pipe may be a pager, which needs the foreground group.
func TestPipelineKeepsForegroundGroup(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	x := newTerminal(t, 100, 30)
	c := runner(t, url)("x", "--", "sh", "-c", `: >ready; while ! [ -e go ]; do sleep 0.05; done`)
	c.Dir = t.TempDir()
	c.Stderr = x.screen // and its output goes to a pipe
	x.runs(c)
	c.creates("ready")
	check.That(t, x.foreground() == c.Process.Pid, "the command is in the foreground")
	c.finds("go")
	c.waits(0)
}

// A script without its first line is found, but cannot be executed.
func TestForegroundGroupAfterCommandThatCannotRun(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	c := runner(t, url)("x", "--", "./script")
	c.Dir = t.TempDir()
	must.OK(t, os.WriteFile(c.Dir+"/script", []byte("true\n"), 0o700))
	c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `"$0" "$@"; read line && exit 7`, c.Path}, c.Args[1:]...)
	x := onTerminal(t, c)
	x.shows("cannot be run")
	x.types("\n") // which only the foreground can read
	s := x.state(c)
	check.That(t, s.ExitStatus() == 7, "the status is %v", s)
}
