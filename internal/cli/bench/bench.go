// Package bench implements the command bench, which measures how fast locks are on a server.
package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/spf13/cobra"
)

type options struct {
	connect.Flags
	duration time.Duration
	json     bool
}

const (
	minDuration = time.Second
	maxDuration = 5 * time.Minute
	// answerTimeout limits the wait for the first answer of the server, and the time by which the whole may exceed --duration.
	answerTimeout = 5 * time.Second
)

// Command returns the command bench.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "bench [flags]",
		Short: "Measure how fast locks are on a server",
		Long: `Measure how fast locks are on a server, beside PING and beside SET NX and DEL, the
least that any lock on Redis costs. All cases are measured in turns, so that what else
runs on the machines affects all of them alike; look at the ratios rather than at the
times.

Bench loads the server: 64 goroutines send as fast as they can. Do not use it on a server
that is busy with something important. It uses keys of names of its own and deletes them
at the end; if it is killed, they expire in about two minutes.

With --json it writes one JSON object: url, kind, prefix and results. Each result has case
(ping, set_del, lock, set_del_64, lock_64, handoff or allow), goroutines, operations,
median_ms, p99_ms and per_second, in fractions, and most have baseline and ratio: how
many times as long an operation takes as in that case, by the mean or, with 64
goroutines, by throughput.

Exit codes: 0 done, 64 wrong usage, 69 Redis does not answer or refuses, 130 or 143
interrupted.`,
		Example: "  lockkeeper bench\n  lockkeeper bench --redis redis://locks.internal:6379 --duration 20s --json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("bench takes no arguments, got %q", args)
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return o.run(c.Context(), os.Stdout) },
	}
	o.Register(c, "Redis `URL`")
	f := c.Flags()
	f.DurationVar(&o.duration, "duration", 6*time.Second, "duration of all measurements together, from 1s to 5m")
	f.BoolVar(&o.json, "json", false, "write one JSON object")
	return c
}

func (o *options) run(ctx context.Context, out io.Writer) error {
	if o.duration < minDuration || o.duration > maxDuration {
		return exit.Usagef("--duration %v is not between %v and %v", o.duration, minDuration, maxDuration)
	}
	t, err := connect.Target(&o.Flags)
	if err != nil {
		return err
	}
	b, err := open(t, o.Prefix, "lockkeeper-bench:"+rand.Text())
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "lockkeeper: this loads %s for %v\n", t.URL, o.duration)
	var results []result
	err = process.UntilInterrupted(ctx, func(ctx context.Context) (err error) {
		defer b.close()
		ctx, cancel := context.WithTimeout(ctx, o.duration+answerTimeout)
		defer cancel()
		progress := terminal.NewProgress(os.Stderr)
		defer progress.End()
		results, err = b.measure(ctx, o.duration, progress)
		return err
	})
	if err != nil {
		return err
	}
	if o.json {
		return output.JSON(out, report{URL: t.URL, Kind: t.Kind(), Prefix: o.Prefix, Results: results})
	}
	_, err = io.WriteString(out, text(results))
	return err
}
