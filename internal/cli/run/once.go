package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/once"
)

// runOnce runs the command unless it has already succeeded in this period, or is running elsewhere; both are successes.
func (o *options) runOnce(parent context.Context, k *lockkeeper.Keeper, name, path string, command []string, signals <-chan os.Signal) error {
	job, err := once.New(k, name, o.oncePer, &once.Options{TTL: o.ttl})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	started, ended := make(chan *held), make(chan error)
	type result struct {
		once.Result
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := job.Do(ctx, func(ctx context.Context, fence uint64) error {
			started <- &held{name: name, fence: fence, done: ctx.Done(), err: func() error { return context.Cause(ctx) }}
			return <-ended
		})
		done <- result{r, err}
	}()
	waiting := newNotices(name, func(ctx context.Context) ([]lockkeeper.Holder, int, error) {
		_, err := job.Status(ctx)
		return nil, 0, err
	}, false)
	defer waiting.stop()
	notices := waiting.text // nil when the wait is over
	var code, lost error
	var interrupt os.Signal
	for {
		select {
		case lease := <-started: // in this goroutine, because supervise binds the command to its thread
			if interrupt != nil { // it was granted just then
				ended <- errInterrupted
				continue
			}
			code, lost = o.supervise(path, command, lease, signals)
			waiting.stop()
			notices = nil
			time.AfterFunc(releaseTimeout, cancel)
			switch {
			case lost != nil:
				ended <- lost
			default:
				ended <- code
			}
		case s := <-signals:
			if process.Terminates(s) {
				interrupt = s
				cancel()
			}
		case <-waiting.due:
			waiting.query(ctx)
		case text := <-notices:
			waiting.print(text)
		case r := <-done:
			if interrupt != nil && (r.Outcome == once.None || errors.Is(r.err, errInterrupted)) {
				return &exit.Error{Code: 128 + int(interrupt.(syscall.Signal))}
			}
			return onceError(name, r.Result, r.err, code, lost)
		}
	}
}

// errInterrupted makes once release a job that was granted while a signal ended the wait.
var errInterrupted = errors.New("interrupted")

// onceError reports the outcome and returns the error of run. Code is the exit code of the command, and lost is set if the lock
// was lost while the command ran.
func onceError(name string, r once.Result, err, code, lost error) error {
	var unrecorded *once.UnrecordedError
	switch {
	case r.Outcome == once.Done && err == nil:
		fmt.Fprintf(os.Stderr, "lockkeeper: %q has already run in this period; the next period starts in %v\n", name, time.Until(r.Next).Round(time.Second))
		return nil
	case r.Outcome == once.Running && err == nil:
		fmt.Fprintf(os.Stderr, "lockkeeper: %q is already running elsewhere\n", name)
		return nil
	case r.Outcome != once.Ran:
		return err
	}
	err = without(err, code)
	switch {
	case lost != nil:
		return lostError(name, lost)
	case errors.Is(err, lockkeeper.ErrLost): // which the release has found
		return lostError(name, err)
	case errors.As(err, &unrecorded):
		fmt.Fprintln(os.Stderr, "lockkeeper:", exit.Message(err))
	case err != nil:
		fmt.Fprintln(os.Stderr, "lockkeeper:", exit.Message(err), "(the lock will expire)")
	}
	return code
}

// without returns the error of once without the exit code of the command, which may be joined with the error of the release.
func without(err, code error) error {
	if err == code {
		return nil
	}
	if joined, is := err.(interface{ Unwrap() []error }); is && code != nil {
		return errors.Join(slices.DeleteFunc(slices.Clone(joined.Unwrap()), func(e error) bool { return e == code })...)
	}
	return err
}
