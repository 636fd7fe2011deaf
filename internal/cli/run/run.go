// Package run implements the command run, which runs a command while it holds a lock.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// runOptions is the flags of run.
type runOptions struct {
	kind   string
	redis  []string
	prefix string
	ttl    time.Duration
	wait   time.Duration
	grace  time.Duration
	life   time.Duration
	try    bool

	oncePer time.Duration

	// Of a semaphore alone.
	limit, atOnce, permits int
	per                    time.Duration
}

func Command() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Run a command while holding a lock",
		Long: `Run a command while holding the lock NAME.

The lock is renewed while the command runs and released when it ends. The command gets lockkeeper's standard streams,
its environment and, besides, LOCKKEEPER_NAME, LOCKKEEPER_TOKEN and LOCKKEEPER_FENCE. Signals are passed on to it. Its
exit code becomes lockkeeper's.

--kind says which lock: mutex; fair, which serves in the order in which they came; a side of the read-write lock: any
number of commands may run together under read, and one alone under write; semaphore; or redlock, which lies on the
majority of the independent servers that --redis names, one each. Locks of different kinds do not exclude each other, even
under the same NAME, but that a mutex and a redlock use the same key; read and write are one lock.

A semaphore lets --limit commands run at once, on all hosts together, in the order in which they came. With --per it lets
--limit commands begin in any window of that length instead, and --at-once may then limit how many run at once as well. A
command counts for --permits, and the limits of the most recent caller are in force. With --per and without --at-once
nothing is held while the command runs, so that nothing can be lost, and --ttl, --grace and --max-lifetime do not apply.
With --per the time at which to come back is known: it is on standard error when lockkeeper exits with 75, and a --wait
that would not be long enough is not begun.

--once-per runs the command at most once per that period over all hosts, counted from its start: for a command that cron
starts on each of them. Neither a lock nor --try does that, because the lock is free again when the command ends, and a host
whose clock is a little late runs it once more. If another has run it with success, or is running it, lockkeeper says so on
standard error and exits with 0. If the command fails (any exit code but 0), if it is killed, or if the lock is lost,
nothing is recorded, and the next host that asks runs it; after a crash of the host that is when --ttl is over. So a command
can be run again, never twice with success, but that its success is recorded at Redis only, which can lose it. Choose
a period somewhat shorter than that of cron, as 20h for a day. Nothing waits, so --wait and --try do not apply; nor do other
kinds than mutex, and --max-lifetime. The command gets no LOCKKEEPER_TOKEN.

What takes longer than a second is said on standard error: who holds what is waited for, or that Redis does not answer.

If the lock is lost, the command's process group gets SIGTERM, and SIGKILL after --grace; lockkeeper then exits with 76.
An interrupt while waiting leaves nothing behind. If lockkeeper itself is killed, the lock ends with its TTL, and on
Linux the command gets SIGTERM. When the command has ended, a server that does not answer is waited for a few seconds; the
lock ends by itself then.

On a terminal the command has the foreground, but not if lockkeeper writes into a pipeline. Control-Z stops both; a
lockkeeper that is stopped does not renew, so that after its TTL the lock is lost.

Exit codes of lockkeeper's own: 64 wrong usage, 69 Redis does not answer or refuses, 75 the lock is held by another or
the permits are taken, 76 the lock was lost, 126 the command cannot be run, 127 it was not found.`,
		Example: `  # one host makes the report each night, the others skip it; if it fails, the next host that starts makes it
  lockkeeper run --once-per 20h nightly-report -- ./report.sh

  # not while another does it
  lockkeeper run --try reindex -- ./reindex.sh

  # wait a minute at the most
  lockkeeper run --wait 1m deploy -- kubectl apply -f .

  # in the order in which they came
  lockkeeper run --kind fair migrate -- ./migrate.sh

  # a cache that many read and one rebuilds: it is never read half-built
  lockkeeper run --kind write catalogue -- ./rebuild-cache.sh
  lockkeeper run --kind read catalogue -- ./export-from-cache.sh

  # on the majority of three servers
  lockkeeper run --kind redlock --redis redis://a --redis redis://b --redis redis://c deploy -- ./deploy.sh

  # three encoders at once, on however many hosts
  lockkeeper run --kind semaphore --limit 3 encoders -- ffmpeg -i in.mov out.mp4

  # at most 100 calls in any second and 10 at once
  lockkeeper run --kind semaphore --limit 100 --per 1s --at-once 10 api -- curl https://api.example.com/

  # behind Sentinel
  lockkeeper run --redis 'redis+sentinel://s1:26379?master_name=main&addr=s2:26379' job -- ./job

  # a store that refuses older fences is safe even from a holder that has lost the lock
  lockkeeper run batch -- sh -c 'curl -H "Fence: $LOCKKEEPER_FENCE" …'`,
		Args: func(c *cobra.Command, args []string) error {
			switch dash := c.ArgsLenAtDash(); {
			case len(args) == 0:
				return exit.Usagef("no NAME; the form is: %s", c.UseLine())
			case dash < 0:
				return exit.Usagef("no -- before the command; the form is: %s", c.UseLine())
			case dash != 1:
				return exit.Usagef("%d names before --, one is needed", dash)
			case len(args) == 1:
				return exit.Usagef("no COMMAND after --")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args[0], args[1:]) },
	}
	f := c.Flags()
	f.StringVar(&o.kind, "kind", "mutex", "what to hold: mutex, fair, read, write, semaphore or redlock")
	if err := c.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(fmt.Sprintf("bug: run: %v", err))
	}
	f.StringArrayVar(&o.redis, "redis", nil, redisurl.Usage("Redis `URL`, repeated for each server of a redlock"))
	f.StringVar(&o.prefix, "prefix", lockkeeper.DefaultPrefix, "prefix of the keys in Redis")
	f.DurationVar(&o.ttl, "ttl", lockkeeper.DefaultTTL, "how long the lock outlives a crash of this host")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for the lock; 0: as long as it takes")
	f.BoolVar(&o.try, "try", false, "do not wait: exit with 75 if another holds it")
	f.DurationVar(&o.oncePer, "once-per", 0, "run the command at most once per this period, over all hosts; e.g. 20h for a daily one")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL when the lock is lost")
	f.DurationVar(&o.life, "max-lifetime", 0, "do not hold the lock longer than this; 0: no bound")
	f.IntVar(&o.limit, "limit", 0, "semaphore: how many permits there are, at once or, with --per, in a window")
	f.DurationVar(&o.per, "per", 0, "semaphore: the length of the window, after which a permit returns")
	f.IntVar(&o.atOnce, "at-once", 0, "semaphore with --per: how many permits may be held at once besides")
	f.IntVar(&o.permits, "permits", 1, "semaphore: how many permits the command takes")
	return c
}

