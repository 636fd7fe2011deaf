package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// The tests run the test binary as the command.
func TestMain(m *testing.M) {
	if os.Getenv("LOCKKEEPER_TEST_MAIN") != "" {
		main()
	}
	logging.Disable()
	parallel.Tests("16") // more would delay the demo, which checks times
	os.Exit(m.Run())
}

// testCommand is a run of the command.
type testCommand struct {
	*testing.T
	*exec.Cmd
	out, err bytes.Buffer
}

func command(t *testing.T, args ...string) *testCommand {
	t.Helper()
	self := must.Get(os.Executable())(t)
	c := &testCommand{T: t, Cmd: exec.Command(self, args...)}
	// With the race detector, a program sleeps for a second before it exits, unless GORACE prevents it.
	c.Env = append(os.Environ(), "LOCKKEEPER_TEST_MAIN=1", "REDIS_URL=", "GORACE=atexit_sleep_ms=0")
	c.Stdout, c.Stderr = &c.out, &c.err
	return c
}

// ends runs the command and checks its exit code and texts of its standard error.
func (c *testCommand) ends(code int, says ...string) {
	c.Helper()
	c.starts()
	c.waits(code, says...)
}

// starts starts the command. It is killed at the end of the test.
func (c *testCommand) starts() {
	c.Helper()
	must.OK(c.T, c.Start())
	c.Cleanup(func() { _ = c.Process.Kill() })
}

func (c *testCommand) signals(s syscall.Signal) {
	c.Helper()
	must.OK(c.T, c.Process.Signal(s))
}

// waits waits for the end of the command and checks it as ends does.
func (c *testCommand) waits(code int, says ...string) {
	c.Helper()
	if err := c.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		c.Fatal(err)
	}
	c.ended(code, says...)
}

// ended checks how the command has ended.
func (c *testCommand) ended(code int, says ...string) {
	c.Helper()
	if got := c.ProcessState.ExitCode(); got != code {
		c.Errorf("%v: exit code %d, want %d\n%s%s", c.Args[1:], got, code, c.out.String(), c.err.String())
	}
	for _, s := range says {
		if !strings.Contains(c.err.String(), s) {
			c.Errorf("%v: standard error has no %q:\n%s", c.Args[1:], s, c.err.String())
		}
	}
}

// prints checks texts of its standard output.
func (c *testCommand) prints(texts ...string) {
	c.Helper()
	for _, text := range texts {
		if !strings.Contains(c.out.String(), text) {
			c.Errorf("%v: no %q in\n%s", c.Args[1:], text, c.out.String())
		}
	}
}

// decode decodes what it has printed.
func (c *testCommand) decode(into any) {
	c.Helper()
	if err := json.Unmarshal(c.out.Bytes(), into); err != nil {
		c.Fatalf("%v: %v\n%s%s", c.Args[1:], err, c.out.String(), c.err.String())
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
			t.Fatalf("timeout after 10 s: %s", what)
		}
	}
}

