package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// The tests run this very binary as the command.
func TestMain(m *testing.M) {
	if os.Getenv("LOCKKEEPER_TEST_MAIN") != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// cli is one run of the command.
type cli struct {
	*testing.T
	*exec.Cmd
	out, err bytes.Buffer
}

func command(t *testing.T, args ...string) *cli {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &cli{T: t, Cmd: exec.Command(self, args...)}
	// A program with the race detector sleeps a second when it ends, unless told not to.
	c.Env = append(os.Environ(), "LOCKKEEPER_TEST_MAIN=1", "REDIS_URL=", "GORACE=atexit_sleep_ms=0")
	c.Stdout, c.Stderr = &c.out, &c.err
	return c
}

// ends runs the command to its end and checks its exit code and what its error output says.
func (c *cli) ends(code int, says ...string) {
	c.Helper()
	if err := c.Start(); err != nil {
		c.Fatal(err)
	}
	c.waits(code, says...)
}

func (c *cli) waits(code int, says ...string) {
	c.Helper()
	err := c.Wait()
	var ended *exec.ExitError
	got := 0
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	} else if err != nil {
		c.Fatal(err)
	}
	if got != code {
		c.Errorf("%v: exit code %d, want %d\n%s%s", c.Args[1:], got, code, c.out.String(), c.err.String())
	}
	for _, s := range says {
		if !strings.Contains(c.err.String(), s) {
			c.Errorf("%v: the error output has no %q:\n%s", c.Args[1:], s, c.err.String())
		}
	}
}

func server(t *testing.T) (*redis.Client, string) {
	t.Helper()
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, "redis://" + m.Addr()
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

var ctx = context.Background()

func TestTheChildsExitCodeIsPassedOn(t *testing.T) {
	rdb, url := server(t)
	command(t, "run", "--redis", url, "x", "--", "sh", "-c", "exit 0").ends(0)
	command(t, "run", "--redis", url, "x", "--", "sh", "-c", "exit 7").ends(7)
	command(t, "run", "--redis", url, "x", "--", "sh", "-c", "kill -9 $$").ends(128 + 9)
	if n := rdb.Exists(ctx, "lock:x").Val(); n != 0 {
		t.Error("the lock was left")
	}
}

func TestKindsAreLocksOfTheirOwn(t *testing.T) {
	rdb, url := server(t)
	for kind, key := range map[string]string{"mutex": "lock:x", "fair": "{lock:x}:fair:holders", "write": "{lock:x}:rwlock:holders"} {
		c := command(t, "run", "--redis", url, "--kind", kind, "x", "--", "sleep", "60")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, kind+" is held", func() bool { return rdb.Exists(ctx, key).Val() == 1 })
		command(t, "run", "--redis", url, "--kind", kind, "--try", "x", "--", "true").ends(75)
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		c.waits(128 + 15)
		eventually(t, kind+" is free", func() bool { return rdb.Exists(ctx, key).Val() == 0 })
	}
	command(t, "run", "--redis", url, "--kind", "fare", "x", "--", "true").ends(64, `"fare" is not one of`)
}

func TestReadersRunTogetherAndAWriterAlone(t *testing.T) {
	_, url := server(t)
	run := func(kind string, args ...string) *cli {
		return command(t, append([]string{"run", "--redis", url, "--kind", kind}, args...)...)
	}
	dir := t.TempDir()
	var readers []*cli
	for _, file := range []string{"first", "second"} {
		c := run("read", "x", "--", "sh", "-c", `: >"$1"; until [ -e go ]; do sleep 0.01; done`, "sh", file)
		c.Dir = dir
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		readers = append(readers, c)
	}
	for _, file := range []string{"first", "second"} {
		eventually(t, "the "+file+" reader is in", func() bool {
			_, err := os.Stat(filepath.Join(dir, file))
			return err == nil
		})
	}
	run("read", "--try", "x", "--", "true").ends(0)
	run("write", "--try", "x", "--", "true").ends(75, "not acquired")
	run("fair", "--try", "x", "--", "true").ends(0)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range readers {
		c.waits(0)
	}
	run("write", "--try", "x", "--", "true").ends(0)
}

func TestTheChildGetsItsSurroundings(t *testing.T) {
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

func TestWhatIsWrongHasACodeOfItsOwn(t *testing.T) {
	rdb, url := server(t)
	rdb.Set(ctx, "lock:held", "another", time.Minute)
	rdb.LPush(ctx, "lock:list", "x")
	const ok = "true"
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{75, "not acquired", []string{"--redis", url, "--try", "held", "--", ok}},
		{75, "deadline", []string{"--redis", url, "--wait", "100ms", "held", "--", ok}},
		{64, "NAME", []string{"--redis", url}},
		{64, "COMMAND", []string{"--redis", url, "x", "--"}},
		{64, "--", []string{"--redis", url, "x", ok}},
		{64, "2 names", []string{"--redis", url, "x", "y", "--", ok}},
		{64, "name", []string{"--redis", url, "", "--", ok}},
		{64, "}", []string{"--redis", url, "a}{b", "--", ok}},
		{64, "unknown flag: --no", []string{"--no", "x", "--", ok}},
		{64, "together", []string{"--redis", url, "--try", "--wait", "1s", "x", "--", ok}},
		{64, "nonsense", []string{"--redis", url, "--kind", "nonsense", "x", "--", ok}},
		{64, "1µs", []string{"--redis", url, "--ttl", "1us", "x", "--", ok}},
		{64, "needs an end", []string{"--redis", url, "--ttl", "0", "x", "--", ok}},
		{64, "negative", []string{"--redis", url, "--wait", "-1s", "x", "--", ok}},
		{64, "negative", []string{"--redis", url, "--grace", "-1s", "x", "--", ok}},
		{64, "invalid", []string{"--redis", url, "--ttl", "soon", "x", "--", ok}},
		{64, "the forms are", []string{"--redis", "http://x", "x", "--", ok}},
		{64, "the forms are", []string{"--redis", "redis+ring://x", "x", "--", ok}},
		{64, "master_name", []string{"--redis", "redis+sentinel://x:1", "x", "--", ok}},
		{64, "the forms are", []string{"--redis", "redis://x:port", "x", "--", ok}},
		{69, "refused", []string{"--redis", "redis://127.0.0.1:1", "--wait", "300ms", "x", "--", ok}},
		{69, "refused", []string{"--redis", "redis://127.0.0.1:1", "--try", "x", "--", ok}},
		{69, "WRONGTYPE", []string{"--redis", url, "list", "--", ok}},
		{127, "not found", []string{"--redis", url, "x", "--", "no-such-command"}},
		{126, "denied", []string{"--redis", url, "x", "--", "/etc/passwd"}},
	} {
		t.Run(strings.Join(c.args, "_"), func(t *testing.T) {
			t.Parallel()
			command(t, append([]string{"run"}, c.args...)...).ends(c.code, c.says)
		})
	}
	command(t, "walk").ends(64, "unknown command")
	command(t, "demo", "x").ends(64, "no arguments")
	c := command(t, "run", "--redis", "redis://me:secret@x:port", "x", "--", ok)
	c.ends(64)
	if strings.Contains(c.err.String(), "secret") {
		t.Error("the password was shown")
	}
}

