// Package top implements the command top, a live view of the locks with the most waiters.
package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/listing"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/spf13/cobra"
)

type options struct {
	connect.Flags
	listing.Filter
	sort     string
	interval time.Duration
	rows     int
	once     bool
	json     bool
}

const (
	minInterval = time.Second
	maxRows     = 1000
)

// Command returns the command top.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "top [flags] [PATTERN]",
		Short: "Watch the locks with the most waiters",
		Long: `Watch the locks under the prefix that somebody holds or waits for, those with the most
waiters first. With PATTERN, only names that match it, as in lockkeeper ls.

On a terminal the view is redrawn after each look, until q or control-C. A look goes over
all keys of the database, as that of ls, and the next one begins --interval after it has
ended: with millions of keys the view is refreshed less often. If Redis does not answer,
the last view remains, with the error.

If the output is not a terminal, or with --once, it prints one view. With --json it
writes one JSON object per look: time, took_ms, locks, holders, waiters, and top, the
first --rows locks, each with the fields of lockkeeper ls.

Exit codes: 0 done or q, 64 wrong usage, 69 Redis does not answer or refuses at the first
look, 130 or 143 interrupted.`,
		Example: `  lockkeeper top
  lockkeeper top 'orders:*' --sort wait
  lockkeeper top --once --rows 5
  lockkeeper top --json --interval 10s | jq '.waiters'`,
		Args:              listing.Args,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			o.Match = strings.Join(args, "")
			return o.run(c.Context(), os.Stdout)
		},
	}
	o.Flags.Register(c, "Redis `URL`")
	o.Filter.Register(c)
	f := c.Flags()
	f.StringVar(&o.sort, "sort", "waiters", "`order`: "+strings.Join(listing.Sorts(), ", "))
	f.DurationVar(&o.interval, "interval", time.Second, "pause between two looks, at least 1s")
	f.IntVar(&o.rows, "rows", 40, "maximum number of locks, from 1 to 1000; on a terminal no more than fit")
	f.BoolVar(&o.once, "once", false, "look once, and print plain text")
	f.BoolVar(&o.json, "json", false, "write one JSON object per look")
	if err := c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(listing.Sorts(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(fmt.Sprintf("bug: top: %v", err))
	}
	return c
}

func (o *options) run(ctx context.Context, out *os.File) error {
	opts, err := o.Options()
	switch {
	case err != nil:
		return err
	case o.interval < minInterval:
		return exit.Usagef("--interval %v is shorter than %v", o.interval, minInterval)
	case o.rows < 1 || o.rows > maxRows:
		return exit.Usagef("--rows %d is not between 1 and %d", o.rows, maxRows)
	case listing.Orders[o.sort] == nil:
		return exit.Usagef("--sort %q is not one of: %s", o.sort, strings.Join(listing.Sorts(), ", "))
	}
	conn, err := o.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	l := &looker{keeper: conn.Keeper, opts: opts, order: listing.Orders[o.sort], rows: o.rows}
	title := conn.URL + ", prefix " + output.Name(o.Prefix)
	return process.UntilInterrupted(ctx, func(ctx context.Context) error {
		switch {
		case o.json:
			return o.streamJSON(ctx, l, out)
		case o.once || !terminal.Is(out):
			v, err := l.look(ctx)
			if err != nil {
				return err
			}
			_, err = io.WriteString(out, v.text(title))
			return err
		}
		return watch(ctx, l, title, o.interval, out)
	})
}

// streamJSON writes one object per look. An error ends it.
func (o *options) streamJSON(ctx context.Context, l *looker, out io.Writer) error {
	warn := sync.OnceFunc(func() { connect.WarnOneNode(nil) })
	for {
		v, err := l.look(ctx)
		if err != nil {
			return err
		}
		if v.oneNode {
			warn()
		}
		if err := output.JSON(out, v.json()); err != nil || o.once {
			return err
		}
		select {
		case <-time.After(o.interval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// looker lists the locks.
type looker struct {
	keeper *lockkeeper.Keeper
	opts   *admin.ListOptions
	order  listing.Order
	rows   int
}

// look goes once over all keys.
func (l *looker) look(ctx context.Context) (*view, error) {
	v := &view{at: time.Now()}
	first := listing.NewFirst(l.order, l.rows)
	l.opts.OneNode = func() { v.oneNode = true }
	for e, err := range admin.List(ctx, l.keeper, l.opts) {
		if err != nil {
			return nil, err
		}
		v.locks++
		v.holders += e.Holders
		v.waiters += e.Waiters
		first.Add(e)
	}
	v.entries, _ = first.Entries()
	v.took = time.Since(v.at)
	return v, nil
}
