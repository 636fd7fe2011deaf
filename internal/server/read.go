package server

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/redis/go-redis/v9"
)

// Read calls fn, which reads from the server, and returns what it returns. If ctx or Close ends the wait before, fn goes on in the background,
// until the client's timeouts at most, and Close waits for it.
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

// Pause waits for d. If ctx ends or the keeper is closed before, it returns an error.
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

// Execute sends the commands of a pipeline and returns the first error, other than that a key does not exist or has another type.
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
		return nil // err says that a key does not exist, or has another type
	}
	return err
}

// Micros returns the server's time in µs, as scripts count it.
func Micros(cmd *redis.TimeCmd) int64 {
	server := cmd.Val()
	return protocol.ScriptTime(server.UnixMicro())
}
