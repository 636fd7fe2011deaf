package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// The tests run the test binary as the command.
func TestMain(m *testing.M) {
	if os.Getenv("LOCKKEEPER_TEST_MAIN") != "" {
		if os.Getenv("LOCKKEEPER_TEST_ADOPTS") != "" {
			adoptOrphans()
		}
		main()
	}
	if signal.Ignored(syscall.SIGHUP) { // by nohup: commands would inherit that, because nothing here catches the signal
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
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
func (c *testCommand) ends(code int, says ...string) *testCommand {
	c.Helper()
	return c.starts().waits(code, says...)
}

// starts starts the command. It is killed at the end of the test.
func (c *testCommand) starts() *testCommand {
	c.Helper()
	must.OK(c.T, c.Start())
	c.Cleanup(func() { _ = c.Process.Kill() })
	return c
}

func (c *testCommand) signals(s syscall.Signal) {
	c.Helper()
	must.OK(c.T, c.Process.Signal(s))
}

// isEndedBy sends a signal and checks that it ends the command.
func (c *testCommand) isEndedBy(s syscall.Signal) {
	c.Helper()
	c.signals(s)
	c.waits(128 + int(s))
}

// waits waits for the end of the command and checks it as ends does.
func (c *testCommand) waits(code int, says ...string) *testCommand {
	c.Helper()
	if c.ProcessState == nil { // or the test has waited
		if err := c.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			c.Fatal(err)
		}
	}
	got := c.ProcessState.ExitCode()
	check.That(c.T, got == code, "%v: exit code %d, want %d\n%s%s", c.Args[1:], got, code, c.out.String(), c.err.String())
	for _, s := range says {
		check.That(c.T, strings.Contains(c.err.String(), s), "%v: standard error has no %q:\n%s", c.Args[1:], s, c.err.String())
	}
	return c
}

// prints checks texts of its standard output.
func (c *testCommand) prints(texts ...string) {
	c.Helper()
	for _, text := range texts {
		check.That(c.T, strings.Contains(c.out.String(), text), "%v: no %q in\n%s", c.Args[1:], text, c.out.String())
	}
}

// creates waits until the command has created a file in its directory.
func (c *testCommand) creates(file string) {
	c.Helper()
	eventually(c.T, file+" exists", func() bool {
		_, err := os.Stat(filepath.Join(c.Dir, file))
		return err == nil
	})
}

// finds creates a file that the command waits for in its directory.
func (c *testCommand) finds(file string) {
	c.Helper()
	must.OK(c.T, os.WriteFile(filepath.Join(c.Dir, file), nil, 0o600))
}

// stopsCreating checks that a file which the command has created again and again is not created any more.
func (c *testCommand) stopsCreating(file string) {
	c.Helper()
	must.OK(c.T, os.Remove(filepath.Join(c.Dir, file)))
	time.Sleep(100 * time.Millisecond)
	_, err := os.Stat(filepath.Join(c.Dir, file))
	check.That(c.T, err != nil, "%s is still created", file)
}

// decode decodes what it has printed.
func (c *testCommand) decode(into any) {
	c.Helper()
	err := json.Unmarshal(c.out.Bytes(), into)
	must.That(c.T, err == nil, "%v: %v\n%s%s", c.Args[1:], err, c.out.String(), c.err.String())
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
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		must.That(t, !time.Now().After(end), "timeout after 30 s: %s", what)
	}
}

var ctx = context.Background()

