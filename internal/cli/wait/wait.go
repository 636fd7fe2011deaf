// Package wait implements the command wait, which waits until nobody holds a lock.
package wait

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/lookup"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/spf13/cobra"
)

type options struct {
	connect.Flags
	kind    string
	until   string
	timeout time.Duration
	json    bool
}

// Values of --for.
const (
	untilFree = "free"
	untilIdle = "idle"
)

// Command returns the command wait.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "wait [flags] NAME",
		Short: "Wait until a lock is free, without taking it",
		Long: `Wait until nobody holds the lock NAME (--for free), or until nobody waits for it either
(--for idle). Without --kind, that is awaited for the locks of all kinds with this name.

Wait takes nothing and does not join the queue. It looks at the lock every second, or
when the lease of the holder would expire if that is sooner: it can miss that the lock
was free in between, and somebody else may take the lock before the next command runs.
To run a command under the lock, use lockkeeper run.

While it waits for longer than a second, it prints to standard error who holds the lock.
With --json it ends with one JSON object, with exit codes 0 and 75: name, free, waited_ms
and locks, those that are not free, each with the fields of lockkeeper show.

Exit codes: 0 the lock is free, 64 wrong usage, 69 Redis has not answered for 10s or
refuses, 75 the lock was not free within --timeout, 130 or 143 interrupted.`,
		Example: `  lockkeeper wait deploy
  lockkeeper wait --timeout 5m --for idle --kind semaphore encoders

  # Only look: exit with 75 if the lock is held.
  lockkeeper wait --timeout 0 deploy`,
		Args:              lookup.OneName,
		ValidArgsFunction: lookup.CompleteName,
		RunE:              func(c *cobra.Command, args []string) error { return o.run(c, args[0]) },
	}
	o.Register(c, "Redis `URL`")
	lookup.KindFlag(c, &o.kind)
	f := c.Flags()
	f.StringVar(&o.until, "for", untilFree, "what to wait for: free (no holder) or idle (no holder and no waiter)")
	f.DurationVar(&o.timeout, "timeout", 0, "maximum time to wait, such as 90s; 0 means to look once (default no limit)")
	f.BoolVar(&o.json, "json", false, "write one JSON object at the end")
	if err := c.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{untilFree, untilIdle}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(fmt.Sprintf("bug: wait: %v", err))
	}
	return c
}

func (o *options) run(c *cobra.Command, name string) error {
	switch {
	case o.until != untilFree && o.until != untilIdle:
		return exit.Usagef("--for %q is not one of: free, idle", o.until)
	case o.timeout < 0:
		return exit.Usagef("--timeout %v is negative", o.timeout)
	}
	if err := lookup.CheckKind(o.kind); err != nil {
		return err
	}
	conn, err := o.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	w := waiter{name: name, idle: o.until == untilIdle, timeout: -1, notices: os.Stderr}
	if c.Flags().Changed("timeout") {
		w.timeout = o.timeout
	}
	w.inspect = func(ctx context.Context) ([]*admin.LockState, error) {
		return lookup.All(ctx, lookup.With(conn.Keeper), lockkeeper.Kind(o.kind), name)
	}
	return process.UntilInterrupted(c.Context(), func(ctx context.Context) error {
		err := w.run(ctx)
		if o.json && (err == nil || errors.Is(err, errHeld)) {
			err = errors.Join(err, w.writeJSON(os.Stdout))
		}
		return err
	})
}

const (
	minPause = 50 * time.Millisecond
	maxPause = time.Second
	// silence is how long the server may not answer.
	silence = 10 * time.Second
	// answerTimeout limits the wait for one answer, which may pass the end of --timeout by no more than lateAnswer.
	answerTimeout = 5 * time.Second
	lateAnswer    = time.Second
	// The first notice is printed after firstNotice, and another one every noticeInterval.
	firstNotice    = time.Second
	noticeInterval = time.Minute
)

// errHeld is matched by the error of a wait that has timed out.
var errHeld = errors.New("not free")

