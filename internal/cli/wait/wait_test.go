package wait

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

// looks is a lock whose state depends on the time since the start of the wait. It counts how often it was looked at.
type looks struct {
	start time.Time
	state func(after time.Duration) (*admin.LockState, error)
	n     int
}

func (l *looks) inspect(context.Context) ([]*admin.LockState, error) {
	l.n++
	i, err := l.state(time.Since(l.start))
	return []*admin.LockState{{Kind: "fair"}, i}, err
}

// heldFor is held by a process that renews its lease of 30 s, and has waiters for as long again.
func heldFor(d time.Duration) func(time.Duration) (*admin.LockState, error) {
	return func(after time.Duration) (*admin.LockState, error) {
		i, err := leased(d, func(time.Duration) time.Duration { return 25 * time.Second })(after)
		if after < 2*d {
			i.Waiters = make([]lockkeeper.Waiter, 2)
		}
		return i, err
	}
}

// leased is held for d, by a lease that expires when the function says for the time that is left.
func leased(d time.Duration, expiresIn func(left time.Duration) time.Duration) func(time.Duration) (*admin.LockState, error) {
	return func(after time.Duration) (*admin.LockState, error) {
		i := &admin.LockState{Kind: "mutex"}
		if after < d {
			i.Holders = []lockkeeper.Holder{{Owner: "web-1", ExpiresIn: expiresIn(d - after)}}
		}
		return i, nil
	}
}

// never and crashed are leases: one of another library without an expiry, and one that nobody renews.
func never(time.Duration) time.Duration { return -1 }

func crashed(left time.Duration) time.Duration { return left }

// failing is free, but asking for it fails for d.
func failing(d time.Duration, err error) func(time.Duration) (*admin.LockState, error) {
	return func(after time.Duration) (*admin.LockState, error) {
		if after < d {
			return nil, err
		}
		return &admin.LockState{}, nil
	}
}

// silentFor is in a state, but asking for it fails from then on for d.
func silentFor(d, from time.Duration, state func(time.Duration) (*admin.LockState, error)) func(time.Duration) (*admin.LockState, error) {
	return func(after time.Duration) (*admin.LockState, error) {
		if after >= from && after < from+d {
			return nil, lockkeeper.ErrUnavailable
		}
		return state(after)
	}
}

func TestWaitEndsWhenFree(t *testing.T) {
	for name, c := range map[string]struct {
		state   func(time.Duration) (*admin.LockState, error)
		idle    bool
		timeout time.Duration
		after   time.Duration // when the wait ends; within maxPause
		code    int           // of the error; -1: that of the server
		notices int
	}{
		"free":            {heldFor(0), true, -1, 0, 0, 0},
		"freed":           {heldFor(5500 * time.Millisecond), false, -1, 5500 * time.Millisecond, 0, 1},
		"idle":            {heldFor(5500 * time.Millisecond), true, -1, 11 * time.Second, 0, 1},
		"long":            {heldFor(150 * time.Second), false, -1, 150 * time.Second, 0, 3},
		"timeout":         {heldFor(time.Hour), false, 90 * time.Second, 90 * time.Second, exit.NotAcquired, 2},
		"look_once":       {heldFor(time.Hour), false, 0, 0, exit.NotAcquired, 0},
		"freed_in_time":   {heldFor(4 * time.Second), false, 4 * time.Second, 4 * time.Second, 0, 1},
		"refused":         {failing(time.Hour, errors.New("NOPERM")), false, -1, 0, -1, 0},
		"no_server":       {failing(time.Hour, lockkeeper.ErrUnavailable), false, -1, silence, -1, 1},
		"no_server_once":  {failing(time.Hour, lockkeeper.ErrUnavailable), false, 0, 0, -1, 0},
		"short_outage":    {failing(8*time.Second, lockkeeper.ErrUnavailable), false, -1, 8 * time.Second, 0, 1},
		"later_outage":    {silentFor(8*time.Second, 20*time.Second, heldFor(35*time.Second)), false, -1, 35 * time.Second, 0, 1},
		"without_expiry":  {leased(3*time.Second, never), false, -1, 3 * time.Second, 0, 1},
		"expires_at_once": {leased(700*time.Millisecond, crashed), false, -1, 700 * time.Millisecond, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &looks{start: time.Now(), state: c.state}
				var notices strings.Builder
				w := waiter{name: "x", idle: c.idle, timeout: c.timeout, inspect: l.inspect, notices: &notices}
				err := w.run(t.Context())
				took := time.Since(l.start)
				check.That(t, took >= c.after && took <= c.after+maxPause, "it took %v, want %v", took, c.after)
				limit := int(took/time.Second) + 3
				check.That(t, l.n <= limit, "%d looks in %v", l.n, took)
				var own *exit.Error
				switch {
				case c.code == 0 && err != nil, c.code == -1 && (err == nil || errors.Is(err, errHeld)),
					c.code > 0 && (!errors.As(err, &own) || own.Code != c.code || !errors.Is(err, errHeld) || !strings.Contains(err.Error(), "held by web-1")):
					t.Error(err)
				}
				if n := strings.Count(notices.String(), "\n"); n != c.notices {
					t.Errorf("%d notices, want %d:\n%s", n, c.notices, notices.String())
				}
			})
		})
	}
}

// TestWaitEndsInTimeIfServerHangs: an answer that does not come is not waited for much beyond --timeout.
func TestWaitEndsInTimeIfServerHangs(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{0: answerTimeout, 300 * time.Millisecond: lateAnswer, 2 * time.Second: 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := waiter{name: "x", timeout: timeout, notices: new(strings.Builder)}
			w.inspect = func(ctx context.Context) ([]*admin.LockState, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			start := time.Now()
			err := w.run(t.Context())
			took := time.Since(start)
			check.That(t, errors.Is(err, context.DeadlineExceeded) && took == want, "--timeout %v: %v after %v, want %v", timeout, err, took, want)
		})
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		l := &looks{start: time.Now(), state: heldFor(time.Hour)}
		w := waiter{name: "x", timeout: -1, inspect: l.inspect, notices: new(strings.Builder)}
		if err := w.run(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(l.start) != 2500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(l.start))
		}
	})
}