func TestErrors(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	rdb.LPush(ctx, "lock:list", "x")
	usage := map[string]string{ // what is said about the arguments
		"walk": "unknown command",
		"run":  "NAME is missing", "run x --": "COMMAND is missing", "run x true": "-- is missing", "run x y -- true": "2 names",
		"run a}{b -- true":                                                          "}",
		"run --no-wait --wait 1s x -- true":                                         "--no-wait and --wait",
		"run --try --wait 1s x -- true":                                             "--try and --wait",
		"run --kind nonsense x -- true":                                             "not one of",
		"run --kind ratelimit --limit 3 x -- true":                                  "semaphore with --per",
		"run --limit 3 x -- true":                                                   "--limit is for --kind semaphore, not for --kind mutex",
		"run --kind read --permits 1 x -- true":                                     "--permits is for --kind semaphore, not for --kind read",
		"run --ttl 1us x -- true":                                                   "1µs",
		"run --ttl 0 x -- true":                                                     "must be positive",
		"run --ttl soon x -- true":                                                  `invalid argument "soon"`,
		"run --wait -1s x -- true":                                                  "negative",
		"run --grace -1s x -- true":                                                 "negative",
		"run --redis redis://me:secret@x:a x -- true":                               "supported forms",
		"run --redis redis://x:99999 x -- true":                                     "port 99999",
		"run --redis redis+ring://x x -- true":                                      "unknown scheme",
		"run --redis a --redis b x -- true":                                         "more than one server",
		"run --redis a --redis b --redis a --kind redlock x -- true":                "is given twice",
		"run --redis redis://a --redis redis://b --kind redlock x -- true":          "odd number",
		"run --kind redlock x -- true":                                              "use --kind mutex",
		"run --kind redlock --redis redis://a x -- true":                            "needs several servers",
		"ls --redis redis+cluster://a/1":                                            "database 1: a Cluster has only database 0",
		"run --once-per 0 x -- true":                                                "--once-per 0s",
		"run --once-per 1h --kind fair x -- true":                                   "--kind fair",
		"run --once-per 1h --kind mutex x -- true":                                  "a kind of its own",
		"run --redis= x -- true":                                                    "--redis is empty",
		"run --once-per 1h --try x -- true":                                         "--try cannot",
		"run --once-per 20s x -- true":                                              "shorter than TTL 30s",
		"run --kind semaphore x -- true":                                            "needs --limit",
		"run --kind semaphore --limit 0 x -- true":                                  "limit 0",
		"run --kind semaphore --limit 3 --permits 0 x -- true":                      "--permits 0",
		"run --kind semaphore --limit 3 --permits 4 x -- true":                      "--permits 4 is more than --limit 3",
		"run --kind semaphore --limit 3 --per 1s --at-once 2 --permits 3 x -- true": "--permits 3 is more than --at-once 2",
		"run --kind semaphore --limit 3 --at-once 2 x -- true":                      "--at-once is for a limit with --per",
		"run --kind semaphore --limit 3 --per 1s --at-once 0 x -- true":             "--at-once 0",
		"run --kind semaphore --limit 3 --per 1s --at-once -1 x -- true":            "maxConcurrent -1",
		"run --kind semaphore --limit 3 --per 0 x -- true":                          "--per 0s",
		"run --kind semaphore --limit 3 --per 1ms x -- true":                        "window 1ms",
		"run --kind semaphore --limit 3 --per 1s --ttl 1s x -- true":                "--ttl cannot be used with --per",
		"ls --limit -1":                              "--limit -1 is negative",
		"ls --waiting-longer -1s":                    "--waiting-longer -1s is negative",
		"ls --no":                                    "unknown flag: --no; see lockkeeper ls --help",
		"top --interval 100ms":                       "--interval 100ms is shorter than 1s",
		"top --rows 0":                               "--rows 0 is not between 1 and 1000",
		"show --timeout 0 a":                         "--timeout 0s is not positive",
		"wait --for ever a":                          `--for "ever" is not one of: free, idle`,
		"wait --timeout -1s a":                       "--timeout -1s is negative",
		"show --redis= a":                            "--redis is empty",
		"break a":                                    "--token or --all is missing",
		"break a --token x --all":                    "--token and --all cannot be used together",
		"break a --all --yes":                        "--reason is missing",
		"break a --all --reason x":                   "--yes is missing: standard input is not a terminal",
		"break a --all --reason x --json":            "--json needs --yes",
		"break a --all --yes --reason x --timeout 0": "--timeout 0s is not positive",
		"doctor --timeout 999ms":                     "shorter than 1s",
		"inspect --addr :7070":                       "reachable from other machines",
		"inspect --addr 192.0.2.1:7070":              "--allow-remote",
		"inspect --addr 127.0.0.1":                   "host:port",
		"bench --duration 500ms":                     "--duration 500ms is not between 1s and 5m0s",
	}
	for _, name := range []string{"demo", "doctor", "bench", "inspect", "version"} {
		usage[name+" x"] = name + " takes no arguments"
	}
	for _, name := range []string{"show", "wait", "break"} {
		usage[name] = "NAME is missing; usage: lockkeeper " + name
		usage[name+" a b"] = "2 names, want one"
	}
	for _, name := range []string{"ls", "top"} {
		usage[name+" a b"] = "2 patterns, want one at most; quote a pattern"
		usage[name+" --sort size"] = `--sort "size" is not one of: expiry, holders`
	}
	for _, command := range []string{"ls", "top", "show a", "wait a", "break a --all --yes --reason x", "doctor", "bench", "inspect"} {
		usage[command+" --redis http://:secret@x"] = "supported forms"
		usage[command+" --prefix a}b"] = "Prefix"
		if command != "doctor" && command != "bench" && command != "inspect" {
			usage[command+" --kind walk"] = `--kind "walk" is not one of: mutex, fair`
		}
	}
	const refused = " --redis redis://127.0.0.1:1"
	for code, says := range map[int]map[string]string{
		exit.Usage:       usage,
		exit.Unreachable: {"bench" + refused: "refused", "run list -- true": "WRONGTYPE"},
	} {
		for args, text := range says {
			t.Run(args, func(t *testing.T) {
				t.Parallel()
				c := command(t, strings.Fields(args)...)
				c.Env = append(c.Env, "REDIS_URL="+url)
				c.ends(code, text)
				check.That(t, c.out.Len() == 0 && !strings.Contains(c.err.String(), "secret"), "%s%s", c.out.String(), c.err.String())
			})
		}
	}
	command(t, "doctor", "--redis", url, "--redis", url).ends(exit.Usage, "--redis is given 2 times: this command uses one deployment")
}

func TestHelpAndCompletion(t *testing.T) {
	t.Parallel()
	command(t, "--help").ends(0).prints("Examples:")
	command(t, "completion", "bash").ends(0).prints("__complete")
	c := command(t, "__complete", "run", "--kind", "").ends(0)
	c.prints("mutex\t", "fair\t", "read\t", "write\t", "semaphore\t", "redlock\t")
	_, url := server(t)
	for line := range strings.Lines(c.out.String()) {
		if kind, _, ok := strings.Cut(line, "\t"); ok && kind != "semaphore" { // all are accepted
			args := []string{"run", "--redis", url, "--kind", kind, "c", "--", "true"}
			if kind == "redlock" {
				_, second := server(t)
				_, third := server(t)
				args = append([]string{"run", "--redis", second, "--redis", third}, args[1:]...)
			}
			command(t, args...).ends(0)
		}
	}
}
