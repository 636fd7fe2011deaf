//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded is the signals that are passed on to the command.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// ends says whether a signal that comes while waiting ends the wait.
func ends(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// group is the command's process group. It is one of its own, so that all of it can be ended when the lock is lost;
// on a terminal it is put in the foreground, so that the command can read from it and gets its interrupts.
type group struct {
	id  int
	tty int // the terminal's descriptor, or -1
}

func startGroup(cmd *exec.Cmd) (*group, error) {
	g := &group{tty: -1}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in := int(os.Stdin.Fd())
	if front, err := unix.IoctlGetInt(in, unix.TIOCGPGRP); err == nil && front == syscall.Getpgrp() {
		g.tty = in
		cmd.SysProcAttr.Foreground = true
		cmd.SysProcAttr.Ctty = in
		signal.Ignore(syscall.SIGTTOU) // or taking the terminal back would stop us
	}
	dieTogether(cmd.SysProcAttr)
	// The signal for the parent's death comes when the thread ends that started the child; this one lasts.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	g.id = cmd.Process.Pid
	return g, nil
}

// signal sends a signal to all of the group.
func (g *group) signal(s syscall.Signal) { _ = syscall.Kill(-g.id, s) }

// restore takes the terminal back.
func (g *group) restore() {
	if g.tty >= 0 {
		_ = unix.IoctlSetPointerInt(g.tty, unix.TIOCSPGRP, syscall.Getpgrp())
		signal.Reset(syscall.SIGTTOU)
	}
	runtime.UnlockOSThread()
}

// freeze stops a process, thaw lets it go on.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
