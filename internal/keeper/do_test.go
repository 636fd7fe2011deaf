package keeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// TestDoSaysTheLossOnce checks the errors of Do after a loss, by what its function returns.
func TestDoSaysTheLossOnce(t *testing.T) {
	own := errors.New("own")
	for name, c := range map[string]struct {
		returns func(ctx context.Context) error
		is      error
	}{
		"the cause":           {context.Cause, server.ErrLost},
		"the cause, wrapped":  {func(ctx context.Context) error { return fmt.Errorf("work: %w", context.Cause(ctx)) }, server.ErrLost},
		"the context's error": {func(ctx context.Context) error { return ctx.Err() }, context.Canceled},
		"another error":       {func(context.Context) error { return own }, own},
		"nothing":             {func(context.Context) error { return nil }, server.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				h := s.hold("x", withoutRenewal)
				err := h.Do(context.Background(), func(ctx context.Context, _ uint64) error {
					time.Sleep(2 * ttl)
					return c.returns(ctx)
				})
				if !errors.Is(err, c.is) || !errors.Is(err, server.ErrLost) || strings.Count(err.Error(), server.ErrLost.Error()) != 1 {
					s.Errorf("%v", err)
				}
				if reason := server.LossReasonOf(h.Err()); reason != server.LossNotRenewed {
					s.Errorf("the reason of the loss is %s", reason)
				}
			})
		})
	}
}
