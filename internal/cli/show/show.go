// Package show implements the command show, which shows who holds a lock and who waits for it.
package show

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper"
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
	timeout time.Duration
	json    bool
}

// Command returns the command show.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "show [flags] NAME",
		Short: "Show who holds a lock and who waits for it",
		Long: `Show who holds the lock NAME, since when and until when, and who waits for it, in the
order of the queue, with what each waiter waits for. The limits of a semaphore or rate
limit and what is used of them are shown too.

The kind of the lock is found out, unless there are several kinds of locks with this
name. Show only reads. A name with characters that a terminal does not show is printed
quoted; in bash such a name can be given as $'…' with the same escapes.

With --json it writes one JSON object. Times are RFC 3339 in UTC; -1 ms means never.
  kind, name, and name_base64 of a name that is not valid UTF-8
  fence            the last one that was drawn
  limits           of a semaphore or rate limit: limit, used, window_ms, max_concurrent,
                   held, paused_for_ms
  run_again_in_ms  of a job that has succeeded
  holders          each with token, keeper, owner, fence, expires_in_ms, ahead, and
                   since (not of another library's lock)
  waiters          each with token, keeper, owner, wait_ms, alive, heartbeat_age_ms, and
                   blocked_by, a text for people
Holders and waiters also have permits, of a semaphore or rate limit, mode, which is read
or write, of a read-write lock, and note, of a call with WithNote. An owner that is not
known is empty.

Exit codes: 0 the lock was found, 1 nobody holds it or waits for it, and it was not used
recently, 64 wrong usage, 69 Redis does not answer or refuses, 130 or 143 interrupted.`,
		Example: `  lockkeeper show orders:42
  lockkeeper show --kind semaphore encoders --json | jq '.holders[].owner'`,
		Args:              lookup.OneName,
		ValidArgsFunction: lookup.CompleteName,
		RunE:              func(c *cobra.Command, args []string) error { return o.run(c.Context(), os.Stdout, args[0]) },
	}
	o.Register(c, "Redis `URL`")
	lookup.KindFlag(c, &o.kind)
	c.Flags().DurationVar(&o.timeout, "timeout", lookup.DefaultTimeout, "time limit for the answer of the server")
	c.Flags().BoolVar(&o.json, "json", false, "write one JSON object")
	return c
}

func (o *options) run(ctx context.Context, out io.Writer, name string) error {
	if o.timeout <= 0 {
		return exit.Usagef("--timeout %v is not positive", o.timeout)
	}
	if err := lookup.CheckKind(o.kind); err != nil {
		return err
	}
	conn, err := o.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	return process.UntilInterrupted(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		i, err := lookup.One(ctx, lookup.With(conn.Keeper), lockkeeper.Kind(o.kind), name)
		if err != nil {
			return err
		}
		if o.json {
			return output.JSON(out, output.NewInspection(i))
		}
		_, err = io.WriteString(out, text(i))
		return err
	})
}
