package run

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

// releaseTimeout limits how long run waits for a server that does not answer when it releases the lock.
const releaseTimeout = 5 * time.Second

// acquire acquires the lock. A signal that terminates ends the wait.
func (o *options) acquire(parent context.Context, l lock, waiting *notices, signals <-chan os.Signal) (*held, error) {
	defer waiting.stop()
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	if o.wait > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.wait)
		defer cancel()
	}
	type result struct {
		lease *held
		err   error
	}
	done := make(chan result, 1)
	go func() {
		lease, err := l(ctx, o.try)
		done <- result{lease, err}
	}()
	for {
		select {
		case r := <-done:
			return r.lease, r.err
		case <-waiting.due:
			waiting.query(ctx)
		case text := <-waiting.text:
			waiting.print(text)
		case s := <-signals:
			if !process.Terminates(s) {
				continue
			}
			cancel()
			if r := <-done; r.lease != nil {
				_ = release(r.lease, signals)
			}
			return nil, &exit.Error{Code: 128 + int(s.(syscall.Signal))}
		}
	}
}

// release releases the lease, if there is one. It stops waiting for the server after releaseTimeout or a signal that terminates; the lock
// then expires.
func release(lease *held, signals <-chan os.Signal) error {
	if lease.release == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- lease.release(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			if process.Terminates(s) {
				cancel()
			}
		}
	}
}
