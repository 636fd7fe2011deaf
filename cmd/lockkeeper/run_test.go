package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// exclusiveLocks are locks whose implementations differ, with the flags for an exclusive lock and the keys of the lock x.
var exclusiveLocks = map[string]struct {
	args        []string
	lock, queue string
}{
	"mutex":     {nil, "lock:x", "{lock:x}:mutex:queue"},
	"semaphore": {[]string{"--kind", "semaphore", "--limit", "3", "--permits", "2"}, "{lock:x}:semaphore:holders", "{lock:x}:semaphore:queue"},
}

// forEachLock runs a test for each of them.
func forEachLock(t *testing.T, test func(t *testing.T, rdb *redis.Client, lock, queue string, run func(args ...string) *testCommand)) {
	for name, l := range exclusiveLocks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, url := server(t)
			test(t, rdb, l.lock, l.queue, func(args ...string) *testCommand {
				t.Helper()
				return command(t, slices.Concat([]string{"run", "--redis", url}, l.args, args)...)
			})
		})
	}
}

func TestRedlockUsesMajority(t *testing.T) {
	t.Parallel()
	var rdbs []*redis.Client
	var servers []*miniredis.Miniredis
	args := []string{"run", "--kind", "redlock", "--try"}
	for range 3 {
		m := miniredis.RunT(t)
		m.ClockTTL(true)
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		servers, rdbs = append(servers, m), append(rdbs, rdb)
		args = append(args, "--redis", "redis://"+m.Addr())
	}
	run := func(argv ...string) *testCommand { return command(t, append(append([]string{}, args...), argv...)...) }
	holder := run("x", "--", "sleep", "60")
	must.OK(t, holder.Start())
	for _, rdb := range rdbs {
		eventually(t, "the lock to be held", func() bool { return rdb.Exists(ctx, "lock:x").Val() == 1 })
	}
	run("x", "--", "true").ends(exit.NotAcquired, "not acquired")
	must.OK(t, holder.Process.Signal(syscall.SIGTERM))
	holder.waits(128 + 15)
	for _, rdb := range rdbs {
		eventually(t, "the lock to be free", func() bool { return rdb.Exists(ctx, "lock:x").Val() == 0 })
	}
	servers[1].Close()
	run("x", "--", "sh", "-c", "exit 7").ends(7)
	servers[2].Close()
	run("x", "--", "true").ends(exit.Unreachable, "no majority of the servers", "server 1: agreed", "server 3: dial tcp")

	command(t, "run", "--kind", "redlock", "--redis", "redis://a", "--redis", "redis://b", "x", "--", "true").ends(exit.Usage, "odd number")
	s := redistest.Start(t)
	_, port, _ := net.SplitHostPort(s.Addr)
	command(t, "run", "--kind", "redlock", "--redis", "redis://"+s.Addr, "--redis", "redis://localhost:"+port, "--redis", "redis://"+servers[0].Addr(),
		"x", "--", "true").ends(exit.Usage, "keepers 1 and 2 of 3 use the same server")
	command(t, "run", "--redis", "redis://a", "--redis", "redis://b", "x", "--", "true").ends(exit.Usage, "more than one server")
}

func TestChildExitCodePropagated(t *testing.T) {
	t.Parallel()
	forEachLock(t, func(t *testing.T, rdb *redis.Client, lock, _ string, run func(...string) *testCommand) {
		run("x", "--", "sh", "-c", "exit 0").ends(0)
		run("x", "--", "sh", "-c", "exit 7").ends(7)
		run("x", "--", "sh", "-c", "kill -9 $$").ends(128 + 9)
		if n := rdb.Exists(ctx, lock).Val(); n != 0 {
			t.Error("the lock was not released")
		}
	})
}

