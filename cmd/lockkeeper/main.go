// Command lockkeeper runs commands under distributed locks on Redis, and shows how the locks behave.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// Exit codes of lockkeeper's own. A child's code is passed on as it is, and a child that a signal ended gives 128 plus
// the signal, as in a shell; so do 126 (cannot be run) and 127 (not found). The others are from sysexits(3).
const (
	codeUsage       = 64 // the command line is wrong
	codeUnreachable = 69 // Redis does not answer, or refuses
	codeNotAcquired = 75 // another holds the lock, or the permits are taken
	codeLost        = 76 // the lock was lost while the command ran
)

// exit is an error that ends the program with a code of its own.
type exit struct {
	code int
	err  error // nil: say nothing
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return &exit{codeUsage, fmt.Errorf(format, args...)} }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	redis.SetLogger(silence{}) // its errors come back to us; its log would mix with the child's output
	root := &cobra.Command{
		Use:   "lockkeeper",
		Short: "Fair, read-write and counting locks on Redis",
		Long: `lockkeeper runs commands under distributed locks on Redis or Valkey.

Exit codes of its own: 64 wrong usage, 69 Redis does not answer or refuses,
75 the lock is held by another or the permits are taken, 76 the lock was lost
while the command ran.`,
		Version: version(),
		Example: `  lockkeeper run deploy -- ./deploy.sh
  lockkeeper run --once-per 20h nightly-report -- ./report.sh
  lockkeeper doctor --redis redis://locks.internal:6379
  lockkeeper demo`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; see lockkeeper --help", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%w; see %s --help", err, c.CommandPath())
	})
	root.AddCommand(runCommand(), demoCommand(), doctorCommand(), workerCommand())
	root.SetArgs(args)
	return report(root.ExecuteContext(context.Background()))
}

// report says what went wrong and picks the exit code.
func report(err error) int {
	if err == nil {
		return 0
	}
	code := codeUnreachable
	var own *exit
	switch {
	case errors.As(err, &own):
		code = own.code
	case errors.Is(err, lockkeeper.ErrInvalid):
		code = codeUsage
	case errors.Is(err, lockkeeper.ErrNotAcquired), errors.Is(err, semaphore.ErrAboveLimit):
		code = codeNotAcquired
	case errors.Is(err, lockkeeper.ErrLost):
		code = codeLost
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "lockkeeper:", trim(text))
	}
	return code
}

// trim takes the library's own name off the front of its errors.
func trim(text string) string {
	const own = "lockkeeper: "
	if len(text) > len(own) && text[:len(own)] == own {
		return text[len(own):]
	}
	return text
}

// silence drops what go-redis logs.
type silence struct{}

// Printf is part of go-redis's logger.
func (silence) Printf(context.Context, string, ...any) {}