// kinds is what --kind can be, with what it means for those who complete the command line.
var kinds = []cobra.Completion{
	"mutex\tone at a time",
	"fair\tone at a time, in the order in which they came",
	"read\tany number at once, but not beside write",
	"write\tone at a time, and nobody under read",
	"semaphore\tas many as --limit says",
	"redlock\tone at a time, on the majority of several servers",
}

// locker is what run needs of a lock.
type locker interface {
	Lock(ctx context.Context) (*lockkeeper.Lease, error)
	TryLock(ctx context.Context) (*lockkeeper.Lease, error)
}

func (o *runOptions) lock(ks []*lockkeeper.Keeper, name string) (locker, error) {
	k := ks[0]
	switch o.kind {
	case "redlock":
		return redlock.New(ks, name, &redlock.Options{TTL: o.ttl, MaxLifetime: o.life})
	case "mutex":
		return mutex.New(k, name, &mutex.Options{TTL: o.ttl, MaxLifetime: o.life})
	case "fair":
		return fair.New(k, name, &fair.Options{TTL: o.ttl, MaxLifetime: o.life})
	case "read", "write":
		l, err := rwlock.New(k, name, &rwlock.Options{TTL: o.ttl, MaxLifetime: o.life})
		if o.kind == "read" {
			return reads{l}, err
		}
		return l, err
	case "semaphore":
		so := &semaphore.Options{TTL: o.ttl, MaxLifetime: o.life, Per: o.per, AtOnce: o.atOnce}
		if o.per != 0 && o.atOnce == 0 {
			so.TTL = 0 // no lease
		}
		s, err := semaphore.New(k, name, o.limit, so)
		return permits{s, o.permits}, err
	}
	return nil, exit.Usagef("--kind %q is not one of: mutex, fair, read, write, semaphore, redlock", o.kind)
}

