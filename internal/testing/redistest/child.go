package redistest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Child is another process, which ends with the test, or at the latest with this process.
type Child struct {
	Lines chan string // what it prints; closed when the process has ended

	t   TB
	cmd *exec.Cmd
	in  io.WriteCloser
}

// StartChild starts a process of this test binary. env is added to its environment, as "name=value", and tells its
// TestMain what to run.
func StartChild(t TB, env ...string) *Child {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), env...)
	return StartCommand(t, cmd)
}

// StartCommand starts a process of another program. What it prints as errors is printed by this process.
func StartCommand(t TB, cmd *exec.Cmd) *Child {
	t.Helper()
	c := &Child{Lines: make(chan string, 100), t: t, cmd: cmd}
	c.cmd.Stderr = os.Stderr
	var err error
	c.in, err = c.cmd.StdinPipe()
	must(t, err)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	must(t, start(c.cmd))
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	go func() {
		defer close(c.Lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			c.Lines <- sc.Text()
		}
	}()
	return c
}

// WaitForLine waits for a line with this prefix on the process's standard output and returns it.
func (c *Child) WaitForLine(prefix string) string {
	c.t.Helper()
	for timeout := time.After(15 * time.Second); ; {
		select {
		case line, ok := <-c.Lines:
			if !ok {
				c.t.Fatalf("the process ended without printing %q", prefix)
			}
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-timeout:
			c.t.Fatalf("the process did not print %q", prefix)
		}
	}
}

// Signal sends a signal. After SIGSTOP it returns when the process has stopped.
func (c *Child) Signal(sig syscall.Signal) {
	c.t.Helper()
	if sig == syscall.SIGSTOP {
		must(c.t, Freeze(c.cmd.Process.Pid))
		return
	}
	must(c.t, c.cmd.Process.Signal(sig))
}

// WriteLine writes a line to the process's standard input.
func (c *Child) WriteLine(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// Stop closes the process's standard input, at which the process ends.
func (c *Child) Stop() { _ = c.in.Close() }

// Wait waits until the process has ended and returns its error. The caller must have read all its output.
func (c *Child) Wait() error { return c.cmd.Wait() }
