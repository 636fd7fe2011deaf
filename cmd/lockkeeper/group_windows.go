package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// forwarded is the signals that are passed on to the command; Windows has but one.
var forwarded = []os.Signal{os.Interrupt}

func ends(os.Signal) bool { return true }

// group is the command alone: there are no process groups here, and no way to ask a process to end.
type group struct{ process *os.Process }

func startGroup(cmd *exec.Cmd) (*group, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &group{cmd.Process}, nil
}

func (g *group) signal(syscall.Signal) { _ = g.process.Kill() }

func (g *group) restore() {}

func dieAtOnce(*exec.Cmd) {}

// wait waits for the end of the command and returns its exit code as an error.
func (g *group) wait(cmd *exec.Cmd) error {
	var ended *exec.ExitError
	switch err := cmd.Wait(); {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return &exit{ended.ExitCode(), nil}
	default:
		return fmt.Errorf("the command: %w", err)
	}
}

// freeze cannot be done here.
func freeze(*os.Process) error { return errors.ErrUnsupported }

func thaw(*os.Process) {}
