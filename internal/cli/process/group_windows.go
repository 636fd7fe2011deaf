package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
)

// Forwarded are the signals that are forwarded to the command.
var Forwarded = []os.Signal{os.Interrupt}

// Terminates reports whether the signal ends a wait.
func Terminates(os.Signal) bool { return true }

// Group is the process of the command: Windows has no process groups like those of Unix, and no signal that asks a process to
// end.
type Group struct{ process *os.Process }

// Start starts the command.
func Start(cmd *exec.Cmd) (*Group, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Group{cmd.Process}, nil
}

// Signal kills the process, whatever the signal.
func (g *Group) Signal(syscall.Signal) { _ = g.process.Kill() }

// Ended is called after Wait has returned.
func (g *Group) Ended() bool { return true }

// Restore does nothing.
func (g *Group) Restore() {}

// KillWithParent does nothing: Windows cannot end a process together with its parent.
func KillWithParent(*exec.Cmd) {}

// Wait waits for the end of the command and returns its exit code as an error.
func (g *Group) Wait(cmd *exec.Cmd) error {
	var ended *exec.ExitError
	switch err := cmd.Wait(); {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return &exit.Error{Code: ended.ExitCode()}
	default:
		return fmt.Errorf("the command: %w", err)
	}
}

// StopRequests returns a channel that never receives a value: Windows does not stop processes.
func StopRequests() (requests <-chan os.Signal, end func()) { return nil, func() {} }

// Stop does nothing.
func Stop(func(), func() error) error { return nil }

// Suspend is not supported on Windows.
func Suspend(*os.Process) error { return errors.ErrUnsupported }

// Resume does nothing.
func Resume(*os.Process) {}
