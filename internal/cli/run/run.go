// Package run implements the command run, which runs a command while it holds a lock.
package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/spf13/cobra"
)

// options are the flags of run.
type options struct {
	connect.Flags
	kind        string
	ttl         time.Duration
	wait        time.Duration
	grace       time.Duration
	maxLifetime time.Duration
	try, noWait bool

	oncePer time.Duration

	// Only for semaphores.
	limit, atOnce, permits int
	per                    time.Duration
}

const help = `Run a command while holding the lock NAME.

The lock is renewed while the command runs, and released when it ends. The command gets
the standard streams and the environment of lockkeeper, and the variables
LOCKKEEPER_NAME, LOCKKEEPER_TOKEN and LOCKKEEPER_FENCE. Signals are forwarded to it, but
not a hangup or an interrupt that lockkeeper was started to ignore, as with nohup. The
exit code is the one of the command.

Kinds of locks (--kind):
  mutex      one command at a time
  fair       one command at a time, in the order of the requests
  read       any number of commands at a time, but none together with write
  write      one command at a time, and none together with read
  semaphore  at most --limit commands at a time or, with --per, in any period
  redlock    one command at a time; the lock is on a majority of independent servers,
             each given by --redis
Locks of different kinds are independent of each other even if they have the same NAME,
except that read and write are two sides of one lock, and that a redlock uses the key of
a mutex.

Semaphores: The limit applies to all hosts together, and commands start in the order of
their requests. A command takes --permits permits. With --per, at most --limit permits
are taken in any window of that length, and --at-once limits how many are taken at the
same time. If callers give different limits, the most recent ones apply. With --per and
without --at-once nothing is held while the command runs: nothing can be lost, the
command gets no LOCKKEEPER_TOKEN, and --ttl, --grace and --max-lifetime are not
permitted. When such a limit is exhausted,
lockkeeper prints when permits return, and does not wait if --wait is too short.

Once per period: --once-per runs the command at most once per period on all hosts,
counted from its start. Use it for a command that cron starts on every host: with a lock
alone, a host whose clock is late would run the command again. If the command has
succeeded in this period or is running, lockkeeper says so and exits with 0. If the
command fails or is killed, or if the lock is lost, the next host that starts it runs it
again; after a crash of the host, as soon as --ttl has passed. By then the hosts that
cron started at the same time have left: have it start the command again some minutes
later. The success is recorded only in Redis, and Redis can lose it. Choose a period
somewhat shorter than the one of cron, such as 20h for a daily command. --once-per never
waits: it cannot be used with --wait and --try, nor with --max-lifetime or --kind: a job
is a kind of its own, and no lock of the same name excludes it. LOCKKEEPER_TOKEN is not set.

Waiting: While lockkeeper waits for longer than a second, it prints to standard error who
holds the lock, or that Redis does not answer. An interrupt ends the wait and removes the
request from the queue.

Lost locks: If the lock is lost, the process group of the command gets SIGTERM, and
SIGKILL after --grace; then lockkeeper exits with 76. If lockkeeper is killed, the lock
expires after its TTL, and on Linux the command gets SIGTERM, but not the processes that
it has started: the running step of a script goes on without the lock. If Redis does not
answer when the command has ended, lockkeeper exits after a few seconds, and the lock
expires.

Containers: As process 1, lockkeeper forwards signals as described and reaps the processes
that the command leaves behind. It needs no --init.

Terminals: The command runs in the foreground of the terminal, unless lockkeeper writes
to a pipe. Control-Z stops both. While lockkeeper is stopped it does not renew the lock,
which is lost after its TTL.

Exit codes of lockkeeper itself: 64 wrong usage, 69 Redis does not answer or refuses,
75 the lock is held or the permits are taken, 76 the lock was lost, 126 the command
cannot be run, 127 the command was not found.`