// holders is who holds what is waited for. Of a redlock it is who holds the first server's part.
func (o *runOptions) holders(ks []*lockkeeper.Keeper, name string, l locker) func(ctx context.Context) ([]lockkeeper.Holder, error) {
	one := func(h lockkeeper.Holder, held bool, err error) ([]lockkeeper.Holder, error) {
		if !held {
			return nil, err
		}
		return []lockkeeper.Holder{h}, nil
	}
	return func(ctx context.Context) (list []lockkeeper.Holder, err error) {
		switch l := l.(type) {
		case *fair.Lock:
			return one(l.Holder(ctx))
		case *mutex.Mutex:
			return one(l.Holder(ctx))
		case *redlock.Lock:
			m, err := mutex.New(ks[0], name, nil)
			if err != nil {
				return nil, err
			}
			return one(m.Holder(ctx))
		case *rwlock.Lock:
			return rwHolders(ctx, l)
		case reads:
			return rwHolders(ctx, l.lock)
		case permits:
			all, err := l.semaphore.Holders(ctx)
			for _, h := range all {
				list = append(list, h.Holder)
			}
			return list, err
		}
		return nil, nil
	}
}

func rwHolders(ctx context.Context, l *rwlock.Lock) (list []lockkeeper.Holder, err error) {
	all, err := l.Holders(ctx)
	for _, h := range all {
		list = append(list, h.Holder)
	}
	return list, err
}

// checkOnce refuses what does not go with --once-per.
func (o *runOptions) checkOnce(given func(flag string) bool) error {
	if !given("once-per") {
		return nil
	}
	if o.oncePer <= 0 {
		return exit.Usagef("--once-per %v: a period needs a length", o.oncePer)
	}
	if o.kind != "mutex" {
		return exit.Usagef("--once-per does not go with --kind %s", o.kind)
	}
	for _, flag := range []string{"try", "wait", "max-lifetime"} {
		if given(flag) {
			return exit.Usagef("--%s does not go with --once-per: it never waits, and holds for as long as the command runs", flag)
		}
	}
	return nil
}

// checkKind refuses flags that mean nothing for the kind.
func (o *runOptions) checkKind(given func(flag string) bool) error {
	if o.kind != "semaphore" {
		for _, flag := range []string{"limit", "per", "at-once", "permits"} {
			if given(flag) {
				return exit.Usagef("--%s is for --kind semaphore, not for --kind %s", flag, o.kind)
			}
		}
		return nil
	}
	switch { // what New checks as well is left to it
	case !given("limit"):
		return exit.Usagef("--kind semaphore needs --limit")
	case given("per") && o.per == 0:
		return exit.Usagef("--per 0s: a window needs a length")
	case given("at-once") && !given("per"):
		return exit.Usagef("--at-once is for a limit with --per; without it, --limit is of permits at once already")
	case given("at-once") && o.atOnce == 0:
		return exit.Usagef("--at-once 0: nothing could run")
	case o.permits < 1:
		return exit.Usagef("--permits %d: a command takes one at the least", o.permits)
	case o.limit > 0 && o.permits > o.limit:
		return exit.Usagef("--permits %d is more than --limit %d", o.permits, o.limit)
	case o.atOnce > 0 && o.permits > o.atOnce:
		return exit.Usagef("--permits %d is more than --at-once %d", o.permits, o.atOnce)
	case given("per") && !given("at-once"):
		for _, flag := range []string{"ttl", "grace", "max-lifetime"} {
			if given(flag) {
				return exit.Usagef("--%s does not go with --per without --at-once: nothing is held", flag)
			}
		}
	}
	return nil
}

