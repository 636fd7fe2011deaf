// Package doctor implements the command doctor, which checks whether a Redis deployment is fit for locks.
package doctor

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/spf13/cobra"
)

type options struct {
	connect.Flags
	timeout time.Duration
	json    bool
}

// minTimeout leaves time for the checks and for the cleanup.
const minTimeout = time.Second

// Command returns the command doctor.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check whether a Redis deployment is fit for locks",
		Long: `Check whether a Redis deployment is fit for locks.

The checks, and what makes them fail; on a cluster every primary is checked.
` + checksHelp + `
Doctor changes no settings. It uses only keys of a name of its own and deletes them at
the end; if it is killed, they expire within 70s. It tries permissions with invalid
arguments or keys that do not exist, so ACL LOG has the commands that were refused.

The result of a check is ok, warning, error, or unknown if the check could not be made,
which is common on managed services. A warning or an error comes with advice. What they
mean for locks is at ` + docsURL() + `#doctor

With --json the report is one JSON object, also with exit code 69:
  status  the worst of ok, warning and error
  url     without passwords
  kind    server, sentinel or cluster
  prefix
  checks  a list, each with check and status; nodes, the addresses; detail, what was
          found, and advice, sentences for people; acl_rules, those that are missing;
          docs, a URL; and values: pubsub_ms, offset_ms, uncertainty_ms, range_ms,
          ping_median_ms, ping_p99_ms, script_median_ms, script_p99_ms, handoffs,
          handoff_median_ms, handoff_max_ms, wakeups_received

Exit codes: 0 all checks are ok or unknown, 1 there are warnings, 2 there are errors,
64 wrong usage, 69 Redis does not answer or refuses, 130 or 143 interrupted.`,
		Example: `  lockkeeper doctor
  lockkeeper doctor --redis redis://locks:secret@locks.internal:6379 --prefix billing:
  lockkeeper doctor --redis 'redis+cluster://c1:7000?addr=c2:7000' --json | jq '.checks[] | select(.status != "ok")'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("doctor takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), os.Stdout) },
	}
	f := c.Flags()
	o.Register(c, "Redis `URL`")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "time limit for all checks together, at least 1s")
	f.BoolVar(&o.json, "json", false, "write the report as one JSON object")
	return c
}

func (o *options) run(ctx context.Context, out io.Writer) error {
	if o.timeout < minTimeout {
		return exit.Usagef("--timeout %v is shorter than %v", o.timeout, minTimeout)
	}
	t, err := connect.Target(&o.Flags)
	if err != nil {
		return err
	}
	d, err := newDoctor(t, o.Prefix, o.timeout)
	if err != nil {
		return err
	}
	defer d.close()
	d.progress = terminal.NewProgress(os.Stderr)
	defer d.progress.End()
	var r *report
	err = process.UntilInterrupted(ctx, func(ctx context.Context) error {
		r = d.examine(ctx)
		return nil
	})
	d.progress.End()
	if err != nil {
		return err
	}
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		err = e.Encode(r)
	} else {
		_, err = io.WriteString(out, r.text())
	}
	if err != nil {
		return err
	}
	if code := r.exitCode(); code != 0 {
		return &exit.Error{Code: code}
	}
	return nil
}
