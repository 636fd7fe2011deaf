package engine

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/redis/go-redis/v9"
)

// read calls fn, which reads from the server, and returns what it returns. It blocks until fn has returned, until ctx ends or until
// Close; then fn goes on in the background, as late as the client's timeouts let it, and Close waits for it.
func read[T any](ctx context.Context, e *Engine, fn func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if !e.beginWork(false) {
		return none, ErrClosed
	}
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		defer e.endWork()
		value, err := fn()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		if r.err != nil {
			r.err = unavailable(r.err)
		}
		return r.value, r.err
	case <-ctx.Done():
		return none, Chain(ErrNoAnswer, ctx.Err())
	case <-e.closing.Done():
		return none, ErrClosed
	}
}

// readAgain is read, and repeats it after a retryable error, up to MaxTries times.
func readAgain[T any](ctx context.Context, e *Engine, fn func() (T, error)) (T, error) {
	pauses := e.cfg.Retry.NewBackoff()
	for attempt := 1; ; attempt++ {
		value, err := read(ctx, e, fn)
		if err == nil || !transport.Retryable(err) || attempt == MaxTries || ctx.Err() != nil || e.isClosed() {
			return value, err
		}
		if e.pause(ctx, pauses.NextBackOff()) != nil {
			return value, err
		}
	}
}

// pause waits for so long, or until ctx ends or until Close, which are errors.
func (e *Engine) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.closing.Done():
		return ErrClosed
	}
}

// execute sends the commands of a pipeline and returns the first error, unless a command may fail with it: no such key, or one of
// another type.
func execute(pipe redis.Pipeliner) error {
	cmds, err := pipe.Exec(context.Background())
	failed := false
	for _, cmd := range cmds {
		switch err := cmd.Err(); {
		case err == nil:
		case err == redis.Nil, transport.WrongType(err):
			failed = true
		default:
			return err
		}
	}
	if failed {
		return nil // err is one of these
	}
	return err
}

// micros returns the server's time in µs.
func micros(cmd *redis.TimeCmd) int64 {
	server := cmd.Val()
	return server.UnixMicro()
}
