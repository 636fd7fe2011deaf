package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// TestOutage asks what follows from the answers of a node at the times at which that changes. Times are before now.
func TestOutage(t *testing.T) {
	const maxAge, maxElapsed = 3 * time.Second, 10 * time.Second
	now := time.Now()
	broken := errors.New("broken")
	for what, x := range map[string]struct {
		last, since       time.Duration // of the answers; 0: never
		err               error
		came              time.Duration // the caller, for Exhausted
		outage, exhausted error
		stale             bool
	}{
		"nothing was sent":                                 {outage: ErrNoAnswer, came: maxElapsed, stale: true},
		"an answer":                                        {last: maxAge, came: maxElapsed, stale: true},
		"a recent answer":                                  {last: maxAge - 1, came: maxElapsed},
		"an old answer":                                    {last: maxAge + 1, came: maxElapsed, outage: ErrNoAnswer, stale: true},
		"a call that is under way":                         {last: maxAge, since: SilenceTimeout - 1, came: maxElapsed},
		"the first call is under way":                      {since: SilenceTimeout - 1, came: maxElapsed, outage: ErrNoAnswer},
		"a call that is unanswered":                        {last: maxAge, since: SilenceTimeout, came: maxElapsed, outage: ErrNoAnswer},
		"a call that is unanswered for long":               {last: 1, since: maxElapsed, came: maxElapsed, outage: ErrNoAnswer, exhausted: ErrNoAnswer},
		"a call that has failed":                           {last: maxAge, since: 1, err: broken, came: maxElapsed, outage: broken},
		"calls have not failed for long":                   {last: maxAge, since: maxElapsed - 1, err: broken, came: maxElapsed, outage: broken},
		"calls have failed for long":                       {since: maxElapsed, err: broken, came: maxElapsed, outage: broken, exhausted: broken},
		"calls have failed for long when the caller comes": {since: 2 * maxElapsed, err: broken, came: maxElapsed - 1, outage: broken},
	} {
		ago := func(d time.Duration) (at time.Time) {
			if d > 0 {
				at = now.Add(-d)
			}
			return at
		}
		a := transport.Answers{Last: ago(x.last), Since: ago(x.since), Err: x.err}
		says := func(which string, got, want error) {
			if (got == nil) != (want == nil) || !errors.Is(got, want) {
				t.Errorf("%s: %s: %v, want %v", what, which, got, want)
			}
		}
		says("outage", Outage(a, maxAge, now), x.outage)
		says("exhausted", Exhausted(a, Retry{MaxElapsed: maxElapsed}, ago(x.came), now), x.exhausted)
		says("exhausted without a bound", Exhausted(a, Retry{MaxElapsed: -1}, ago(x.came), now), nil)
		if got := Stale(a, maxAge-1, now); got != x.stale {
			t.Errorf("%s: stale: %v", what, got)
		}
	}
}

// TestWaitError: contention and outages, with the end of the context.
func TestWaitError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for outage, want := range map[error]error{nil: ErrNotAcquired, ErrNoAnswer: ErrUnavailable} {
		err := WaitError(ctx, outage)
		if !errors.Is(err, want) || !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotAcquired) != (outage == nil) {
			t.Errorf("%v: %v", outage, err)
		}
	}
}
