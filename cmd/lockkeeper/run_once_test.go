package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
)

const onceKey = "{lock:x}:once:holders"

// cron starts the command on three hosts with clocks that differ a little. The command is short, and ends before the next host
// starts it.
func TestOncePerPeriodOnThreeHosts(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	dir := t.TempDir()
	var all []*testCommand
	for i := range 3 {
		c := command(t, "run", "--redis", url, "--once-per", "20h", "x", "--", "sh", "-c", "sleep 0.1; echo made >>made")
		c.Dir = dir
		c.starts()
		all = append(all, c)
		if i < 2 {
			time.Sleep(300 * time.Millisecond)
		}
	}
	for _, c := range all {
		c.waits(0)
	}
	if made, err := os.ReadFile(filepath.Join(dir, "made")); err != nil || string(made) != "made\n" {
		t.Errorf("%q, %v", made, err)
	}
	if left := rdb.PTTL(ctx, onceKey).Val(); left > 20*time.Hour || left < 20*time.Hour-time.Minute {
		t.Errorf("the period ends in %v", left)
	}
	command(t, "run", "--redis", url, "--once-per", "20h", "x", "--", "false").ends(0, `"x" has already run in this period`, "the next period starts in ")
}

func TestOncePerPeriodFailureRunsAgain(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	run := func(args ...string) *testCommand {
		return command(t, append([]string{"run", "--redis", url, "--once-per", "1h", "x", "--"}, args...)...)
	}
	run("sh", "-c", "exit 7").ends(7)
	run("sh", "-c", "kill -9 $$").ends(128 + 9)
	run("no-such-command").ends(127, "not found")
	if n := rdb.Exists(ctx, onceKey).Val(); n != 0 {
		t.Error("a failure was recorded")
	}
	c := run("sh", "-c", `echo "$LOCKKEEPER_NAME|$LOCKKEEPER_TOKEN|$LOCKKEEPER_FENCE"`)
	c.ends(0)
	if f := strings.Split(strings.TrimSpace(c.out.String()), "|"); len(f) != 3 || f[0] != "x" || f[1] != "" || len(f[2]) < 10 {
		t.Errorf("the output of the command is %q", c.out.String())
	}
	run("sh", "-c", "exit 7").ends(0, "has already run")
}

func TestOncePerPeriodRunningKilledOrFrozen(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	run := func(args ...string) *testCommand {
		return command(t, append([]string{"run", "--redis", url, "--once-per", "1h", "--ttl", "600ms", "--grace", "100ms", "x", "--"}, args...)...)
	}
	held := func() bool { return rdb.Exists(ctx, onceKey).Val() == 1 }
	expired := func() bool { return !held() }
	// starts returns when the command runs, which is later than when the lease is at the server.
	starts := func() *testCommand {
		file := filepath.Join(t.TempDir(), "started")
		c := run("sh", "-c", `: >"$0"; exec sleep 60`, file)
		c.starts()
		eventually(t, "it runs", exists(file))
		return c
	}

	c := starts()
	run("false").ends(0, "is already running elsewhere")
	c.signals(syscall.SIGTERM)
	c.waits(128 + 15)
	if held() {
		t.Error("the command was recorded although a signal ended it, or its lease was not released")
	}

	c = starts()
	c.signals(syscall.SIGKILL)
	eventually(t, "its lease expires", expired)
	_ = c.Wait()

	c = starts()
	c.signals(syscall.SIGSTOP)
	eventually(t, "its lease expires", expired)
	run("true").ends(0)
	c.signals(syscall.SIGCONT)
	c.waits(exit.Lost, "was lost while the command ran")
	run("false").ends(0, "has already run")
}

func TestOncePerPeriodNotRunWithoutRedis(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ran")
	command(t, "run", "--redis", "redis://127.0.0.1:1", "--once-per", "1h", "x", "--", "touch", file).ends(exit.Unreachable, "refused")
	if _, err := os.Stat(file); err == nil {
		t.Error("the command was run")
	}
}
