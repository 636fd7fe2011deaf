package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
)

// sendTimes records when a script is sent from now on.
func (s *fixture) sendTimes(script *lua.Script) func() []time.Time {
	var mu sync.Mutex
	var list []time.Time
	sha := []byte(script.SHA)
	s.net.Watch(func(b []byte) {
		if bytes.Contains(b, sha) {
			mu.Lock()
			defer mu.Unlock()
			list = append(list, time.Now())
		}
	})
	return func() []time.Time {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}

// TestBackoffFollowsRetryPolicy checks that the pauses begin at about MinBackoff, grow to about MaxBackoff, and are
// jittered, and that there are no more attempts after MaxElapsed.
func TestBackoffFollowsRetryPolicy(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.must(s.hold("x").Release(context.Background()))
		s.Config.Retry = server.Retry{MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, MaxElapsed: 5 * time.Second}
		s.net.Break(lua.Mutex.Fast.Acquire.SHA, 1<<30, faultnet.LoseRequest)
		asked := s.sendTimes(lua.Mutex.Fast.Acquire)
		start := time.Now()
		if _, err := s.lock("x").Acquire(context.Background(), Terms{}); err == nil || errors.Is(err, server.ErrNotAcquired) {
			s.Errorf("all its requests were lost: %v", err)
		}
		r := s.Config.Retry
		if d := time.Since(start); d < r.MaxElapsed || d > r.MaxElapsed+2*r.MaxBackoff {
			s.Errorf("it returned after %v", d)
		}
		list := asked()
		var pauses []time.Duration
		for i := range list[1:] {
			pauses = append(pauses, list[i+1].Sub(list[i]))
		}
		if first := pauses[0]; first < r.MinBackoff/2 || first > 2*r.MinBackoff {
			s.Errorf("the first pause is %v", first)
		}
		slices.Sort(pauses)
		if shortest, longest := pauses[0], pauses[len(pauses)-1]; shortest < r.MinBackoff/2 || longest < r.MaxBackoff || longest > 2*r.MaxBackoff {
			s.Errorf("pauses of %v to %v", shortest, longest)
		}
		if different := slices.Compact(pauses); len(different) < len(list)/2 {
			s.Errorf("%d of %d pauses are distinct", len(different), len(list)-1)
		}
	})
}

// TestReleaseRetriesEndWithLease checks that a release is not retried after the lease has expired.
func TestReleaseRetriesEndWithLease(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.must(s.hold("y").Release(context.Background()))
		h := s.hold("x", withoutRenewal)
		s.net.Break(lua.Mutex.Fast.Release.SHA, 1<<30, faultnet.LoseRequest)
		sent := s.sendTimes(lua.Mutex.Fast.Release)
		ctx, cancel := context.WithTimeout(context.Background(), 2*ttl)
		defer cancel()
		if err := h.Release(ctx); err == nil || errors.Is(err, server.ErrLost) || ctx.Err() != nil {
			s.Errorf("no release arrived: %v", err)
		}
		n := len(sent())
		if n < 2 {
			s.Errorf("it was sent %d times", n)
		}
		time.Sleep(time.Minute)
		if more := len(sent()) - n; more != 0 {
			s.Errorf("it was sent %d times after the lease had expired", more)
		}
	})
}

// TestLossErrorIncludesRenewalError checks that the cause of a loss includes why the renewal failed.
func TestLossErrorIncludesRenewalError(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		s.net.Down()
		<-h.Done()
		if err := h.Err(); !errors.Is(err, server.ErrLost) || !errors.Is(err, io.ErrClosedPipe) {
			s.Error(err)
		}
	})
}

// TestCloseReportsUnnoticedLoss checks that Close reports a loss that was not noticed before, as in a process that
// was frozen.
func TestCloseReportsUnnoticedLoss(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		s.freeze(h)
		if err := s.Close(); !errors.Is(err, server.ErrLost) {
			s.Errorf("Close: %v", err)
		}
	})
}

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
