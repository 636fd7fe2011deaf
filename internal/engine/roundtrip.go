package engine

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// errStopped: the caller has what it wanted in another way, or must go.
var errStopped = errors.New("stopped")

// MaxTries bounds how often a request that does not wait, such as TryLock, is repeated after a retryable error.
const MaxTries = 3

// roundTrip sends calls, one after the other, until one is answered, and returns that. It blocks until then, until ctx ends,
// until stop is closed (errStopped), until an error comes that will not pass by itself, or until tries have failed; 0
// means that the retry policy decides. Stray says that a call may yet run of which nothing more will be heard. If the
// context ended, the error is that and why there was no answer before.
func (e *Engine) roundTrip(ctx context.Context, stop <-chan struct{}, tries int, prepare func(done func(*transport.Call)) *transport.Call) (answered *transport.Call, stray bool, err error) {
	var pauses *backoff.ExponentialBackOff
	began := time.Now()
	for try := 1; ; try++ {
		done := make(chan struct{})
		call := prepare(func(*transport.Call) { close(done) })
		if ctx.Done() == nil {
			e.transport.SendInline(call) // nobody can call the caller off
		} else {
			e.transport.Send(call)
		}
		select {
		case <-done:
		case <-stop:
			return nil, true, errStopped
		case <-ctx.Done():
			if err == nil {
				err = ErrNoAnswer
			}
			return nil, true, Chain(err, ctx.Err())
		}
		if call.Err == nil {
			return call, stray, nil
		}
		err = unavailable(call.Err)
		stray = stray || transport.OutcomeOf(err) == transport.InDoubt
		if !transport.Retryable(err) || try == tries || e.cfg.Retry.Exhausted(began, time.Now()) {
			return nil, stray, err
		}
		if pauses == nil {
			pauses = e.cfg.Retry.NewBackoff()
		}
		pause := time.NewTimer(pauses.NextBackOff())
		select {
		case <-pause.C:
		case <-stop:
			pause.Stop()
			return nil, stray, errStopped
		case <-ctx.Done():
			pause.Stop()
			return nil, stray, Chain(err, ctx.Err())
		}
	}
}

// waitFor waits for what a channel's end tells of, and says whether it came before ctx ended.
func waitFor(ctx context.Context, what <-chan struct{}) bool {
	select {
	case <-what:
		return true
	case <-ctx.Done():
	}
	select {
	case <-what:
		return true
	default:
		return false
	}
}
