package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/once"
)

// runOnce runs the command unless it has succeeded in this period or is running. That others have run it is a success.
func (o *runOptions) runOnce(parent context.Context, k *lockkeeper.Keeper, name, path string, command []string, signals <-chan os.Signal) error {
	job, err := once.New(k, name, o.oncePer, &once.Options{TTL: o.ttl})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	begins, ended := make(chan *held), make(chan error)
	type result struct {
		once.Result
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := job.Do(ctx, func(ctx context.Context, fence uint64) error {
			begins <- &held{name: name, fence: fence, done: ctx.Done(), err: func() error { return context.Cause(ctx) }}
			return <-ended
		})
		done <- result{r, err}
	}()
	waiting := newNotices(name, func(ctx context.Context) ([]lockkeeper.Holder, error) {
		_, err := job.Status(ctx)
		return nil, err
	})
	defer waiting.stop()
	var code, lost error
	var stopped os.Signal
	for {
		select {
		case lease := <-begins: // in this goroutine, whose thread the command is bound to
			code, lost = o.supervise(path, command, lease, signals)
			waiting.stop()
			time.AfterFunc(releaseWait, cancel)
			switch {
			case lost != nil:
				ended <- lost
			default:
				ended <- code
			}
		case s := <-signals:
			if process.Terminates(s) {
				stopped = s
				cancel()
			}
		case <-waiting.due:
			waiting.look(ctx)
		case text := <-waiting.looked:
			waiting.say(text)
		case r := <-done:
			if stopped != nil && r.Outcome == once.None {
				return &exit.Error{Code: 128 + int(stopped.(syscall.Signal))}
			}
			return outcome(name, r.Result, r.err, code, lost)
		}
	}
}

// outcome says what came of it: code is how the command has ended, and lost why it was ended.
func outcome(name string, r once.Result, err, code, lost error) error {
	var unrecorded *once.UnrecordedError
	switch {
	case r.Outcome == once.Done && err == nil:
		fmt.Fprintf(os.Stderr, "lockkeeper: %q has been run already; the next time is in %v\n", name, time.Until(r.Next).Round(time.Second))
		return nil
	case r.Outcome == once.Running && err == nil:
		fmt.Fprintf(os.Stderr, "lockkeeper: %q is being run by another\n", name)
		return nil
	case r.Outcome != once.Ran:
		return err
	case lost == nil && code == nil && errors.Is(err, lockkeeper.ErrLost):
		lost = err
	}
	if lost != nil {
		return &exit.Error{Code: exit.Lost, Err: fmt.Errorf("%q was lost while the command ran: %w", name, lost)}
	}
	switch {
	case errors.As(err, &unrecorded):
		fmt.Fprintln(os.Stderr, "lockkeeper:", exit.Message(err))
	case err != nil && err != code:
		fmt.Fprintln(os.Stderr, "lockkeeper:", exit.Message(err), "(the lock ends by itself)")
	}
	return code
}
