//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// ending is a way in which run ends.
type ending struct {
	held    bool   // by another, before run starts
	ignores string // the signal that lockkeeper was started to ignore
	file    string // text of a file in the directory of run
	mode    os.FileMode
	flags   string
	sh      string // the command, if argv is empty
	argv    string
	steps   string // in this order, when the command has created the file ready, or when lockkeeper waits: see step
	code    int
	leaves  string // a file that is there in the end; after a !, one that nobody creates again
	says    string // on standard error
}

const (
	untilGo = ": >ready; i=0; until [ -e go ] || [ $i -ge 500 ]; do i=$((i+1)); sleep 0.02; done; "
	alive   = "trap '' TERM; : >ready; i=0; while [ $i -lt 500 ]; do i=$((i+1)); : >alive; sleep 0.02; done"
	noticed = "--ttl 600ms --grace 300ms" // a loss is found while the command runs; else by the release
)

// endings are those of a command that does not wait for its lock, whether it is a mutex or the period of --once-per.
var endings = []ending{
	{sh: "exit 0"},
	{sh: "exit 7", code: 7},
	{sh: "exit 255", code: 255},
	{sh: "kill -KILL $$", code: 128 + 9},
	{sh: "kill -SEGV $$", code: 128 + 11},

	{file: "true", mode: 0o600, argv: "./file", code: 126, says: "denied"},
	{argv: "/", code: 126, says: "cannot be run"},
	{file: "true", mode: 0o700, argv: "./file", code: 126, says: "exec format"}, // which is known when the lock is held
	{file: "#!/no/such/interpreter", mode: 0o700, argv: "./file", code: 127, says: "no such file"},
	{argv: "./none", code: 127, says: "no such file"},
	{argv: "no-such-command", code: 127, says: "not found"},
	{flags: "--ttl 1us", sh: "exit 0", code: exit.Usage, says: "1µs"},
	{flags: "--redis redis://127.0.0.1:1", sh: "exit 0", code: exit.Unreachable, says: "refused"},

	// The lock is lost as the command ends.
	{sh: untilGo + "exit 0", steps: "lose go", code: exit.Lost, says: "lost"},
	{sh: untilGo + "exit 7", steps: "lose go", code: exit.Lost, says: "lost"},
	{sh: untilGo + "kill -KILL $$", steps: "lose go", code: exit.Lost},
	{sh: "trap 'exit 0' TERM; " + untilGo, steps: "lose SIGTERM", code: exit.Lost},
	{sh: untilGo, steps: "lose SIGTERM", code: exit.Lost},
	{flags: "--ttl 600ms", sh: untilGo + "exit 0", steps: "lose go", code: exit.Lost},

	// It is lost before: SIGTERM, the grace and SIGKILL, each for the whole process group.
	{flags: noticed, sh: "trap 'exit 0' TERM; " + untilGo, steps: "lose", code: exit.Lost},
	{flags: noticed, sh: "trap ': >asked' TERM; " + untilGo, steps: "lose", code: exit.Lost, leaves: "asked"},
	{flags: noticed, sh: alive, steps: "lose", code: exit.Lost, leaves: "!alive"},
	{flags: noticed, sh: "(" + alive + ") & wait", steps: "lose", code: exit.Lost, leaves: "!alive"},
	{flags: noticed, sh: "trap : TERM; (" + alive + ") & wait; wait", steps: "lose", code: exit.Lost, leaves: "!alive"},
	{flags: "--ttl 600ms --grace 0", sh: alive, steps: "lose", code: exit.Lost, leaves: "!alive"},
	{flags: "--ttl 600ms --grace 20s", sh: "(trap 'sleep 0.3; : >cleaned; exit' TERM; : >ready; while :; do sleep 0.02; done) & wait", steps: "lose", code: exit.Lost, leaves: "cleaned"},
	{flags: "--ttl 600ms --grace 5s", sh: "trap ': >asked' TERM; trap ': >told; exit 7' USR1; " + untilGo, steps: "lose asked? SIGUSR1", code: exit.Lost, leaves: "told"},
}

// signalEndings returns the endings by signals.
func signalEndings(t *testing.T) (all []ending) {
	names := []string{"INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH"}
	for _, s := range process.Forwarded {
		name := unix.SignalName(s.(syscall.Signal))
		must.That(t, slices.Contains(names, strings.TrimPrefix(name, "SIG")), "%s is forwarded, but not tested", name)
	}
	for i, name := range names {
		sig := "SIG" + name
		ends := ending{sh: untilGo, steps: sig, code: 128 + int(unix.SignalNum(sig))}
		waits := ending{held: true, flags: "--wait 10s", sh: "exit 0", steps: sig, code: ends.code}
		if name == "WINCH" { // which ends nothing
			ends.steps, ends.code = sig+" go", 0
		}
		if i >= 4 { // for the command alone
			waits.flags, waits.code = "--wait 700ms", exit.NotAcquired
		}
		all = append(all, ends, waits, ending{sh: "trap 'exit 5' " + name + "; " + untilGo, steps: sig, code: 5})
	}
	for _, name := range []string{"INT", "HUP"} {
		all = append(all,
			ending{ignores: name, sh: "trap 'exit 5' USR1; " + untilGo, steps: "SIG" + name + " SIGUSR1", code: 5},
			ending{ignores: name, held: true, flags: "--wait 700ms", sh: "exit 0", steps: "SIG" + name, code: exit.NotAcquired})
	}
	return all
}

