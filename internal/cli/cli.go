// Package cli implements the command line of lockkeeper. Each command has a package of its own.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/bench"
	"github.com/lockkeeper/lockkeeper/internal/cli/breaklock"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo"
	"github.com/lockkeeper/lockkeeper/internal/cli/doctor"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/inspect"
	"github.com/lockkeeper/lockkeeper/internal/cli/ls"
	"github.com/lockkeeper/lockkeeper/internal/cli/run"
	"github.com/lockkeeper/lockkeeper/internal/cli/show"
	"github.com/lockkeeper/lockkeeper/internal/cli/top"
	"github.com/lockkeeper/lockkeeper/internal/cli/version"
	"github.com/lockkeeper/lockkeeper/internal/cli/wait"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
)

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	logging.Disable() // errors are returned as well, and the log would mix with the output of the child
	root := newRoot()
	root.SetArgs(args)
	return report(root.ExecuteContextC(context.Background()))
}

// newRoot returns the command lockkeeper with all others.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "lockkeeper",
		Short: "Run commands under distributed locks on Redis, and look after these locks",
		Long: `lockkeeper runs commands under distributed locks on Redis or Valkey, shows who holds a
lock and who waits for it, and checks whether a Redis deployment is fit for locks.

Exit codes of lockkeeper itself: 64 wrong usage, 69 Redis does not answer or refuses,
75 the lock is held or the permits are taken, 76 the lock was lost while the command
ran. The help of each command has its own ones.`,
		Version: version.Current().String(),
		Example: `  lockkeeper run deploy -- ./deploy.sh
  lockkeeper run --once-per 20h nightly-report -- ./report.sh
  lockkeeper ls --sort waiters
  lockkeeper show orders:42
  lockkeeper doctor --redis redis://locks.internal:6379
  lockkeeper inspect
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
	root.AddCommand(
		run.Command(), wait.Command(), ls.Command(), show.Command(), top.Command(), inspect.Command(), breaklock.Command(),
		doctor.Command(), bench.Command(), demo.Command(), version.Command(), demo.WorkerCommand(),
	)
	return root
}

// report prints the error and returns its exit code.
func report(c *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	err = connect.Explain(err, c)
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
