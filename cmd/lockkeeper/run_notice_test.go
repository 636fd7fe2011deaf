package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// A waiter prints the holder after a second, for all kinds of locks.
func TestRunReportsHolderWhileWaiting(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	for _, waiter := range []string{"--kind mutex", "--kind fair", "--kind write", "--kind read", "--kind semaphore --limit 1"} {
		t.Run(waiter, func(t *testing.T) {
			t.Parallel()
			name := strings.Fields(waiter)[1]
			flags := strings.Fields(strings.Replace(waiter, "read", "write", 1))
			holder := runner(t, url, flags...)(name, "--", "sh", "-c", ": >holds; exec sleep 60")
			holder.Dir = t.TempDir()
			holder.starts().creates("holds")
			c := runner(t, url, strings.Fields(waiter)...)("--wait", "2500ms", name, "--", "true").starts()
			// On a busy machine the second of the notice is the second one.
			waitsInVain(c, `waiting for "`+name+`" for `, `s: held by "`, fmt.Sprintf(":%d ", holder.Process.Pid), "unless it is renewed")
			_ = holder.Process.Kill()
			_ = holder.Wait()
			n := strings.Count(c.err.String(), "waiting for")
			check.That(t, n == 1, "%d notices: %q", n, c.err.String())
		})
	}
	t.Run("foreign", func(t *testing.T) {
		t.Parallel()
		rdb.Set(ctx, "lock:z", "theirs", time.Minute)
		waitsInVain(runner(t, url)("--wait", "1500ms", "z", "--", "true").starts(), `held by token theirs;`)
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		c := runner(t, url)("free", "--", "true").ends(0)
		check.That(t, c.err.Len() == 0, "standard error: %q", c.err.String())
	})
}

// waitsInVain waits for the end of a command whose --wait is too short. A server that has not answered for 100 ms just then is
// reported instead of the holder, which is right on a busy machine.
func waitsInVain(c *testCommand, says ...string) {
	c.Helper()
	code := exit.NotAcquired
	if _ = c.Wait(); strings.HasSuffix(c.err.String(), ": server unavailable: no answer: context deadline exceeded\n") {
		code = exit.Unreachable
	}
	c.waits(code, says...)
}

// An outage is reported long before run fails.
func TestRunReportsOutageEarly(t *testing.T) {
	t.Parallel()
	frozen := redistest.Start(t)
	frozen.Freeze()
	for name, c := range map[string]struct {
		says, url string
		flags     []string
	}{
		"refused":     {"refused", "redis://127.0.0.1:1", nil},
		"frozen":      {"no answer from Redis", "redis://" + frozen.Addr, nil},
		"frozen try":  {"no answer from Redis", "redis://" + frozen.Addr, []string{"--try"}},
		"frozen once": {"no answer from Redis", "redis://" + frozen.Addr, []string{"--once-per", "1h"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := runner(t, c.url, c.flags...)("x", "--", "true")
			var stderr quiet.Buffer
			run.Stderr = &stderr
			start := time.Now()
			run.starts()
			eventually(t, "the outage is reported", func() bool {
				return strings.Contains(stderr.String(), `waiting for "x"`) && strings.Contains(stderr.String(), c.says)
			})
			d := time.Since(start)
			check.That(t, d <= 5*time.Second, "the outage was reported after %v", d)
		})
	}
}
