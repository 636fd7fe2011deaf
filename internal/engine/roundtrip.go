package engine

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// errStopped means that stop was closed: the caller no longer needs the answer.
var errStopped = errors.New("stopped")

// MaxTries bounds how often a request that does not wait, such as TryLock, is repeated after a retryable error.
const MaxTries = claim.MaxTries

// roundTrip sends calls that prepare sets, one after the other, until one is answered, and returns it. It blocks until then, until ctx ends,
// until the channel of stop is closed (errStopped), until an error is not retryable, or until maxAttempts have failed; if maxAttempts is 0,
// the retry policy decides. inDoubt reports that a call may still run whose outcome will not be known: a call that is still queued when the
// wait ends is withdrawn. If ctx ended, the error wraps ctx.Err() and why there was no answer before.
func (e *Engine) roundTrip(ctx context.Context, stop func() <-chan struct{}, maxAttempts int, prepare func(p *pending)) (answered *transport.Call, inDoubt bool, err error) {
	var retries *backoff.ExponentialBackOff
	began := time.Now()
	for attempt := 1; ; attempt++ {
		p := &pending{}
		prepare(p)
		call := &p.Call
		call.Done = p
		if ctx.Done() == nil {
			e.transport.SendInline(call) // the wait cannot be canceled
		} else {
			e.transport.Send(call)
		}
		if !p.ended.isClosed() {
			select {
			case <-p.ended.done():
			case <-stop():
				return nil, !p.Withdraw() || inDoubt, errStopped
			case <-ctx.Done():
				if err == nil {
					err = ErrNoAnswer
				}
				return nil, !p.Withdraw() || inDoubt, Chain(err, ctx.Err())
			}
		}
		if call.Err == nil {
			return call, inDoubt, nil
		}
		err = unavailable(call.Err)
		inDoubt = inDoubt || transport.OutcomeOf(err) == transport.InDoubt
		if !transport.Retryable(err) || attempt == maxAttempts || errors.Is(err, transport.ErrQueueFull) || e.cfg.Retry.Exhausted(began, time.Now()) {
			return nil, inDoubt, err
		}
		if retries == nil {
			retries = e.cfg.Retry.NewBackoff()
		}
		pause := time.NewTimer(retries.NextBackOff())
		select {
		case <-pause.C:
		case <-stop():
			pause.Stop()
			return nil, inDoubt, errStopped
		case <-ctx.Done():
			pause.Stop()
			return nil, inDoubt, Chain(err, ctx.Err())
		}
	}
}

// pending is a call that roundTrip waits for.
type pending struct {
	transport.Call
	ended signal
}

// CallDone implements transport.Receiver.
func (p *pending) CallDone(*transport.Call) {
	p.ended.close()
}

// waitFor waits until the channel is closed. The error is that of ctx, if that ends first, or ErrClosed after Close.
func (e *Engine) waitFor(ctx context.Context, closed <-chan struct{}) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.closing, cancel)()
	switch {
	case waitFor(waiting, closed):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return ErrClosed
}

// waitFor waits until the channel is closed or ctx ends, and reports whether the channel is closed.
func waitFor(ctx context.Context, closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	case <-ctx.Done():
	}
	select {
	case <-closed:
		return true
	default:
		return false
	}
}
