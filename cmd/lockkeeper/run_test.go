package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// runner returns what makes a command run with these flags.
func runner(t *testing.T, url string, flags ...string) func(args ...string) *testCommand {
	return func(args ...string) *testCommand {
		t.Helper()
		return command(t, slices.Concat([]string{"run", "--redis", url}, flags, args)...)
	}
}

// isFree fails the test if the lock of a key is held.
func isFree(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	check.That(t, rdb.Exists(ctx, key).Val() == 0, "%s is held", key)
}

func TestRedlockUsesMajority(t *testing.T) {
	t.Parallel()
	var servers []*miniredis.Miniredis
	args := []string{"run", "--kind", "redlock", "--try"}
	for range 3 {
		m := miniredis.RunT(t)
		m.ClockTTL(true)
		servers, args = append(servers, m), append(args, "--redis", "redis://"+m.Addr())
	}
	run := func(argv ...string) *testCommand { return command(t, slices.Concat(args, argv)...) }
	holder := run("x", "--", "sleep", "60").starts()
	for _, m := range servers {
		eventually(t, "the lock is held", func() bool { return m.Exists("lock:x") })
	}
	run("x", "--", "true").ends(exit.NotAcquired, "not acquired")
	holder.isEndedBy(syscall.SIGTERM)
	for _, m := range servers {
		eventually(t, "the lock is free", func() bool { return !m.Exists("lock:x") })
	}
	servers[1].Close()
	run("x", "--", "sh", "-c", "exit 7").ends(7)
	servers[2].Close()
	run("x", "--", "true").ends(exit.Unreachable, "no majority of the servers", "server 1: agreed", "server 3: dial tcp")

	args[3] = "--wait=1500ms" // the first server says that the lock is free, but that is not for one server to say
	c := run("x", "--", "true").ends(exit.Unreachable, "no answer from Redis: ")
	check.That(t, !strings.Contains(c.err.String(), "it is free"), "%s", c.err.String())
}

// Commands that run, and whether others can run beside them.
func TestKindsExclude(t *testing.T) {
	t.Parallel()
	const limit, window = "--kind semaphore --limit 4 --permits 2", "--kind semaphore --limit 9 --per 1s --at-once 2"
	for flags, c := range map[string]struct {
		running int
		others  map[string]int // exit codes
	}{
		"--kind mutex": {1, map[string]int{"--kind mutex": exit.NotAcquired, "--kind fair": 0}},
		"--kind read":  {2, map[string]int{"--kind read": 0, "--kind write": exit.NotAcquired, "--kind fair": 0}},
		"--kind write": {1, map[string]int{"--kind read": exit.NotAcquired}},
		limit:          {2, map[string]int{limit: exit.NotAcquired}},
		window:         {2, map[string]int{window: exit.NotAcquired}},
	} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			_, url := server(t)
			run := func(flags string, args ...string) *testCommand {
				return runner(t, url, strings.Fields(flags)...)(append([]string{"--try", "x", "--"}, args...)...)
			}
			var all []*testCommand
			for range c.running {
				x := run(flags, "sh", "-c", `: >runs; until [ -e go ]; do sleep 0.01; done`)
				x.Dir = t.TempDir()
				all = append(all, x.starts())
				x.creates("runs")
			}
			for other, code := range c.others {
				run(other, "true").ends(code)
			}
			waiting := runner(t, url, strings.Fields(flags)...)("x", "--", "true").starts()
			for _, x := range all {
				x.finds("go")
				x.waits(0)
			}
			waiting.waits(0)
		})
	}
}

func TestRetryAfterReported(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	run := runner(t, url, "--kind", "semaphore", "--limit", "3", "--per", "1h")
	c := run("--permits", "2", "x", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE").ends(0)
	fence := must.Get(strconv.ParseInt(strings.TrimSpace(c.out.String()), 10, 64))(t)
	check.That(t, time.Since(time.UnixMicro(fence)).Abs() <= time.Hour, "the fence is %d, not a time", fence)
	run("--try", "--permits", "2", "x", "--", "true").ends(exit.NotAcquired, "not acquired", "not before 59m")
	start := time.Now()
	run("--wait", "59m", "--permits", "2", "x", "--", "true").ends(exit.NotAcquired, "not acquired", "not before 59m")
	d := time.Since(start)
	check.That(t, d <= time.Minute, "it waited for %v, although --wait was too short", d)
	run("--try", "x", "--", "true").ends(0)
}

func TestPermitsAboveLoweredLimit(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	s := must.Get(semaphore.New(keeperOf(t, rdb, ""), "x", 3, nil))(t)
	must.OK(t, s.SetLimit(ctx, 1))
	runner(t, url)("--kind", "semaphore", "--limit", "3", "--permits", "2", "x", "--", "true").ends(exit.NotAcquired, "limit in force")
}

func TestChildEnvironment(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	c := command(t, "run", "x y", "--", "sh", "-c", `cat; echo "$LOCKKEEPER_NAME|$LOCKKEEPER_TOKEN|$LOCKKEEPER_FENCE|$MINE|$#" "$@"`, "sh", "-a", "b c")
	c.Env = append(c.Env, "REDIS_URL="+url, "MINE=untouched")
	c.Stdin = strings.NewReader("input\n")
	c.ends(0)
	lines := strings.Split(strings.TrimSpace(c.out.String()), "\n")
	fields := strings.Split(lines[1], "|")
	if lines[0] != "input" || fields[0] != "x y" || fields[1] == "" || fields[2] == "" || fields[3] != "untouched" || fields[4] != "2 -a b c" {
		t.Errorf("%q", c.out.String())
	}
	fence := rdb.HGet(ctx, "{lock:x y}:mutex:meta", "seq").Val()
	check.That(t, fence == fields[2], "fence %s, at the server %s", fields[2], fence)
}

// If the server stops answering, run ends soon after the command even if the lease is long, and at once after a signal.
func TestRunEndsSoonAfterCommand(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"by_itself": 30 * time.Second, "signal": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			c := runner(t, "redis://"+s.Addr)("--ttl", "1h", "x", "--",
				"sh", "-c", `: >ready; while ! [ -e go ]; do sleep 0.05; done; : >over; exit 9`)
			c.Dir = t.TempDir()
			c.starts().creates("ready")
			s.Freeze()
			c.finds("go")
			c.creates("over")
			start := time.Now()
			go func() { // the first signal may arrive before the command has ended
				for name == "signal" && c.Process.Signal(syscall.SIGTERM) == nil {
					time.Sleep(200 * time.Millisecond)
				}
			}()
			c.waits(9, "the lock will expire")
			d := time.Since(start)
			check.That(t, d <= limit, "it took %v", d)
		})
	}
}

// Whoever has read the messages of lockkeeper has ended, as head does. The command, which ignores SIGTERM, must not outlive the lock.
func TestLostLockEndsCommandIfNobodyReads(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	c := runner(t, url, "--ttl", "600ms", "--grace", "100ms")("x", "--", "sh", "-c", `trap '' TERM; i=0; while [ $i -lt 200 ]; do i=$((i+1)); : >alive; sleep 0.02; done`)
	c.Dir = t.TempDir()
	r, w, err := os.Pipe()
	must.OK(t, err)
	c.Stderr = w
	c.starts().creates("alive")
	must.OK(t, w.Close())
	must.OK(t, r.Close())
	rdb.Del(ctx, "lock:x")
	c.waits(exit.Lost)
	c.stopsCreating("alive")
}
