// Package cli implements the command line of lockkeeper. Each command has a package of its own.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo"
	"github.com/lockkeeper/lockkeeper/internal/cli/doctor"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/run"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
)

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	logging.Disable() // errors are returned as well, and the log would mix with the output of the child
	root := &cobra.Command{
		Use:   "lockkeeper",
		Short: "Run commands under distributed locks on Redis",
		Long: `lockkeeper runs commands under distributed locks on Redis or Valkey, and checks whether
a Redis deployment is fit for locks.

Exit codes of lockkeeper itself: 64 wrong usage, 69 Redis does not answer or refuses,
75 the lock is held or the permits are taken, 76 the lock was lost while the command
ran. The command doctor has exit codes of its own.`,
		Version: version(),
		Example: `  lockkeeper run deploy -- ./deploy.sh
  lockkeeper run --once-per 20h nightly-report -- ./report.sh
  lockkeeper doctor --redis redis://locks.internal:6379
  lockkeeper demo`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("unknown command %q; see lockkeeper --help", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return exit.Usagef("%w; see %s --help", err, c.CommandPath())
	})
	root.AddCommand(run.Command(), demo.Command(), doctor.Command(), demo.WorkerCommand())
	root.SetArgs(args)
	return report(root.ExecuteContext(context.Background()))
}

// report prints the error and returns its exit code.
func report(err error) int {
	if err == nil {
		return 0
	}
	code := exit.Unreachable
	var own *exit.Error
	switch {
	case errors.As(err, &own):
		code = own.Code
	case errors.Is(err, lockkeeper.ErrInvalid):
		code = exit.Usage
	case errors.Is(err, lockkeeper.ErrNotAcquired), errors.Is(err, semaphore.ErrAboveLimit):
		code = exit.NotAcquired
	case errors.Is(err, lockkeeper.ErrLost):
		code = exit.Lost
	}
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "lockkeeper:", exit.Message(err))
	}
	return code
}
