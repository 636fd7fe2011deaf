package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
)

// Forwarded is the signals that are passed on to the command; Windows has but one.
var Forwarded = []os.Signal{os.Interrupt}

func Terminates(os.Signal) bool { return true }

// Group is the command alone: there are no process groups here, and no way to ask a process to end.
type Group struct{ process *os.Process }

func Start(cmd *exec.Cmd) (*Group, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Group{cmd.Process}, nil
}

func (g *Group) Signal(syscall.Signal) { _ = g.process.Kill() }

func (g *Group) Restore() {}

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

// Suspend cannot be done here.
func Suspend(*os.Process) error { return errors.ErrUnsupported }

func Resume(*os.Process) {}