const examples = `  # A nightly report: one host makes it, the others skip it. If it fails, the next host that starts makes it.
  lockkeeper run --once-per 20h nightly-report -- ./report.sh

  # Skip the command if another host runs it.
  lockkeeper run --try reindex -- ./reindex.sh

  # Wait for at most one minute.
  lockkeeper run --wait 1m deploy -- kubectl apply -f .

  # In the order of the requests.
  lockkeeper run --kind fair migrate -- ./migrate.sh

  # A cache with one writer and many readers: it is never read while it is rebuilt.
  lockkeeper run --kind write catalogue -- ./rebuild-cache.sh
  lockkeeper run --kind read catalogue -- ./export-from-cache.sh

  # On a majority of three servers.
  lockkeeper run --kind redlock --redis redis://a --redis redis://b --redis redis://c deploy -- ./deploy.sh

  # Three encoders at a time, on all hosts together.
  lockkeeper run --kind semaphore --limit 3 encoders -- ffmpeg -i in.mov out.mp4

  # At most 100 calls in any second, and 10 at a time.
  lockkeeper run --kind semaphore --limit 100 --per 1s --at-once 10 api -- curl https://api.example.com/

  # Behind Sentinel.
  lockkeeper run --redis 'redis+sentinel://s1:26379?master_name=main&addr=s2:26379' job -- ./job

  # A store that rejects older fences is safe even from a process that has lost the lock without noticing.
  lockkeeper run batch -- sh -c 'curl -H "Fence: $LOCKKEEPER_FENCE" https://store.example.com/'`

// Command returns the command run.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:     "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short:   "Run a command while holding a lock",
		Long:    help,
		Example: examples,
		Args: func(c *cobra.Command, args []string) error {
			switch dash := c.ArgsLenAtDash(); {
			case len(args) == 0:
				return exit.Usagef("NAME is missing; usage: %s", c.UseLine())
			case dash < 0:
				return exit.Usagef("-- is missing before the command; usage: %s", c.UseLine())
			case dash != 1:
				return exit.Usagef("%d names before --, want one", dash)
			case len(args) == 1:
				return exit.Usagef("COMMAND is missing after --")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args[0], args[1:]) },
	}
	f := c.Flags()
	f.StringVar(&o.kind, "kind", "mutex", "`kind` of the lock: mutex, fair, read, write, semaphore or redlock")
	if err := c.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(fmt.Sprintf("bug: run: %v", err))
	}
	o.Register(c, "Redis `URL`, repeated for each server of a redlock")
	f.DurationVar(&o.ttl, "ttl", lockkeeper.DefaultTTL, "time after which the lock expires if this host crashes")
	f.DurationVar(&o.wait, "wait", 0, "maximum time to wait for the lock, such as 90s or 10m; 0 means not to wait, as --try (default no limit)")
	f.BoolVar(&o.try, "try", false, "do not wait: exit with 75 if the lock is held")
	f.BoolVar(&o.noWait, "no-wait", false, "the same as --try")
	f.DurationVar(&o.oncePer, "once-per", 0, "run the command at most once per period on all hosts, such as 20h")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL after the lock is lost")
	f.DurationVar(&o.maxLifetime, "max-lifetime", 0, "maximum time to hold the lock; 0 means no limit")
	f.IntVar(&o.limit, "limit", 0, "semaphore: number of permits at a time or, with --per, in any window")
	f.DurationVar(&o.per, "per", 0, "semaphore: length of the window, after which permits return, such as 1s")
	f.IntVar(&o.atOnce, "at-once", 0, "semaphore with --per: also limits the permits that are taken at a time")
	f.IntVar(&o.permits, "permits", 1, "semaphore: number of permits that the command takes")
	return c
}

