package server

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// MaxTries bounds how often a request that does not wait, such as TryLock, is repeated after a retryable error.
const MaxTries = claim.MaxTries

// RoundTrip sends calls that prepare sets, one after the other, until one is answered, and returns it. It blocks until then, until ctx
// ends, until Closing does (ErrClosed), until an error is not retryable, or until maxAttempts have failed; if maxAttempts is 0, the retry
// policy decides. inDoubt reports that a call may still run whose outcome will not be known: a call that is still queued when the wait
// ends is withdrawn. If ctx ended, the error wraps ContextError and why there was no answer before.
func (s *Server) RoundTrip(ctx context.Context, maxAttempts int, prepare func(p *Pending)) (answered *transport.Call, inDoubt bool, err error) {
	var retries *random.Backoff
	began := time.Now()
	for attempt := 1; ; attempt++ {
		p := &Pending{}
		prepare(p)
		call := &p.Call
		call.Done = p
		s.Transport.SendInline(ctx, call, nil)
		if !p.ended.IsClosed() {
			select {
			case <-p.ended.Done():
			case <-s.closing.Done():
				return nil, !p.Withdraw() || inDoubt, ErrClosed
			case <-ctx.Done():
				if err == nil {
					err = ErrNoAnswer
				}
				return nil, !p.Withdraw() || inDoubt, Chain(err, ContextError(ctx))
			}
		}
		if call.Err == nil {
			return call, inDoubt, nil
		}
		err = Unavailable(call.Err)
		inDoubt = inDoubt || transport.OutcomeOf(err) == claim.InDoubt
		if !transport.Retryable(err) || attempt == maxAttempts || errors.Is(err, transport.ErrQueueFull) || s.Config.Retry.Exhausted(began, time.Now()) {
			return nil, inDoubt, err
		}
		if retries == nil {
			retries = s.Config.Retry.NewBackoff()
		}
		switch end := s.Pause(ctx, retries.Next()); end {
		case nil:
		case ErrClosed:
			return nil, inDoubt, end
		default:
			return nil, inDoubt, Chain(err, end)
		}
	}
}

// Pending is a call that RoundTrip waits for.
type Pending struct {
	transport.Call
	ended Signal
}

// CallDone implements transport.Receiver. The wait for a call that was interrupted ends by what has interrupted it: ctx, or Closing.
func (p *Pending) CallDone(call *transport.Call) {
	if !errors.Is(call.Err, transport.ErrInterrupted) {
		p.ended.Close()
	}
}

// WaitFor waits until the channel is closed. The error is that of ctx, if that ends first, or ErrClosed after Close.
func (s *Server) WaitFor(ctx context.Context, closed <-chan struct{}) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	switch {
	case WaitFor(waiting, closed):
		return nil
	case ctx.Err() != nil:
		return ContextError(ctx)
	}
	return ErrClosed
}

// WaitFor waits until the channel is closed or ctx ends, and reports whether the channel is closed.
func WaitFor(ctx context.Context, closed <-chan struct{}) bool {
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
