package ratelimit

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/ahead"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// window is what Limiter and ConcurrentLimiter have in common.
type window struct {
	_ [0]sync.Mutex // so that go vet reports copies

	lock    *keeper.Lock
	names   *ahead.Names
	permits *ahead.Permits // nil without Options.Ahead
	most    int            // permits per request,
	bound   string         // because of this
}

// checkCount refuses a request for a number of permits that can never be had.
func (l *window) checkCount(n int) error {
	if n < 1 || n > l.most {
		return l.lock.Invalid("n %d is not between 1 and %s %d", n, l.bound, l.most)
	}
	return nil
}

// changed makes all limiters of the name and the keeper ask the server again, since the limit or a pause may have changed.
func (l *window) changed() { l.names.Changed(l.lock.Key()) }

// Name returns the name of the rate limit.
func (l *window) Name() string { return l.lock.Name() }

// Key returns the Redis key of the rate limit, which identifies it among all locks; lockkeeper.LockAll needs it.
func (l *window) Key() string { return l.lock.Key() }

// SetLimit changes the limit of the window for all processes. Raising it admits waiters before SetLimit returns. Lowering it
// returns no permit early; queued requests for more than the new limit fail with ErrAboveLimit, the first in the queue at
// once and the others within a heartbeat. The limit stays in force until a call, also of this limiter, has another limit,
// window or bound on concurrent calls than the call before it, or until the name has been unused for the window and the
// keeper's Options.MetadataTTL.
//
// The limit that was passed to the constructor remains the most that this limiter can be asked for. SetLimit blocks until the
// server has answered, until ctx ends, or until the keeper's retry policy gives up. The error is ErrInvalid for a limit that the
// constructor would refuse; after any other error the limit may or may not have been changed.
func (l *window) SetLimit(ctx context.Context, limit int) error {
	if err := checkPermits("limit", limit); err != nil {
		return l.lock.Fail(err)
	}
	defer l.changed()
	_, err := l.lock.Limit(ctx, limit)
	return err
}

// Pause keeps all processes from taking permits for d, for example because a service has answered that it is overloaded. The
// server enforces it: no process has to be notified. During the pause waiters stay in the queue; they are served in order
// afterwards. Allow and TryAcquire are refused, and a call that waits is refused at once if its context ends before the pause
// does. LimitedError and Result say when to try again. Permits that were granted before, and their leases, are not affected;
// these permits return to the window during the pause as usual.
//
// The pause begins when the server receives it, and lasts for d by the server's clock. It does not shorten a pause that lasts
// longer. Resume ends it; SetLimit, and callers with another limit, do not. If the server loses its data, the pause ends; see
// the package comment.
//
// d is from 1 ms to MaxPause; a fraction of a millisecond is rounded up. Pause blocks until the server has answered, until ctx
// ends, or until the keeper's retry policy gives up. The error is ErrInvalid if d is out of bounds; after any other error the
// pause may or may not have begun.
func (l *window) Pause(ctx context.Context, d time.Duration) error {
	if d < time.Millisecond || d > MaxPause {
		return l.lock.Invalid("pause %v is not between 1ms and %v", d, MaxPause)
	}
	defer l.changed()
	return l.lock.Pause(ctx, wholeMillis(d))
}

// Resume ends a pause, if there is one, and admits waiters before it returns. It blocks as Pause does. After an error the pause
// may or may not have ended.
func (l *window) Resume(ctx context.Context) error {
	defer l.changed()
	return l.lock.Resume(ctx)
}

// Available returns how many permits are free at present under the limits in force; 0 in a pause, and if a limit was lowered
// below what is taken. Waiters are served first, so a call for that many can be refused. Available takes no permits. It blocks
// until the server has answered, until ctx ends, or until the keeper's retry policy gives up: for a round trip, or several if
// many thousands of permits have returned since the last call. Errors are as for Holders; see [lockkeeper.Holder].
func (l *window) Available(ctx context.Context) (int, error) {
	t, err := l.lock.Limit(ctx, 0)
	if err != nil {
		return 0, err
	}
	if t.Paused {
		return 0, nil
	}
	free := t.Window - t.Spent
	if t.AtOnce > 0 {
		free = min(free, t.AtOnce-t.Held)
	}
	return max(free, 0), nil
}

// Waiters returns who waits, in the order in which they will be served; see [lockkeeper.Holder].
func (l *window) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](views.Waiters(ctx, l.lock.AtServer()))
}
