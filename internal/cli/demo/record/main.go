// Command record runs the demo and writes a recording of it, an animated SVG, to the file of its argument.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo"
	"github.com/redis/go-redis/v9/logging"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	logging.Disable()
	worker := demo.WorkerCommand() // the demo runs its own program in its workers
	if len(args) > 0 && args[0] == worker.Name() {
		worker.SetArgs(args[1:])
		return worker.Execute()
	}
	if len(args) != 1 {
		return fmt.Errorf("want the name of a file, got %q", args)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	acts, err := demo.Play(ctx, os.Stdout, true)
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], render(acts), 0o600)
}