// permits is a semaphore of which run takes so many.
type permits struct {
	semaphore *semaphore.Semaphore
	n         int
}

func (p permits) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return p.semaphore.Acquire(ctx, p.n)
}

func (p permits) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return p.semaphore.TryAcquire(ctx, p.n)
}

// reads is a read-write lock of which run takes the read side.
type reads struct{ lock *rwlock.Lock }

func (r reads) Lock(ctx context.Context) (*lockkeeper.Lease, error)    { return r.lock.RLock(ctx) }
func (r reads) TryLock(ctx context.Context) (*lockkeeper.Lease, error) { return r.lock.TryRLock(ctx) }

func (o *runOptions) run(c *cobra.Command, name string, command []string) error {
	if o.try && c.Flags().Changed("wait") {
		return exit.Usagef("--try and --wait do not go together")
	}
	if o.wait < 0 {
		return exit.Usagef("--wait %v is negative", o.wait)
	}
	if o.grace < 0 {
		return exit.Usagef("--grace %v is negative", o.grace)
	}
	if c.Flags().Changed("ttl") && o.ttl == 0 {
		return exit.Usagef("--ttl 0s: a lock needs an end")
	}
	if err := o.checkKind(c.Flags().Changed); err != nil {
		return err
	}
	if err := o.checkOnce(c.Flags().Changed); err != nil {
		return err
	}
	// Before anything is locked: can the command be run at all?
	path, err := exec.LookPath(command[0])
	if err != nil {
		return notRunnable(err)
	}
	if len(o.redis) > 1 && o.kind != "redlock" {
		return exit.Usagef("%d times --redis: only --kind redlock uses more than one server", len(o.redis))
	}
	for i, raw := range o.redis {
		if slices.Contains(o.redis[:i], raw) {
			return exit.Usagef("--redis %s is there twice: the servers of a redlock have to be independent", redisurl.Redact(raw))
		}
	}
	urls := o.redis
	if len(urls) == 0 {
		urls = []string{""}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, process.Forwarded...)
	defer signal.Stop(signals)
	var ks []*lockkeeper.Keeper
	for _, raw := range urls {
		rdb, err := redisurl.Connect(raw)
		if err != nil {
			return err
		}
		defer func() { _ = rdb.Close() }()
		k, err := keeper(rdb, o.prefix)
		if err != nil {
			return err
		}
		defer closeSoon(k)
		ks = append(ks, k)
	}
	if o.oncePer > 0 {
		return o.runOnce(c.Context(), ks[0], name, path, command, signals)
	}
	l, err := o.lock(ks, name)
	if err != nil {
		return err
	}

	lease, err := o.acquire(c.Context(), l, newNotices(name, o.holders(ks, name, l)), signals)
	if err != nil {
		return err
	}
	code, lost := o.supervise(path, command, heldBy(lease), signals)
	if err := giveBack(lease, signals); err != nil && lost == nil {
		if errors.Is(err, lockkeeper.ErrLost) {
			lost = err
		} else {
			fmt.Fprintln(os.Stderr, "lockkeeper:", exit.Message(err), "(the lock ends by itself)")
		}
	}
	if lost != nil {
		return &exit.Error{Code: exit.Lost, Err: fmt.Errorf("%q was lost while the command ran: %w", name, lost)}
	}
	if code != nil {
		return code
	}
	return nil
}

// How long run waits for a server that does not answer, when all that is left to do is to give the lock back, and to close.
const (
	releaseWait = 5 * time.Second
	closeWait   = time.Second
)

