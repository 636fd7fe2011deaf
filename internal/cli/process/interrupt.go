package process

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
)

// Notify is signal.Notify for those of the signals that are not ignored, as nohup ignores a hangup, and a shell script the interrupts of
// what it starts in the background. The command ignores them too.
func Notify(c chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// UntilInterrupted calls do with a context that an interrupt or SIGTERM cancels. It then waits until do has returned, or for a
// second signal, and returns an error with the exit code 128 plus the number of the signal. Otherwise it returns the error of do.
func UntilInterrupted(parent context.Context, do func(ctx context.Context) error) error {
	signals := make(chan os.Signal, 2)
	Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		return err
	case s := <-signals:
		cancel()
		select {
		case <-done:
		case <-signals:
		}
		return &exit.Error{Code: 128 + int(s.(syscall.Signal))}
	}
}