// validate checks the flags that do not depend on the kind of the lock.
func (o *options) validate(isSet func(flag string) bool) error {
	switch {
	case o.try && isSet("wait"):
		return exit.Usagef("--try and --wait cannot be used together")
	case o.noWait && isSet("wait"):
		return exit.Usagef("--no-wait and --wait cannot be used together")
	case o.wait < 0:
		return exit.Usagef("--wait %v is negative", o.wait)
	case o.grace < 0:
		return exit.Usagef("--grace %v is negative", o.grace)
	case isSet("ttl") && o.ttl == 0:
		return exit.Usagef("--ttl 0s: the TTL must be positive")
	}
	if len(o.URLs) <= 1 && o.kind == "redlock" {
		return exit.Usagef("--kind redlock needs several servers, each given by --redis; on one server use --kind mutex, which has the same key")
	}
	if len(o.URLs) > 1 && o.kind != "redlock" {
		return exit.Usagef("--redis is given %d times: only --kind redlock uses more than one server", len(o.URLs))
	}
	for i, raw := range o.URLs {
		if slices.Contains(o.URLs[:i], raw) {
			return exit.Usagef("--redis %s is given twice: the servers of a redlock must be independent", redisurl.Redact(raw))
		}
	}
	return nil
}

// validateOnce rejects flags that cannot be used with --once-per.
func (o *options) validateOnce(isSet func(flag string) bool) error {
	if !isSet("once-per") {
		return nil
	}
	if o.oncePer <= 0 {
		return exit.Usagef("--once-per %v: the period must be positive", o.oncePer)
	}
	if isSet("kind") {
		return exit.Usagef("--kind %s cannot be used with --once-per: a job is a kind of its own, and no lock of the same name excludes it", o.kind)
	}
	for _, flag := range []string{"try", "no-wait", "wait", "max-lifetime"} {
		if isSet(flag) {
			return exit.Usagef("--%s cannot be used with --once-per, which never waits and holds the lock until the command ends", flag)
		}
	}
	return nil
}

func (o *options) run(c *cobra.Command, name string, command []string) error {
	isSet := c.Flags().Changed
	for _, validate := range []func(isSet func(flag string) bool) error{o.validate, o.validateKind, o.validateOnce} {
		if err := validate(isSet); err != nil {
			return err
		}
	}
	o.try = o.try || o.noWait || isSet("wait") && o.wait == 0
	path, err := exec.LookPath(command[0]) // before anything is locked
	if err != nil {
		return notRunnable(err)
	}
	signals := make(chan os.Signal, 16)
	process.Notify(signals, process.Forwarded...)           // until the process exits, or a late signal would take the place of the exit code
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // or a message that nobody reads would end lockkeeper, but not the command
	conns, err := o.OpenAll()
	if err != nil {
		return err
	}
	var ks []*lockkeeper.Keeper
	for _, conn := range conns {
		defer conn.Close()
		ks = append(ks, conn.Keeper)
	}
	if o.oncePer > 0 {
		return o.runOnce(c.Context(), ks[0], name, path, command, signals)
	}
	l, err := o.newLock(ks, name)
	if err != nil {
		return err
	}
	first, err := o.firstHolder(ks, name)
	if err != nil {
		return err
	}
	return o.runLocked(c.Context(), l, newNotices(name, first, o.per > 0 && o.atOnce == 0), path, command, signals)
}

// runLocked acquires the lock, runs the command and releases the lock.
func (o *options) runLocked(ctx context.Context, l lock, waiting *notices, path string, command []string, signals <-chan os.Signal) error {
	lease, err := o.acquire(ctx, l, waiting, signals)
	if err != nil {
		return err
	}
	code, lost := o.supervise(path, command, lease, signals)
	if err := release(lease, signals); err != nil && lost == nil {
		if errors.Is(err, lockkeeper.ErrLost) {
			lost = err
		} else {
			fmt.Fprintln(os.Stderr, "lockkeeper:", exit.Message(err), "(the lock will expire)")
		}
	}
	if lost != nil {
		return lostError(waiting.name, lost)
	}
	return code
}

// lostError returns the error of run after the lock was lost.
func lostError(name string, lost error) error {
	return &exit.Error{Code: exit.Lost, Err: fmt.Errorf("%q was lost while the command ran: %s", name, exit.Message(lost))}
}