func TestReadersShareWriterExcludes(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	run := func(kind string, args ...string) *testCommand {
		return command(t, append([]string{"run", "--redis", url, "--kind", kind}, args...)...)
	}
	dir := t.TempDir()
	var readers []*testCommand
	for _, file := range []string{"first", "second"} {
		c := run("read", "x", "--", "sh", "-c", `: >"$1"; until [ -e go ]; do sleep 0.01; done`, "sh", file)
		c.Dir = dir
		must.OK(t, c.Start())
		t.Cleanup(func() { _ = c.Process.Kill() })
		readers = append(readers, c)
	}
	for _, file := range []string{"first", "second"} {
		eventually(t, "the "+file+" reader is in", exists(filepath.Join(dir, file)))
	}
	run("read", "--try", "x", "--", "true").ends(0)
	run("write", "--try", "x", "--", "true").ends(75, "not acquired")
	run("fair", "--try", "x", "--", "true").ends(0)
	must.OK(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	for _, c := range readers {
		c.waits(0)
	}
	run("write", "--try", "x", "--", "true").ends(0)
}

func TestConcurrencyLimit(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	const limit, runs = 3, 8
	dir := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(dir, "in"), 0o700))
	var all []*testCommand
	for i := range runs {
		c := command(t, "run", "--redis", url, "--kind", "semaphore", "--limit", strconv.Itoa(limit), "x", "--", "sh", "-c",
			`: >"in/$1"; ls in | wc -l >>counts; until [ -e go ]; do sleep 0.01; done; rm "in/$1"`, "sh", strconv.Itoa(i))
		c.Dir = dir
		c.starts()
		all = append(all, c)
	}
	eventually(t, "the commands above the limit wait", func() bool {
		return rdb.ZCount(ctx, "{lock:x}:semaphore:queue", "-inf", protocol.BehindWaiters).Val() == runs-limit
	})
	eventually(t, "the others run", func() bool {
		in, err := os.ReadDir(filepath.Join(dir, "in"))
		return err == nil && len(in) == limit
	})
	command(t, "run", "--redis", url, "--kind", "semaphore", "--limit", strconv.Itoa(limit), "--try", "x", "--", "true").ends(75, "not acquired")
	must.OK(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	for _, c := range all {
		c.waits(0)
	}
	counts := must.Get(os.ReadFile(filepath.Join(dir, "counts")))(t)
	seen := strings.Fields(string(counts))
	if most := slices.Max(seen); len(seen) != runs || most != strconv.Itoa(limit) {
		t.Errorf("%d runs with at most %s at once; want %d with at most %d", len(seen), most, runs, limit)
	}
}

// The fence of a grant is the time of the server in microseconds, so the children print exactly when each was granted.
func TestWindowLimit(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"alone": nil, "at-once": {"--at-once", "2"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, url := server(t)
			const limit, runs, per = 2, 6, 300 * time.Millisecond
			args := slices.Concat([]string{"run", "--redis", url, "--kind", "semaphore", "--limit", strconv.Itoa(limit), "--per", per.String()},
				args, []string{"x", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE"})
			var all []*testCommand
			for range runs {
				c := command(t, args...)
				c.starts()
				all = append(all, c)
			}
			var at []int64
			for _, c := range all {
				c.waits(0)
				at = append(at, must.Get(strconv.ParseInt(strings.TrimSpace(c.out.String()), 10, 64))(t))
			}
			slices.Sort(at)
			for i := limit; i < runs; i++ {
				if apart := time.Duration(at[i]-at[i-limit]) * time.Microsecond; apart < per {
					t.Errorf("%d were granted within %v", limit+1, apart)
				}
			}
			eventually(t, "nothing is held", func() bool { return rdb.ZScore(ctx, "{lock:x}:ratelimit:holders", "used").Err() == redis.Nil })
		})
	}
}

func TestRetryAfterReported(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	run := func(args ...string) *testCommand {
		return command(t, append([]string{"run", "--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1h"}, args...)...)
	}
	run("--permits", "2", "x", "--", "true").ends(0)
	run("--try", "--permits", "2", "x", "--", "true").ends(75, "not acquired", "not before 59m")
	start := time.Now()
	run("--wait", "59m", "--permits", "2", "x", "--", "true").ends(75, "not acquired", "not before 59m")
	if d := time.Since(start); d > time.Minute {
		t.Errorf("it waited for %v, although --wait was too short", d)
	}
	run("--try", "x", "--", "true").ends(0)
}

func TestPermitsAboveLoweredLimit(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	command(t, "run", "--redis", url, "--kind", "semaphore", "--limit", "3", "x", "--", "true").ends(0)
	k := must.Get(lockkeeper.New(rdb, nil))(t)
	defer func() { _ = k.Close() }()
	s := must.Get(semaphore.New(k, "x", 3, nil))(t)
	must.OK(t, s.SetLimit(ctx, 1))
	command(t, "run", "--redis", url, "--kind", "semaphore", "--limit", "3", "--permits", "2", "x", "--", "true").ends(75, "limit in force")
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
	if fence := rdb.HGet(ctx, "{lock:x y}:mutex:meta", "seq").Val(); fence != fields[2] {
		t.Errorf("fence %s, at the server %s", fields[2], fence)
	}
}

func TestInterruptWhileWaitingLeavesQueue(t *testing.T) {
	t.Parallel()
	forEachLock(t, func(t *testing.T, rdb *redis.Client, lock, queue string, run func(...string) *testCommand) {
		holder := run("x", "--", "sleep", "60")
		holder.starts()
		eventually(t, "the lock is held", func() bool { return rdb.Exists(ctx, lock).Val() == 1 })
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			c := run("x", "--", "true")
			c.starts()
			eventually(t, "it waits", func() bool { return rdb.ZCount(ctx, queue, "-inf", protocol.BehindWaiters).Val() == 1 })
			c.signals(sig)
			c.waits(128 + int(sig))
			if n := rdb.ZCount(ctx, queue, "-inf", protocol.BehindWaiters).Val(); n != 0 {
				t.Errorf("%v: %d waiters are still queued", sig, n)
			}
		}
		holder.signals(syscall.SIGTERM)
		holder.waits(128 + 15)
		if n := rdb.Exists(ctx, lock).Val(); n != 0 {
			t.Error("the lock was not released")
		}
	})
}