// exists returns whether there is a file.
func exists(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

var ctx = context.Background()

func TestErrorExitCodes(t *testing.T) {
	t.Parallel()
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
		{75, "not acquired", []string{"--redis", url, "--no-wait", "held", "--", ok}},
		{75, "not acquired", []string{"--redis", url, "--wait", "0", "held", "--", ok}}, // as wait --timeout 0
		{64, "--no-wait and --wait", []string{"--redis", url, "--no-wait", "--wait", "1s", "x", "--", ok}},
		{75, "deadline", []string{"--redis", url, "--wait", "100ms", "held", "--", ok}},
		{64, "NAME", []string{"--redis", url}},
		{64, "COMMAND", []string{"--redis", url, "x", "--"}},
		{64, "--", []string{"--redis", url, "x", ok}},
		{64, "2 names", []string{"--redis", url, "x", "y", "--", ok}},
		{64, "name", []string{"--redis", url, "", "--", ok}},
		{64, "}", []string{"--redis", url, "a}{b", "--", ok}},
		{64, "unknown flag: --no", []string{"--no", "x", "--", ok}},
		{64, "together", []string{"--redis", url, "--try", "--wait", "1s", "x", "--", ok}},
		{64, "not one of", []string{"--redis", url, "--kind", "nonsense", "x", "--", ok}},
		{64, "needs --limit", []string{"--redis", url, "--kind", "semaphore", "x", "--", ok}},
		{64, "limit 0", []string{"--redis", url, "--kind", "semaphore", "--limit", "0", "x", "--", ok}},
		{64, "--limit is for --kind semaphore, not for --kind mutex", []string{"--redis", url, "--limit", "3", "x", "--", ok}},
		{64, "--per is for --kind semaphore", []string{"--redis", url, "--kind", "fair", "--per", "1s", "x", "--", ok}},
		{64, "--at-once is for --kind semaphore", []string{"--redis", url, "--kind", "read", "--at-once", "1", "x", "--", ok}},
		{64, "--permits is for --kind semaphore", []string{"--redis", url, "--kind", "write", "--permits", "1", "x", "--", ok}},
		{64, "--permits 0", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--permits", "0", "x", "--", ok}},
		{64, "--permits 4 is more than --limit 3", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--permits", "4", "x", "--", ok}},
		{64, "--permits 3 is more than --at-once 2", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1s", "--at-once", "2", "--permits", "3", "x", "--", ok}},
		{64, "--at-once is for a limit with --per", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--at-once", "2", "x", "--", ok}},
		{64, "--at-once 0", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1s", "--at-once", "0", "x", "--", ok}},
		{64, "maxConcurrent -1", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1s", "--at-once", "-1", "x", "--", ok}},
		{64, "--per 0s", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "0", "x", "--", ok}},
		{64, "window 1ms", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1ms", "x", "--", ok}},
		{64, "--ttl cannot be used with --per", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1s", "--ttl", "1s", "x", "--", ok}},
		{64, "--grace cannot be used with --per", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1s", "--grace", "1s", "x", "--", ok}},
		{64, "--max-lifetime cannot be used with --per", []string{"--redis", url, "--kind", "semaphore", "--limit", "3", "--per", "1s", "--max-lifetime", "1m", "x", "--", ok}},
		{64, "1µs", []string{"--redis", url, "--ttl", "1us", "x", "--", ok}},
		{64, "must be positive", []string{"--redis", url, "--ttl", "0", "x", "--", ok}},
		{64, "negative", []string{"--redis", url, "--wait", "-1s", "x", "--", ok}},
		{64, "negative", []string{"--redis", url, "--grace", "-1s", "x", "--", ok}},
		{64, "invalid", []string{"--redis", url, "--ttl", "soon", "x", "--", ok}},
		{64, "supported forms", []string{"--redis", "http://x", "x", "--", ok}},
		{64, "supported forms", []string{"--redis", "redis+ring://x", "x", "--", ok}},
		{64, "master_name", []string{"--redis", "redis+sentinel://x:1", "x", "--", ok}},
		{64, "supported forms", []string{"--redis", "redis://x:port", "x", "--", ok}},
		{64, "is given twice", []string{"--redis", url, "--redis", url, "--redis", "redis://127.0.0.1:1", "--kind", "redlock", "x", "--", ok}},
		{64, "port 99999", []string{"--redis", "redis://x:99999", "x", "--", ok}},
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
	for _, name := range []string{"demo", "doctor", "bench", "version"} {
		command(t, name, "x").ends(64, name+" takes no arguments")
	}
	command(t, "bench", "--duration", "500ms").ends(64, "--duration 500ms is not between 1s and 5m0s")
	command(t, "bench", "--redis", "redis://127.0.0.1:1").ends(69, "refused")
	command(t, "doctor", "--redis", url, "--redis", url).ends(64, "one deployment")
	c := command(t, "run", "--redis", "redis://me:secret@x:port", "x", "--", ok)
	c.ends(64)
	if strings.Contains(c.err.String(), "secret") {
		t.Error("the password was shown")
	}
}

func TestHelpExamplesAndCompletion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--help"}, {"run", "--help"}, {"wait", "--help"}, {"ls", "--help"}, {"show", "--help"}, {"top", "--help"}, {"break", "--help"},
		{"doctor", "--help"}, {"bench", "--help"}, {"demo", "--help"}, {"version", "--help"},
	} {
		c := command(t, args...)
		c.ends(0)
		c.prints("Examples:")
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		c := command(t, "completion", shell)
		c.ends(0)
		if c.out.Len() < 1000 {
			t.Errorf("%s: %d bytes of completion", shell, c.out.Len())
		}
	}
}

func TestCompletionListsKinds(t *testing.T) {
	t.Parallel()
	c := command(t, "__complete", "run", "--kind", "")
	c.ends(0)
	_, url := server(t)
	c.prints("mutex\t", "fair\t", "read\t", "write\t", "semaphore\t", "redlock\t")
	for line := range strings.Lines(c.out.String()) { // all of them are accepted
		if kind, _, ok := strings.Cut(line, "\t"); ok && kind != "semaphore" {
			command(t, "run", "--redis", url, "--kind", kind, "c", "--", "true").ends(0)
		}
	}
}
