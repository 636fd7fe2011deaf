package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

const onceKey = "{lock:x}:once:holders"

// What a run that fails or loses its lease leaves behind is in TestExitCodes.
func TestOncePerPeriod(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	run := runner(t, url, "--once-per", "1h", "x", "--")
	c := run("sh", "-c", ": >started; exec sleep 60")
	c.Dir = t.TempDir()
	c.starts().creates("started")
	run("false").ends(0, "is already running elsewhere")
	c.isEndedBy(syscall.SIGTERM)
	c = run("sh", "-c", `echo "$LOCKKEEPER_NAME|$LOCKKEEPER_TOKEN|$LOCKKEEPER_FENCE"`).ends(0)
	f := strings.Split(strings.TrimSpace(c.out.String()), "|")
	check.That(t, len(f) == 3 && f[0] == "x" && f[1] == "" && len(f[2]) >= 10, "the output of the command is %q", c.out.String())
	run("false").ends(0, `"x" has already run in this period`, "the next period starts in ")
	left := rdb.PTTL(ctx, onceKey).Val()
	check.That(t, left <= time.Hour && left >= time.Hour-time.Minute, "the period ends in %v", left)
}
