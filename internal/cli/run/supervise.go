package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

// held is the lease under which the command runs, or permits that are not held.
type held struct {
	name, token string // without a token if the command runs once per period, or holds nothing
	fence       uint64
	done        <-chan struct{}                 // closed when the lease is lost; nil if nothing is held
	err         func() error                    // why
	release     func(ctx context.Context) error // nil if run need not release anything
}

func (h *held) environ() []string {
	env := []string{"LOCKKEEPER_NAME=" + h.name, "LOCKKEEPER_FENCE=" + strconv.FormatUint(h.fence, 10)}
	if h.token != "" {
		env = append(env, "LOCKKEEPER_TOKEN="+h.token)
	}
	return env
}

// supervise runs the command, forwards signals to it, and ends it if the lease is lost. It returns the exit code of the command
// as an error, or why the lease was lost.
func (o *options) supervise(path string, command []string, lease *held, signals <-chan os.Signal) (code error, lost error) {
	cmd := &exec.Cmd{
		Path: path, Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: append(os.Environ(), lease.environ()...),
	}
	group, err := process.Start(cmd)
	if err != nil {
		return notRunnable(err), nil
	}
	defer group.Restore()
	ended := make(chan error, 1)
	go func() { ended <- group.Wait(cmd) }()
	var kill, others <-chan time.Time
	killed := false
	done := lease.done
	for {
		select {
		case err := <-ended:
			if lost == nil {
				return err, nil
			}
			if killed {
				return nil, lost
			}
			others = time.Tick(20 * time.Millisecond) // processes that the command has left behind have the rest of the grace
		case <-others:
			if group.Ended() {
				return nil, lost
			}
		case <-done:
			done = nil
			lost = lease.err()
			fmt.Fprintf(os.Stderr, "lockkeeper: %s; terminating the command\n", exit.Message(lost))
			group.Signal(syscall.SIGTERM)
			kill = time.After(o.grace)
		case <-kill:
			group.Signal(syscall.SIGKILL)
			killed = true
			if others != nil {
				return nil, lost
			}
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		}
	}
}

// notRunnable gives the error of starting the command the exit code that a shell would give it.
func notRunnable(err error) error {
	text := fmt.Errorf("the command cannot be run: %s", strings.TrimPrefix(err.Error(), "exec: "))
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &exit.Error{Code: 127, Err: text}
	}
	return &exit.Error{Code: 126, Err: text}
}
