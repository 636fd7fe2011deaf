package main

import (
	"bufio"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// verdicts are texts of the verdicts of the acts, in their order.
var verdicts = []string{
	"ok: 1 holder at a time, in order; the killed holder was replaced after ",
	"ok: without a check A+1 has replaced B+2, with one it was refused; A was told that it had lost the lock",
	" reads per second, none during a write; the writer waited ",
	"ok: at most 8 calls in any 0.6 s and 3 at once; the permit of the killed caller was free again after ",
}

// A machine that is too slow makes the demo end with code 2, not with 1. Then it is repeated, a few times.
func TestDemoPrintsAFewLinesAndEachVerdict(t *testing.T) {
	t.Parallel()
	var c *testCommand
	var start time.Time
	for attempt := 1; ; attempt++ {
		c, start = command(t, "demo"), time.Now()
		c.starts()
		if err := c.Wait(); err == nil {
			break
		}
		if code := c.ProcessState.ExitCode(); code != 2 || attempt == 4 {
			t.Fatalf("attempt %d: exit code %d:\n%s%s", attempt, code, c.out.String(), c.err.String())
		}
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("the demo took %v", d)
	}
	out := c.out.String()
	if n := strings.Count(out, "\n"); n > 25 {
		t.Errorf("%d lines:\n%s", n, out)
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("escape sequences without a terminal: %q", out)
	}
	rest := out
	for i, s := range verdicts {
		_, after, found := strings.Cut(rest, s)
		if !found {
			t.Fatalf("no verdict %d, %q:\n%s", i+1, s, out)
		}
		rest = after
	}
	for _, s := range []string{"1. Fair lock: ", "is killed while it holds the lock; w", "is frozen in the queue",
		"A is resumed, and writes with fence +1", "c4 is killed during a call"} {
		if !strings.Contains(out, s) {
			t.Errorf("no %q:\n%s", s, out)
		}
	}
}

// Not in parallel, because it checks times; for a quarter of a minute, so only where everything is tested.
func TestDemoLong(t *testing.T) {
	if !redistest.All() {
		return
	}
	c := command(t, "demo", "--long")
	c.ends(0)
	for _, s := range []string{"acquisitions: ", "overlapping holders:    0", "out of order:           0",
		"fences increasing:      yes", "killed while holding:", "killed while first:", "frozen while first:",
		"reads: ", "writes: ", "reads during a write:   0", "longest wait to write:", "longest read:",
		"calls: ", "at once:                at most 4, allowed 4", "in any second:", "delays of calls:", "killed during a call:"} {
		if !strings.Contains(c.out.String(), s) {
			t.Errorf("the summary has no %q:\n%s", s, c.out.String())
		}
	}
}

func TestDemoInterruptedEndsItsProcesses(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := command(t, "demo")
		out, stdout := pipe(t)
		// The processes of the demo inherit its standard error, which is at its end when all of them have ended.
		errs, stderr := pipe(t)
		c.Stdout, c.Stderr = stdout, stderr
		c.starts()
		_, _ = stdout.Close(), stderr.Close()
		for lines := bufio.NewScanner(out); ; { // one is frozen, and those of the next act have been started
			if !lines.Scan() {
				t.Fatal("no process was frozen")
			}
			if strings.Contains(lines.Text(), "is frozen in the queue") {
				break
			}
		}
		c.signals(s)
		c.waits(130)
		_ = errs.SetReadDeadline(time.Now().Add(10 * time.Second))
		if text, err := io.ReadAll(errs); err != nil || len(text) > 0 {
			t.Errorf("%v: the standard error has %q, and its end: %v", s, text, err)
		}
	}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}
