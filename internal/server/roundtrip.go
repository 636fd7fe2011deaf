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

// Repeat calls fn until it has succeeded, ctx ends, or the keeper is closed (ErrClosed). What fn returns says what follows:
//   - nil: done.
//   - again and an error: fn is called again after a pause, unless it was called maxTries times (0: any number), or the retry policy gives up.
//     If ctx has ended, the error of Repeat wraps ContextError as well.
//   - an error alone: failed.
func (s *Server) Repeat(ctx context.Context, maxTries int, fn func() (again bool, err error)) error {
	var pauses random.Backoff
	began := time.Now()
	for try := 1; ; try++ {
		again, err := fn()
		over := ctx.Err() != nil || s.closing.Err() != nil
		if err == nil || !again || !over && (try == maxTries || s.Config.Retry.Exhausted(began, time.Now())) {
			return err
		}
		switch end := s.Pause(ctx, s.Config.Retry.Next(&pauses)); end {
		case nil:
		case ErrClosed:
			return end
		default:
			return Chain(err, end)
		}
	}
}

// RoundTrip sends calls, each set by prepare, as Repeat does, until one is answered, and returns this one. If the wait ends before, a call that
// is still queued is withdrawn. inDoubt reports that a call whose outcome will not be known has run or may still run. If ctx ended, the error
// also says why there was no answer before.
func (s *Server) RoundTrip(ctx context.Context, maxTries int, prepare func(p *Pending)) (answered *transport.Call, inDoubt bool, err error) {
	why := ErrNoAnswer
	err = s.Repeat(ctx, maxTries, func() (again bool, err error) {
		p := &Pending{}
		prepare(p)
		p.Done = p
		s.Transport.SendInline(ctx, &p.Call, nil)
		if !p.ended.IsClosed() {
			select {
			case <-p.ended.Done():
			case <-s.closing.Done():
				inDoubt = !p.Withdraw() || inDoubt
				return true, why
			case <-ctx.Done():
				inDoubt = !p.Withdraw() || inDoubt
				return true, why
			}
		}
		if p.Err == nil {
			answered = &p.Call
			return false, nil
		}
		why = Unavailable(p.Err)
		inDoubt = inDoubt || transport.OutcomeOf(why) == claim.InDoubt
		return transport.Retryable(why) && !errors.Is(why, transport.ErrQueueFull), why
	})
	return answered, inDoubt, err
}

// Pending is a call that RoundTrip or Owners waits for.
type Pending struct {
	transport.Call
	ended Signal
}

// CallDone implements transport.Receiver. It ignores a call that was interrupted, because what has interrupted it, ctx or Closing, ends the wait.
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
