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

// Forwarded are the signals that are forwarded to the command.
var Forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// Terminates reports whether the signal ends a wait for the lock. The other signals of Forwarded are only for the command.
func Terminates(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// Group is a process group for the command, so that all its processes can be ended when the lock is lost. If lockkeeper is in
// the foreground of a terminal, the group becomes the foreground group, so that the command can read from the terminal and gets
// its interrupts. In a pipeline it does not, because other programs of the pipeline, such as a pager, are in the group of
// lockkeeper and need the terminal.
type Group struct {
	id    int
	tty   int  // file descriptor of the terminal, or -1
	reaps bool // orphans become children of lockkeeper, whose only child else is the command
}

// Start starts the command in a new process group. It binds the goroutine to its thread until Restore.
func Start(cmd *exec.Cmd) (*Group, error) {
	g := &Group{tty: -1, reaps: adoptsOrphans()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in := int(os.Stdin.Fd())
	if foreground, err := unix.IoctlGetInt(in, unix.TIOCGPGRP); err == nil && foreground == syscall.Getpgrp() && !isPipe(os.Stdout) && !isPipe(os.Stderr) {
		g.tty = in
		cmd.SysProcAttr.Foreground = true
		cmd.SysProcAttr.Ctty = in
		signal.Ignore(syscall.SIGTTOU) // sent when lockkeeper, in the background, makes itself the foreground group
	}
	terminateWithParent(cmd.SysProcAttr)
	// The parent-death signal is sent when the thread that started the child ends.
	runtime.LockOSThread()
	asked := make(chan os.Signal, 1)
	Notify(asked, syscall.SIGTSTP)
	if err := cmd.Start(); err != nil {
		if g.tty >= 0 { // the child took the terminal before it failed
			_ = unix.IoctlSetPointerInt(g.tty, unix.TIOCSPGRP, syscall.Getpgrp())
		}
		g.Restore()
		return nil, err
	}
	g.id = cmd.Process.Pid
	go g.stopTogether(asked)
	return g, nil
}

func isPipe(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeNamedPipe != 0
}

// Signal sends a signal to all processes of the group.
func (g *Group) Signal(s syscall.Signal) { _ = syscall.Kill(-g.id, s) }

// Ended reports whether the group has no processes. It is called after Wait has returned.
func (g *Group) Ended() bool {
	for g.reaps {
		if id, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); id <= 0 && !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return errors.Is(syscall.Kill(-g.id, 0), syscall.ESRCH)
}

// reclaimTerminal makes lockkeeper the foreground group again, unless another group, such as the shell, is in the foreground.
func (g *Group) reclaimTerminal() {
	if foreground, err := unix.IoctlGetInt(g.tty, unix.TIOCGPGRP); err == nil && foreground == g.id {
		_ = unix.IoctlSetPointerInt(g.tty, unix.TIOCSPGRP, syscall.Getpgrp())
	}
}

// Restore undoes the changes of Start to the terminal and the thread. It must be called by the goroutine that called Start.
func (g *Group) Restore() {
	if g.tty >= 0 {
		g.reclaimTerminal()
		signal.Reset(syscall.SIGTTOU)
	}
	runtime.UnlockOSThread()
}

// Wait waits for the end of the command and returns its exit code as an error. When the terminal stops the command, by
// control-Z, Wait stops lockkeeper too, so that the shell gets the terminal. When lockkeeper continues, so does the command. Orphans that have
// become children of lockkeeper are reaped meanwhile. No other goroutine may wait for a child.
func (g *Group) Wait(*exec.Cmd) error {
	of := g.id
	if g.reaps {
		of = -1
	}
	for {
		var status syscall.WaitStatus
		id, err := syscall.Wait4(of, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("the command: %w", err)
		case id != g.id:
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

// stopTogether stops the command when lockkeeper alone is asked to stop: it must not go on while nobody renews its lock. In a pipeline
// control-Z asks lockkeeper, but not the command, which is in another group. In the group of the session's leader nobody could continue
// them, so that the request is ignored, as the system does. It ends with the process.
func (g *Group) stopTogether(asked <-chan os.Signal) {
	for range asked {
		if canContinue() {
			g.Signal(syscall.SIGSTOP)
			g.stop()
		}
	}
}

// canContinue reports whether somebody could continue lockkeeper if it were stopped.
func canContinue() bool {
	session, err := unix.Getsid(0)
	return err == nil && session != syscall.Getpgrp()
}

// stop stops lockkeeper. When it is continued, it continues the command, in the foreground if lockkeeper is.
func (g *Group) stop() {
	g.reclaimTerminal()
	stopSelf()
	if foreground, err := unix.IoctlGetInt(g.tty, unix.TIOCGPGRP); err == nil && foreground == syscall.Getpgrp() {
		_ = unix.IoctlSetPointerInt(g.tty, unix.TIOCSPGRP, g.id)
	}
	g.Signal(syscall.SIGCONT)
}

// stopSelf stops lockkeeper until it is continued. Process 1 cannot be stopped.
func stopSelf() {
	if os.Getpid() == 1 {
		return
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	<-continued
}

// StopRequests returns a channel that receives a value when lockkeeper is asked to stop, as by control-Z. The receiver calls Stop.
func StopRequests() (requests <-chan os.Signal, end func()) {
	c := make(chan os.Signal, 1)
	Notify(c, syscall.SIGTSTP)
	return c, func() { signal.Stop(c) }
}

// Stop stops lockkeeper between leave and enter, until it is continued. It does nothing where nobody could continue it.
func Stop(leave func(), enter func() error) error {
	if !canContinue() {
		return nil
	}
	leave()
	stopSelf()
	return enter()
}

// Suspend suspends a process.
func Suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Resume continues a suspended process.
func Resume(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