// waitEndings are those of waits for a lock.
var waitEndings = []ending{
	{held: true, flags: "--try", sh: "exit 0", code: exit.NotAcquired, says: "not acquired"},
	{held: true, flags: "--no-wait", sh: "exit 0", code: exit.NotAcquired, says: "not acquired"},
	{held: true, flags: "--wait 0", sh: "exit 0", code: exit.NotAcquired, says: "not acquired"},
	{held: true, flags: "--wait 300ms", sh: "exit 0", code: exit.NotAcquired, says: "deadline"},
	{flags: "--try --redis redis://127.0.0.1:1", sh: "exit 0", code: exit.Unreachable, says: "refused"},
	{flags: "--wait 300ms --redis redis://127.0.0.1:1", sh: "exit 0", code: exit.Unreachable, says: "refused"},
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for i, kind := range []string{"", "--once-per 1h "} {
		all := endings
		if i == 0 {
			all = slices.Concat(all, waitEndings, signalEndings(t))
		}
		for _, e := range all {
			e.flags = kind + e.flags
			t.Run(strings.Join([]string{e.flags, e.argv + e.sh, e.steps}, ", "), func(t *testing.T) {
				t.Parallel()
				e.check(t)
			})
		}
	}
}

// check runs the command and checks how it ends.
func (e ending) check(t *testing.T) {
	rdb, url := server(t)
	argv := strings.Fields(e.argv)
	if len(argv) == 0 {
		argv = []string{"sh", "-c", e.sh}
	}
	c := command(t, slices.Concat([]string{"run"}, strings.Fields(e.flags), []string{"x", "--"}, argv)...)
	c.Dir = t.TempDir()
	c.Env = append(c.Env, "REDIS_URL="+url)
	c.Stdout, c.WaitDelay = nil, time.Second // or Wait would wait for all that can write to a pipe
	e.prepare(c, rdb)
	c.starts()
	if e.steps != "" && e.held {
		eventually(t, "it waits", func() bool { return waiters(rdb) == 1 })
	} else if e.steps != "" {
		c.creates("ready")
		check.That(t, rdb.Exists(ctx, "lock:x", onceKey).Val() == 1, "the command runs without the lock")
	}
	for _, step := range strings.Fields(e.steps) {
		c.step(step, rdb)
	}
	c.waits(e.code, e.says)
	if again, found := strings.CutPrefix(e.leaves, "!"); found {
		c.stopsCreating(again)
	} else if _, err := os.Stat(filepath.Join(c.Dir, e.leaves)); err != nil {
		t.Errorf("in the end: %v", err)
	}
	check.That(t, waiters(rdb) == 0, "it is still queued")
	if !e.held {
		isFree(t, rdb, "lock:x")
	}
	if e.code != 0 {
		isFree(t, rdb, onceKey)
	}
}

func (e ending) prepare(c *testCommand, rdb *redis.Client) {
	c.Helper()
	if e.held {
		rdb.Set(ctx, "lock:x", "another", time.Minute)
	}
	if e.ignores != "" {
		c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", "trap '' " + e.ignores + `; exec "$0" "$@"`, c.Path}, c.Args[1:]...)
	}
	if e.file != "" {
		must.OK(c.T, os.WriteFile(filepath.Join(c.Dir, "file"), []byte(e.file+"\n"), e.mode))
	}
}

// waiters returns how many wait for the mutex x.
func waiters(rdb *redis.Client) int64 {
	return rdb.ZCount(ctx, "{lock:x}:mutex:queue", "-inf", protocol.BehindWaiters).Val()
}

// step deletes the lock, sends a signal, waits for a file, whose name has a question mark behind it, or creates one.
func (c *testCommand) step(what string, rdb *redis.Client) {
	c.Helper()
	file, awaited := strings.CutSuffix(what, "?")
	switch sig := unix.SignalNum(what); {
	case what == "lose":
		rdb.Del(ctx, "lock:x", onceKey)
	case sig != 0:
		c.signals(sig)
	case awaited:
		c.creates(file)
	default:
		c.finds(file)
	}
}
