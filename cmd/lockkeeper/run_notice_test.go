package main

import (
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// A waiter prints the holder after a second, for all kinds of locks.
func TestRunReportsHolderWhileWaiting(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	for kind, key := range map[string]string{
		"mutex": "lock:x", "fair": "{lock:x}:fair:holders", "write": "{lock:x}:rwlock:holders", "read": "{lock:y}:rwlock:holders",
		"semaphore": "{lock:x}:semaphore:holders",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name, other := "x", kind
			if kind == "read" { // the read side waits for a writer
				name, other = "y", "write"
			}
			run := func(kind string, args ...string) *testCommand {
				flags := []string{"run", "--redis", url, "--kind", kind}
				if kind == "semaphore" {
					flags = append(flags, "--limit", "1")
				}
				return command(t, append(flags, args...)...)
			}
			holder := run(other, name, "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN; exec sleep 60")
			holder.starts()
			eventually(t, "it holds", func() bool { return rdb.Exists(ctx, key).Val() == 1 })
			c := run(kind, "--wait", "2500ms", name, "--", "true")
			c.starts()
			waitsInVain(c, `waiting for "`+name+`" for 1s: held by keeper `, "unless it is renewed")
			_ = holder.Process.Kill()
			_ = holder.Wait()
			keeper, _, _ := strings.Cut(holder.out.String(), ":")
			if keeper == "" || !strings.Contains(c.err.String(), keeper) {
				t.Errorf("the holder is %q, the notices are %q", keeper, c.err.String())
			}
			if n := strings.Count(c.err.String(), "waiting for"); n != 1 {
				t.Errorf("%d notices:\n%s", n, c.err.String())
			}
		})
	}
	t.Run("foreign", func(t *testing.T) {
		t.Parallel()
		rdb.Set(ctx, "lock:z", "theirs", time.Minute)
		c := command(t, "run", "--redis", url, "--wait", "1500ms", "z", "--", "true")
		c.starts()
		waitsInVain(c, `held by token theirs;`)
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		c := command(t, "run", "--redis", url, "free", "--", "true")
		c.ends(0)
		if c.err.Len() > 0 {
			t.Errorf("standard error: %q", c.err.String())
		}
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
	c.ended(code, says...)
}

// An outage is reported long before run fails.
func TestRunReportsOutageEarly(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Freeze()
	frozen := "redis://" + s.Addr
	for name, c := range map[string]struct {
		says string
		args []string
	}{
		"refused":     {"refused", []string{"--redis", "redis://127.0.0.1:1", "x", "--", "true"}},
		"frozen":      {"no answer from Redis", []string{"--redis", frozen, "x", "--", "true"}},
		"frozen try":  {"no answer from Redis", []string{"--redis", frozen, "--try", "x", "--", "true"}},
		"frozen once": {"no answer from Redis", []string{"--redis", frozen, "--once-per", "1h", "x", "--", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := command(t, append([]string{"run"}, c.args...)...)
			var stderr quiet.Buffer
			run.Stderr = &stderr
			start := time.Now()
			run.starts()
			eventually(t, "the outage is reported", func() bool {
				return strings.Contains(stderr.String(), `waiting for "x"`) && strings.Contains(stderr.String(), c.says)
			})
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("the outage was reported after %v", d)
			}
		})
	}
}

// A job that is skipped while another process holds the lock must not be skipped because Redis is down.
func TestRunDistinguishesOutageFromContention(t *testing.T) {
	t.Parallel()
	redistest.RequireBinary(t)
	s := redistest.Start(t)
	url := "redis://" + s.Addr
	s.Freeze()
	for _, kind := range []string{"mutex", "fair", "redlock"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			command(t, "run", "--redis", url, "--kind", kind, "--wait", "700ms", "x", "--", "true").
				ends(exit.Unreachable, "server unavailable: no ", "deadline exceeded")
		})
	}
}
