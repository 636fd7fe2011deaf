package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

const onceKey = "{lock:x}:once:holders"

func TestOncePerPeriodFailureRunsAgain(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	run := runner(t, url, "--once-per", "1h", "x", "--")
	run("sh", "-c", "exit 7").ends(7)
	c := run("sh", "-c", `echo "$LOCKKEEPER_NAME|$LOCKKEEPER_TOKEN|$LOCKKEEPER_FENCE"`).ends(0)
	f := strings.Split(strings.TrimSpace(c.out.String()), "|")
	check.That(t, len(f) == 3 && f[0] == "x" && f[1] == "" && len(f[2]) >= 10, "the output of the command is %q", c.out.String())
	run("false").ends(0, `"x" has already run in this period`, "the next period starts in ")
	left := rdb.PTTL(ctx, onceKey).Val()
	check.That(t, left <= time.Hour && left >= time.Hour-time.Minute, "the period ends in %v", left)
}

func TestOncePerPeriodRunningKilledOrFrozen(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	run := runner(t, url, "--once-per", "1h", "--ttl", "600ms", "--grace", "100ms", "x", "--")
	expires := func() {
		t.Helper()
		eventually(t, "its lease expires", func() bool { return rdb.Exists(ctx, onceKey).Val() == 0 })
	}
	// starts returns when the command runs, which is later than when the lease is at the server.
	starts := func() *testCommand {
		c := run("sh", "-c", ": >started; exec sleep 60")
		c.Dir = t.TempDir()
		c.starts().creates("started")
		return c
	}

	c := starts()
	run("false").ends(0, "is already running elsewhere")
	c.isEndedBy(syscall.SIGTERM)
	isFree(t, rdb, onceKey) // it was neither recorded as a success nor is it still leased

	c = starts()
	c.signals(syscall.SIGKILL)
	expires()
	_ = c.Wait()

	c = starts()
	c.signals(syscall.SIGSTOP)
	expires()
	run("true").ends(0)
	c.signals(syscall.SIGCONT)
	c.waits(exit.Lost, "was lost while the command ran")
	run("false").ends(0, "has already run")
}