// giveBack releases the lease. It does not wait for an answer for long, nor after a signal that ends: without one the lock
// ends by itself.
func giveBack(lease *lockkeeper.Lease, signals <-chan os.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- lease.Release(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			if process.Terminates(s) {
				cancel()
			}
		}
	}
}

// closeSoon closes the keeper, and leaves it to the end of the process if that takes long: go-redis does not interrupt what
// waits for a server that hangs.
func closeSoon(k *lockkeeper.Keeper) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = k.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeWait):
	}
}

func keeper(rdb redis.UniversalClient, prefix string) (*lockkeeper.Keeper, error) {
	o := &lockkeeper.Options{Prefix: prefix, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if prefix == "" {
		o.NoPrefix = true
	}
	return lockkeeper.New(rdb, o)
}

// acquire takes the lock, as long as no signal says to stop.
func (o *runOptions) acquire(parent context.Context, l locker, waiting *notices, signals <-chan os.Signal) (*lockkeeper.Lease, error) {
	defer waiting.stop()
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	if o.wait > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.wait)
		defer cancel()
	}
	type result struct {
		lease *lockkeeper.Lease
		err   error
	}
	done := make(chan result, 1)
	go func() {
		lock := l.Lock
		if o.try {
			lock = l.TryLock
		}
		lease, err := lock(ctx)
		done <- result{lease, err}
	}()
	for {
		select {
		case r := <-done:
			return r.lease, r.err
		case <-waiting.due:
			waiting.look(ctx)
		case text := <-waiting.looked:
			waiting.say(text)
		case s := <-signals:
			if !process.Terminates(s) {
				continue
			}
			cancel()
			if r := <-done; r.lease != nil {
				_ = giveBack(r.lease, signals)
			}
			return nil, &exit.Error{Code: 128 + int(s.(syscall.Signal))}
		}
	}
}

// held is what the command runs under.
type held struct {
	name, token string // the token of once is not known
	fence       uint64
	done        <-chan struct{} // closed when it is held no more
	err         func() error    // why
}

func heldBy(l *lockkeeper.Lease) *held { return &held{l.Name(), l.Token(), l.Fence(), l.Done(), l.Err} }

func (h *held) environ() []string {
	env := []string{"LOCKKEEPER_NAME=" + h.name, "LOCKKEEPER_FENCE=" + strconv.FormatUint(h.fence, 10)}
	if h.token != "" {
		env = append(env, "LOCKKEEPER_TOKEN="+h.token)
	}
	return env
}

// supervise runs the command to its end. It returns the exit code as an error, or why the lock was lost meanwhile.
func (o *runOptions) supervise(path string, command []string, lease *held, signals <-chan os.Signal) (code error, lost error) {
	cmd := &exec.Cmd{
		Path: path, Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: append(os.Environ(), lease.environ()...),
	}
	group, err := process.Start(cmd)
	if err != nil {
		return notRunnable(err), nil
	}
	defer group.Restore()
	ended := make(chan error, 1)
	go func() { ended <- group.Wait(cmd) }()
	var kill <-chan time.Time
	done := lease.done
	for {
		select {
		case err := <-ended:
			if lost != nil {
				group.Signal(syscall.SIGKILL) // whatever of it is left
				return nil, lost
			}
			return err, nil
		case <-done:
			done = nil
			lost = lease.err()
			fmt.Fprintf(os.Stderr, "lockkeeper: %q: %v; ending the command\n", lease.name, lost)
			group.Signal(syscall.SIGTERM)
			kill = time.After(o.grace)
		case <-kill:
			group.Signal(syscall.SIGKILL)
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		}
	}
}

func notRunnable(err error) error {
	text := fmt.Errorf("the command cannot be run: %s", strings.TrimPrefix(err.Error(), "exec: "))
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &exit.Error{Code: 127, Err: text}
	}
	return &exit.Error{Code: 126, Err: text}
}
