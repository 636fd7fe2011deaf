package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepeat plays what an attempt may return, and what ends the wait for the next.
func TestRepeat(t *testing.T) {
	why := errors.New("why")
	const ends, closes = "the context ends", "the keeper is closed"
	for name, c := range map[string]struct {
		maxTries   int
		maxElapsed time.Duration
		fails      int    // how often the attempt fails before it succeeds
		final      bool   // the first failure is not to be repeated
		event      string // what happens during the second attempt
		calls      int
		want       []error
	}{
		"done at once":                   {calls: 1, maxElapsed: -1},
		"done in the end":                {calls: 4, maxElapsed: -1, fails: 3},
		"failed":                         {calls: 1, maxElapsed: -1, fails: 3, final: true, want: []error{why}},
		"tried often enough":             {calls: 3, maxElapsed: -1, fails: 9, maxTries: 3, want: []error{why}},
		"tried for long enough":          {calls: 1, fails: 9, want: []error{why}},
		"the context ends":               {calls: 2, maxElapsed: -1, fails: 9, event: ends, want: []error{why, context.Canceled}},
		"the context ends the last time": {calls: 2, maxElapsed: -1, fails: 9, maxTries: 2, event: ends, want: []error{why, context.Canceled}},
		"done when the context ends":     {calls: 2, maxElapsed: -1, fails: 1, event: ends},
		"closed":                         {calls: 2, maxElapsed: -1, fails: 9, event: closes, want: []error{ErrClosed}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{Config: Config{Retry: Retry{MinBackoff: 10 * time.Millisecond, MaxBackoff: time.Second, MaxElapsed: c.maxElapsed}}}
			s.closing, s.cancel = context.WithCancel(t.Context())
			ctx, cancel := context.WithCancel(t.Context())
			calls, began := 0, time.Now()
			err := s.Repeat(ctx, c.maxTries, func() (again bool, err error) {
				calls++
				if calls > 1 && time.Since(began) < 5*time.Millisecond {
					t.Errorf("%s: call %d came without a pause", name, calls)
				}
				switch {
				case calls == 2 && c.event == ends:
					cancel()
				case calls == 2 && c.event == closes:
					s.cancel()
				}
				if calls > c.fails {
					return false, nil
				}
				return !c.final, why
			})
			cancel()
			s.cancel()
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("%s: error %v, want %v", name, err, want)
				}
			}
			if calls != c.calls || len(c.want) == 0 && err != nil {
				t.Errorf("%s: %d calls and error %v, want %d", name, calls, err, c.calls)
			}
		})
	}
}
