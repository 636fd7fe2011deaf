// Package ls implements the command ls, which lists locks.
package ls

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

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
	sort  string
	limit int
	json  bool
}

// maxSorted limits the memory that sorting takes.
const maxSorted = 100_000

// Command returns the command ls.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "ls [flags] [PATTERN]",
		Short: "List the locks that are held or waited for",
		Long: `List the locks under the prefix that somebody holds or waits for, with the number of
holders and waiters, the time until the last lease expires, and the longest wait. With
PATTERN, only names that match it, as in the command KEYS of Redis: * for any text, ? for
one byte, [a-c] for one of a set, \ before a character that means itself.

Ls only reads. It looks at all keys of the database, in small steps with pauses between
them, so that it does not delay others; with millions of keys it takes long, and shows
its progress on a terminal. What begins or ends meanwhile may be missing or listed.

Without --sort, locks are printed as they are found. With --sort they are printed at the
end: at most the first 100000, or --limit.

A name with characters that a terminal does not show is printed quoted. With --json it
writes one JSON object per line: kind, name, holders, waiters, expires_in_ms (of the last
lease; 0 without a holder, -1 for never) and longest_wait_ms. A name that is not valid
UTF-8 has the field name_base64 as well.

Exit codes: 0 done, also if there are no locks, 64 wrong usage, 69 Redis does not answer
or refuses, 130 or 143 interrupted.`,
		Example: `  lockkeeper ls
  lockkeeper ls 'orders:*' --kind fair --waiting-longer 30s
  lockkeeper ls --sort waiters --limit 10
  lockkeeper ls --json | jq -r 'select(.waiters > 100).name'`,
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
	f.StringVar(&o.sort, "sort", "", "`order`: "+strings.Join(listing.Sorts(), ", ")+" (default as they are found)")
	f.IntVar(&o.limit, "limit", 0, "maximum number of locks; 0 means no limit")
	f.BoolVar(&o.json, "json", false, "write one JSON object per line")
	if err := c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(listing.Sorts(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(fmt.Sprintf("bug: ls: %v", err))
	}
	return c
}

func (o *options) run(ctx context.Context, out io.Writer) error {
	opts, err := o.Options()
	switch {
	case err != nil:
		return err
	case o.limit < 0:
		return exit.Usagef("--limit %d is negative", o.limit)
	case o.sort != "" && listing.Orders[o.sort] == nil:
		return exit.Usagef("--sort %q is not one of: %s", o.sort, strings.Join(listing.Sorts(), ", "))
	}
	conn, err := o.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	progress := terminal.NewProgress(os.Stderr)
	defer progress.End()
	if progress != nil { // the number of keys takes another command, which the user may lack the permission for
		opts.Progress = func(scanned, total int64) { progress.Show("%d of about %d keys", scanned, total) }
	}
	opts.OneNode = func() { connect.WarnOneNode(progress) }
	p := &printer{out: out, json: o.json, progress: progress}
	err = process.UntilInterrupted(ctx, func(ctx context.Context) error { return o.list(ctx, conn.Keeper, opts, p) })
	progress.Clear()
	if err == nil && p.n == 0 && terminal.Is(os.Stderr) {
		fmt.Fprintf(os.Stderr, "lockkeeper: no lock under the prefix %q is held or waited for\n", o.Prefix)
	}
	return err
}

// list prints the locks.
func (o *options) list(ctx context.Context, k *lockkeeper.Keeper, opts *admin.ListOptions, p *printer) error {
	limit := o.limit
	var first *listing.First
	if o.sort != "" {
		if limit == 0 || limit > maxSorted {
			limit = maxSorted
		}
		first = listing.NewFirst(listing.Orders[o.sort], limit)
	}
	for e, err := range admin.List(ctx, k, opts) {
		switch {
		case err != nil:
			return err
		case first != nil:
			first.Add(e)
			continue
		}
		if err := p.print(e); err != nil {
			return err
		}
		if p.n == limit {
			break
		}
	}
	if first != nil {
		entries, more := first.Entries()
		for _, e := range entries {
			if err := p.print(e); err != nil {
				return err
			}
		}
		if more && o.limit == 0 {
			p.progress.Clear()
			fmt.Fprintf(os.Stderr, "lockkeeper: there are more than %d locks, only the first are sorted and printed; narrow them down, or leave out --sort\n", limit)
		}
	}
	return nil
}

// printer prints entries.
type printer struct {
	out      io.Writer
	json     bool
	progress *terminal.Progress
	n        int
}

func (p *printer) print(e admin.LockSummary) error {
	p.n++
	p.progress.Clear()
	if p.json {
		return output.JSON(p.out, output.NewEntry(e))
	}
	text := output.EntryLine(e) + "\n"
	if p.n == 1 {
		text = output.EntryHeader + "\n" + text
	}
	_, err := io.WriteString(p.out, text)
	return err
}