// waiter waits for one name.
type waiter struct {
	name    string
	idle    bool          // wait until there are no waiters either
	timeout time.Duration // negative: no limit
	inspect func(ctx context.Context) ([]*admin.LockState, error)
	notices io.Writer

	waited time.Duration
	busy   []*admin.LockState // the locks that are not free, when they were last seen
}

// run returns nil when the lock is free, an error that matches errHeld after the timeout, and the error of the server if that
// has not answered for long or refuses.
func (w *waiter) run(ctx context.Context) error {
	start := time.Now()
	answered, nextNotice := start, firstNotice
	for {
		err := w.look(ctx)
		w.waited = time.Since(start)
		over := w.timeout >= 0 && w.waited >= w.timeout
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			answered = time.Now()
		case !errors.Is(err, lockkeeper.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded), time.Since(answered) >= silence, over:
			return err
		}
		if err == nil && len(w.busy) == 0 {
			return nil
		}
		if over {
			return &exit.Error{Code: exit.NotAcquired, Err: fmt.Errorf("%s is %w: %s", output.Name(w.name), errHeld, w.describe())}
		}
		if w.waited >= nextNotice {
			nextNotice = w.waited + noticeInterval
			w.notify(err)
		}
		pause := w.pause(err)
		if w.timeout >= 0 {
			pause = min(pause, w.timeout-w.waited)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// look sets busy.
func (w *waiter) look(ctx context.Context) error {
	limit := answerTimeout
	if w.timeout > 0 {
		limit = min(limit, max(w.timeout-w.waited, lateAnswer))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	all, err := w.inspect(ctx)
	if err != nil {
		return err
	}
	w.busy = nil
	for _, i := range all {
		if len(i.Holders) > 0 || w.idle && len(i.Waiters) > 0 {
			w.busy = append(w.busy, i)
		}
	}
	return nil
}

// pause is the time until the next look: when the last lease expires that would make the lock free, but not too often.
func (w *waiter) pause(err error) time.Duration {
	if err != nil {
		return maxPause
	}
	var last time.Duration
	for _, i := range w.busy {
		if len(i.Holders) == 0 {
			return maxPause
		}
		for _, h := range i.Holders {
			if h.ExpiresIn < 0 {
				return maxPause
			}
			last = max(last, h.ExpiresIn+time.Millisecond)
		}
	}
	return min(max(last, minPause), maxPause)
}

func (w *waiter) notify(err error) {
	if err != nil {
		fmt.Fprintf(w.notices, "lockkeeper: waiting for %s for %s: no answer from Redis: %s\n", output.Name(w.name), output.Duration(w.waited), exit.Message(err))
		return
	}
	fmt.Fprintf(w.notices, "lockkeeper: waiting for %s for %s: %s\n", output.Name(w.name), output.Duration(w.waited), w.describe())
}

// describe says who holds the lock or waits for it.
func (w *waiter) describe() string {
	var texts []string
	for _, i := range w.busy {
		text := string(i.Kind) + " with " + output.Count(len(i.Waiters), "waiter")
		if n := len(i.Holders); n > 0 {
			text += ", held by " + output.Who(i.Holders[0].Owner, i.Holders[0].Keeper)
			if n > 1 {
				text += fmt.Sprintf(" and %d more", n-1)
			}
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// result is the output of --json. The help of the command documents the field names.
type result struct {
	Name     string              `json:"name"`
	Free     bool                `json:"free"`
	WaitedMS int64               `json:"waited_ms"`
	Locks    []output.Inspection `json:"locks"` // those that are not free
}

func (w *waiter) writeJSON(out io.Writer) error {
	r := result{Name: w.name, Free: len(w.busy) == 0, WaitedMS: w.waited.Milliseconds(), Locks: []output.Inspection{}}
	for _, i := range w.busy {
		r.Locks = append(r.Locks, output.NewInspection(i))
	}
	return output.JSON(out, r)
}
