// Package breaklock implements the command break, which ends leases and requests of others.
package breaklock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/spf13/cobra"
)

type options struct {
	connect.Flags
	kind    string
	token   string
	all     bool
	reason  string
	by      string
	yes     bool
	timeout time.Duration
	json    bool
}

// Command returns the command break.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "break [flags] NAME",
		Short: "End the lease of a holder, or remove a waiter from the queue",
		Long: `End the lease of one holder of the lock NAME, or remove one waiter from its queue, given by
--token; or all of them, with --all. First try to end the process that holds the lock:
then no two processes ever hold it.

The next waiter gets the lock at once. The holder is sent a message with the reason, and
loses its lease when it receives it. A holder that does not receive it learns of the loss
at its next renewal, a third of its TTL later at most, and one that is frozen when it
resumes. Until then it may go on working while others hold the lock; only a store that
checks fences rejects what it writes. A redlock must be broken at the majority of its
servers, one after the other.

The token is that of lockkeeper show; the beginning suffices if it is unambiguous. Break
shows what it will end and asks, unless --yes is given. The reason is required: the
holder logs it.

With --json, which needs --yes, it writes one JSON object: kind, name, the holders and
waiters that were ended, with the fields of lockkeeper show, and notified, the number of
them whose processes received the message.

Exit codes: 0 ended, 1 there is no such lock, holder or waiter (any more), 64 wrong usage
or not confirmed, 69 Redis does not answer or refuses, 130 or 143 interrupted.`,
		Example: `  lockkeeper break orders:42 --token 5e1f --reason 'the job hangs, ticket 4711'
  lockkeeper break orders:42 --all --yes --reason 'release of the night'`,
		Args:              lookup.OneName,
		ValidArgsFunction: lookup.CompleteName,
		RunE:              func(c *cobra.Command, args []string) error { return o.run(c, args[0]) },
	}
	o.Register(c, "Redis `URL`")
	lookup.KindFlag(c, &o.kind)
	f := c.Flags()
	f.StringVar(&o.token, "token", "", "`token` of the holder or waiter, or the beginning of one")
	f.BoolVar(&o.all, "all", false, "end all holders and remove all waiters")
	f.StringVar(&o.reason, "reason", "", "what the holders are told; required")
	f.StringVar(&o.by, "by", "", "who does this, for the holders and the logs (default the user and host of this process)")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.DurationVar(&o.timeout, "timeout", lookup.DefaultTimeout, "time limit for the answers of the server")
	f.BoolVar(&o.json, "json", false, "write one JSON object")
	for _, flag := range []string{"token", "reason", "by"} {
		if err := c.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions); err != nil {
			panic(fmt.Sprintf("bug: break: %v", err))
		}
	}
	return c
}

func (o *options) validate() error {
	switch {
	case o.all && o.token != "":
		return exit.Usagef("--token and --all cannot be used together")
	case !o.all && o.token == "":
		return exit.Usagef("--token or --all is missing; lockkeeper show lists the tokens")
	case strings.TrimSpace(o.reason) == "":
		return exit.Usagef("--reason is missing: the holders are told why they lose the lock")
	case o.timeout <= 0:
		return exit.Usagef("--timeout %v is not positive", o.timeout)
	case o.json && !o.yes:
		return exit.Usagef("--json needs --yes")
	case !o.yes && !terminal.Is(os.Stdin):
		return exit.Usagef("--yes is missing: standard input is not a terminal, so nobody can confirm")
	}
	return lookup.CheckKind(o.kind)
}

func (o *options) run(c *cobra.Command, name string) error {
	if err := o.validate(); err != nil {
		return err
	}
	o.LogLevel = slog.LevelError // the warning that the lock was broken would repeat what is printed
	conn, err := o.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	by := o.by
	if by == "" {
		by = connect.UserAtHost()
	}
	return process.UntilInterrupted(c.Context(), func(ctx context.Context) error {
		found, err := o.find(ctx, conn.Keeper, name)
		if err != nil {
			return err
		}
		if !o.yes {
			if err := confirm(ctx, os.Stderr, os.Stdin, found); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		opts := admin.BreakOptions{All: o.all, Reason: o.reason, By: by}
		if !o.all {
			opts.Token = onlyToken(found)
		}
		b, err := admin.Break(ctx, conn.Keeper, found.Kind, name, &opts)
		if b == nil || err != nil && len(b.Holders)+len(b.Waiters) == 0 {
			return err
		}
		return errors.Join(err, o.report(os.Stdout, found, b)) // before an error, some may have been ended
	})
}

// find returns the lock with only the holders and waiters that are to be ended.
func (o *options) find(ctx context.Context, k *lockkeeper.Keeper, name string) (*admin.LockState, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	i, err := lookup.One(ctx, lookup.With(k), lockkeeper.Kind(o.kind), name)
	if err != nil {
		return nil, err
	}
	return selectTokens(i, o.token)
}

func (o *options) report(out io.Writer, found *admin.LockState, b *admin.BreakResult) error {
	if len(b.Holders)+len(b.Waiters) == 0 {
		return &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("nothing was ended: the leases and requests of %s have ended meanwhile", output.Name(found.Name))}
	}
	if o.json {
		return output.JSON(out, newResult(found, b))
	}
	_, err := io.WriteString(out, text(found.Kind, b))
	return err
}