func TestKilledHolderIsReplaced(t *testing.T) {
	t.Parallel()
	forEachLock(t, func(t *testing.T, rdb *redis.Client, lock, queue string, run func(...string) *testCommand) {
		a := run("--ttl", "1s", "x", "--", "sleep", "60")
		a.starts()
		eventually(t, "the lock is held", func() bool { return rdb.Exists(ctx, lock).Val() == 1 })
		b := run("--wait", "10s", "x", "--", "true")
		b.starts()
		eventually(t, "it waits", func() bool { return rdb.ZCount(ctx, queue, "-inf", protocol.BehindWaiters).Val() == 1 })
		a.signals(syscall.SIGKILL)
		b.waits(0)
		_ = a.Wait()
	})
}

// If the server stops answering, run ends soon after the command even if the lease is long, and at once after a signal.
func TestRunEndsSoonAfterCommand(t *testing.T) {
	t.Parallel()
	for _, signal := range []bool{false, true} {
		t.Run(fmt.Sprintf("signal_%t", signal), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			dir := t.TempDir()
			c := command(t, "run", "--redis", "redis://"+s.Addr, "--ttl", "1h", "x", "--",
				"sh", "-c", `: >ready; while ! [ -e go ]; do sleep 0.05; done; : >over; exit 9`)
			c.Dir = dir
			c.starts()
			is := func(file string) func() bool {
				return exists(filepath.Join(dir, file))
			}
			eventually(t, "it runs", is("ready"))
			s.Freeze()
			must.OK(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
			eventually(t, "the command ends", is("over"))
			start := time.Now()
			ended := make(chan struct{})
			go func() {
				for signal { // the first signal may arrive before the command has ended
					select {
					case <-ended:
						return
					case <-time.After(200 * time.Millisecond):
						_ = c.Process.Signal(syscall.SIGTERM)
					}
				}
			}()
			c.waits(9, "the lock will expire")
			close(ended)
			if d := time.Since(start); d > 30*time.Second || signal && d > 5*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

func TestMissingPasswordReported(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	set(t, s, "requirepass", "secret")
	command(t, "run", "--redis", "redis://"+s.Addr, "x", "--", "true").ends(69, "wants a password")
	command(t, "run", "--redis", "redis://:secret@"+s.Addr, "x", "--", "true").ends(0)
}

func TestSignalsForwarded(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	ready := filepath.Join(t.TempDir(), "ready") // created when the trap is set
	c := command(t, "run", "--redis", url, "x", "--", "sh", "-c", `trap 'echo got it; exit 5' TERM; : >"$0"; while :; do sleep 0.05; done`, ready)
	must.OK(t, c.Start())
	eventually(t, "it is ready", exists(ready))
	if rdb.Exists(ctx, "lock:x").Val() != 1 {
		t.Error("the command runs without the lock")
	}
	must.OK(t, c.Process.Signal(syscall.SIGTERM))
	c.waits(5)
	if !strings.Contains(c.out.String(), "got it") {
		t.Errorf("%q", c.out.String())
	}
	if rdb.Exists(ctx, "lock:x").Val() != 0 {
		t.Error("the lock was not released")
	}
}

func TestLostLockEndsProcessGroup(t *testing.T) {
	t.Parallel()
	forEachLock(t, testLostLock)
}

func testLostLock(t *testing.T, rdb *redis.Client, lock, _ string, run func(...string) *testCommand) {
	// A child that ignores SIGTERM, with a child of its own.
	file := t.TempDir() + "/alive"
	script := `trap 'echo asked >>"$F"' TERM; (trap '' TERM; while :; do echo tick >"$F.2"; sleep 0.02; done) & while :; do sleep 0.05; done`
	c := run("--ttl", "600ms", "--grace", "300ms", "x", "--", "sh", "-c", script)
	c.Env = append(c.Env, "F="+file)
	must.OK(t, c.Start())
	eventually(t, "both run", exists(file+".2"))
	start := time.Now()
	rdb.Del(ctx, lock)
	c.waits(76, "lost")
	if d := time.Since(start); d < 300*time.Millisecond || d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "asked") {
		t.Errorf("the child did not get SIGTERM first: %q, %v", b, err)
	}
	must.OK(t, os.Remove(file+".2"))
	time.Sleep(100 * time.Millisecond)
	if _, err := os.Stat(file + ".2"); err == nil {
		t.Error("the grandchild was not killed")
	}
}
