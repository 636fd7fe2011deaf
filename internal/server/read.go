package server

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/redis/go-redis/v9"
)

// Read calls fn, which reads from the server, and returns what it returns. It blocks until fn has returned, until ctx ends or until
// Close; then fn goes on in the background, as late as the client's timeouts let it, and Close waits for it.
func Read[T any](ctx context.Context, s *Server, fn func() (T, error)) (T, error) {
	var none T
	if err := ContextError(ctx); err != nil {
		return none, err
	}
	if !s.BeginWork(false) {
		return none, ErrClosed
	}
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		defer s.EndWork()
		value, err := fn()
		results <- result{value, s.Config.Client.Explain(err)}
	}()
	select {
	case r := <-results:
		if r.err != nil {
			r.err = Unavailable(r.err)
		}
		return r.value, r.err
	case <-ctx.Done():
		return none, Chain(ErrNoAnswer, ContextError(ctx))
	case <-s.closing.Done():
		return none, ErrClosed
	}
}

// ReadAgain is Read, and repeats it after a retryable error, up to MaxTries times.
func ReadAgain[T any](ctx context.Context, s *Server, fn func() (T, error)) (value T, err error) {
	err = s.Repeat(ctx, MaxTries, func() (again bool, err error) {
		value, err = Read(ctx, s, fn)
		return ctx.Err() == nil && transport.Retryable(err), err
	})
	return value, err
}

// Pause waits for so long, or until ctx ends or until Close, which are errors.
func (s *Server) Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ContextError(ctx)
	case <-s.closing.Done():
		return ErrClosed
	}
}

// Execute sends the commands of a pipeline and returns the first error, unless a command may fail with it: no such key, or one of
// another type.
func Execute(pipe redis.Pipeliner) error {
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

// Micros returns the server's time in µs, as scripts count it.
func Micros(cmd *redis.TimeCmd) int64 {
	server := cmd.Val()
	return protocol.ScriptTime(server.UnixMicro())
}
