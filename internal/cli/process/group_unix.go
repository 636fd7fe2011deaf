//go:build unix

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"golang.org/x/sys/unix"
)

// Forwarded is the signals that are passed on to the command.
var Forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// Terminates says whether a signal that comes while waiting ends the wait.
func Terminates(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// Group is the command's process group. It is one of its own, so that all of it can be ended when the lock is lost;
// on a terminal it is put in the foreground, so that the command can read from it and gets its interrupts. In a pipeline
// it is not, because the others in it, a pager say, are in lockkeeper's own group and need the terminal themselves.
type Group struct {
	id  int
	tty int // the terminal's descriptor, or -1
}

func Start(cmd *exec.Cmd) (*Group, error) {
	g := &Group{tty: -1}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in := int(os.Stdin.Fd())
	if front, err := unix.IoctlGetInt(in, unix.TIOCGPGRP); err == nil && front == syscall.Getpgrp() && !piped(os.Stdout) && !piped(os.Stderr) {
		g.tty = in
		cmd.SysProcAttr.Foreground = true
		cmd.SysProcAttr.Ctty = in
		signal.Ignore(syscall.SIGTTOU) // or taking the terminal back would stop us
	}
	terminateWithParent(cmd.SysProcAttr)
	// The signal for the parent's death comes when the thread ends that started the child; this one lasts.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	g.id = cmd.Process.Pid
	return g, nil
}

// piped says whether somebody else reads what is written there.
func piped(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeNamedPipe != 0
}

// Signal sends a signal to all of the group.
func (g *Group) Signal(s syscall.Signal) { _ = syscall.Kill(-g.id, s) }

// takeBack takes the terminal from the command, if it is not somebody else's meanwhile: the shell's, say.
func (g *Group) takeBack() {
	if front, err := unix.IoctlGetInt(g.tty, unix.TIOCGPGRP); err == nil && front == g.id {
		_ = unix.IoctlSetPointerInt(g.tty, unix.TIOCSPGRP, syscall.Getpgrp())
	}
}

// Restore ends what Start began.
func (g *Group) Restore() {
	if g.tty >= 0 {
		g.takeBack()
		signal.Reset(syscall.SIGTTOU)
	}
	runtime.UnlockOSThread()
}

// Wait waits for the end of the command and returns its exit code as an error. While it is stopped from the terminal, by
// control-Z, lockkeeper is too, so that the shell gets the terminal; it goes on when lockkeeper does.
func (g *Group) Wait(*exec.Cmd) error {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(g.id, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("the command: %w", err)
		case status.Exited() && status.ExitStatus() == 0:
			return nil
		case status.Exited():
			return &exit.Error{Code: status.ExitStatus()}
		case status.Signaled():
			return &exit.Error{Code: 128 + int(status.Signal())}
		case status.Stopped() && g.tty >= 0:
			switch status.StopSignal() {
			case syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
				g.stop()
			}
		}
	}
}

// stop stops lockkeeper until somebody lets it go on, and then the command goes on, in the foreground if lockkeeper is.
func (g *Group) stop() {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	g.takeBack()
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	<-goesOn
	if front, err := unix.IoctlGetInt(g.tty, unix.TIOCGPGRP); err == nil && front == syscall.Getpgrp() {
		_ = unix.IoctlSetPointerInt(g.tty, unix.TIOCSPGRP, g.id)
	}
	g.Signal(syscall.SIGCONT)
}

// Suspend stops a process, Resume lets it go on.
func Suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func Resume(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