func TestHelpHasExamplesForEveryCommandAndCompletionIsThere(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"demo", "--help"}} {
		c := command(t, args...)
		c.ends(0)
		if !strings.Contains(c.out.String(), "Examples:") {
			t.Errorf("%v: no examples in\n%s", args, c.out.String())
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		c := command(t, "completion", shell)
		c.ends(0)
		if c.out.Len() < 1000 {
			t.Errorf("%s: %d bytes of completion", shell, c.out.Len())
		}
	}
}

func TestAnInterruptWhileWaitingLeavesNothing(t *testing.T) {
	rdb, url := server(t)
	rdb.Set(ctx, "lock:x", "another", time.Minute)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := command(t, "run", "--redis", url, "x", "--", "true")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it waits", func() bool { return rdb.ZCard(ctx, "{lock:x}:mutex:queue").Val() == 1 })
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		c.waits(128 + int(sig))
		if n := rdb.ZCard(ctx, "{lock:x}:mutex:queue").Val(); n != 0 {
			t.Errorf("%v: %d waiters are left", sig, n)
		}
	}
}

func TestKillingTheHolderLetsTheNextIn(t *testing.T) {
	rdb, url := server(t)
	a := command(t, "run", "--redis", url, "--ttl", "1s", "x", "--", "sleep", "60")
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it holds", func() bool { return rdb.Exists(ctx, "lock:x").Val() == 1 })
	b := command(t, "run", "--redis", url, "--wait", "10s", "x", "--", "true")
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it waits", func() bool { return rdb.ZCard(ctx, "{lock:x}:mutex:queue").Val() == 1 })
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.waits(0)
	_ = a.Wait()
}

func TestSignalsArePassedOn(t *testing.T) {
	rdb, url := server(t)
	ready := filepath.Join(t.TempDir(), "ready") // the trap is set
	c := command(t, "run", "--redis", url, "x", "--", "sh", "-c", `trap 'echo got it; exit 5' TERM; : >"$0"; while :; do sleep 0.05; done`, ready)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { _, err := os.Stat(ready); return err == nil })
	if rdb.Exists(ctx, "lock:x").Val() != 1 {
		t.Error("the command runs without the lock")
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.waits(5)
	if !strings.Contains(c.out.String(), "got it") {
		t.Errorf("%q", c.out.String())
	}
	if rdb.Exists(ctx, "lock:x").Val() != 0 {
		t.Error("the lock was left")
	}
}

func TestWhenTheLockIsLostTheWholeGroupEnds(t *testing.T) {
	rdb, url := server(t)
	// A child that ignores SIGTERM, with a child of its own.
	file := t.TempDir() + "/alive"
	script := `trap 'echo asked >>"$F"' TERM; (trap '' TERM; while :; do echo tick >"$F.2"; sleep 0.02; done) & while :; do sleep 0.05; done`
	c := command(t, "run", "--redis", url, "--ttl", "600ms", "--grace", "300ms", "x", "--", "sh", "-c", script)
	c.Env = append(c.Env, "F="+file)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both run", func() bool { _, err := os.Stat(file + ".2"); return err == nil })
	start := time.Now()
	rdb.Del(ctx, "lock:x")
	c.waits(76, "lost")
	if d := time.Since(start); d < 300*time.Millisecond || d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "asked") {
		t.Errorf("the child was not asked to end first: %q, %v", b, err)
	}
	if err := os.Remove(file + ".2"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if _, err := os.Stat(file + ".2"); err == nil {
		t.Error("the grandchild lives on")
	}
}

func TestTheDemoDoesItsJob(t *testing.T) {
	c := command(t, "demo")
	start := time.Now()
	c.ends(0)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("the demo took %v", d)
	}
	for _, s := range []string{"acquisitions: ", "overlaps seen:          0", "served out of turn:     0",
		"fences strictly rising: yes", "killed while holding:", "killed while first:", "frozen while first:",
		"reads: ", "writes: ", "reads beside a write:   0", "fences in order:        yes", "longest wait to write:", "longest read:"} {
		if !strings.Contains(c.out.String(), s) {
			t.Errorf("the summary has no %q:\n%s", s, c.out.String())
		}
	}
}
