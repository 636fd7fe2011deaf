package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Limits are how many permits there are. At least one of AtOnce and Window is positive; 0 is no limit.
type Limits struct {
	AtOnce int           // held at the same time
	Window int           // taken within any Per
	Per    time.Duration // whole milliseconds
}

// clockOnly reports whether permits return by the clock alone. Then requests are granted without a lease.
func (lim *Limits) clockOnly() bool { return lim != nil && lim.AtOnce == 0 }

// byClock reports whether permits return by the clock, so that the server knows when.
func (lim *Limits) byClock() bool { return lim != nil && lim.Window > 0 }

// flags returns the flags of a token for its permits.
func (lim *Limits) flags() string {
	switch {
	case lim.clockOnly():
		return protocol.FlagByClock
	case lim.byClock():
		return protocol.FlagHeld + protocol.FlagByClock
	}
	return protocol.FlagHeld
}

// policyArg encodes the limits for scripts.
func (lim *Limits) policyArg() string {
	return protocol.LimitsArg(lim.AtOnce, lim.Window, lim.Per.Milliseconds())
}

// own returns the limit that SetLimit changes.
func (lim *Limits) own() int {
	if lim.byClock() {
		return lim.Window
	}
	return lim.AtOnce
}

// TooSoon is the cause of a refusal if the server knows when enough permits will have returned by the clock, for the request and for those ahead
// of it.
type TooSoon struct {
	After time.Duration // from when the answer came
	At    time.Time
}

// Error implements error.
func (ts *TooSoon) Error() string {
	return fmt.Sprintf("not before %v from now", ts.After)
}

// tooSoon returns a TooSoon for ms after now, or nil if ms is not positive, because the time is not known.
func tooSoon(now time.Time, ms int64) error {
	if ms <= 0 {
		return nil
	}
	after := claim.Duration(ms)
	return &TooSoon{after, now.Add(after)}
}

// Quota is what remains of a window, by the server's answer to a request.
type Quota struct {
	Limit      int           // in force
	Remaining  int           // permits that are left of it
	RetryAfter time.Duration // until the request could be granted, if it was refused and that is known
	ResetAfter time.Duration // until all permits have returned, if no more are taken
}

// newQuota converts what a reply says of the window.
func newQuota(a protocol.AcquireReply) Quota {
	q := Quota{Limit: a.Quota.Limit, Remaining: a.Quota.Remaining, ResetAfter: claim.Duration(a.Quota.ResetAfter)}
	if a.Code == lua.Refused {
		q.RetryAfter = max(claim.Duration(a.RetryAfter), 0)
	}
	return q
}

// Take waits for permits that return by the clock alone, until ctx ends. They are granted without a lease; the result is the
// grant's fence.
func (l *Lock) Take(ctx context.Context, t Terms) (fence uint64, err error) {
	h, err := l.Acquire(ctx, t)
	if err != nil {
		return 0, err
	}
	return h.Fence(), nil
}

// TryTake takes permits without waiting, and returns what remains of the window. If they are refused, the fence is 0, and there is no error.
func (l *Lock) TryTake(ctx context.Context, t Terms) (q Quota, fence uint64, err error) {
	q, h, err := l.tryTake(ctx, t, l.Try)
	if h == nil {
		return q, 0, err
	}
	return q, h.Fence(), nil
}

// TryTakeLease takes permits for the process itself (package ahead), without events. granted is nil if they are refused. It holds nothing, but
// releasing it gives the permits back.
func (l *Lock) TryTakeLease(ctx context.Context, t Terms) (q Quota, granted *Lease, err error) {
	return l.tryTake(ctx, t, func(ctx context.Context, t Terms) (*Lease, error) { return l.Request(ctx, t, false) })
}

func (l *Lock) tryTake(ctx context.Context, t Terms, by func(context.Context, Terms) (*Lease, error)) (q Quota, granted *Lease, err error) {
	t.quota = &q
	h, err := by(ctx, t)
	refused := errors.Is(err, server.ErrNotAcquired) && q.Limit > 0
	switch {
	case err == nil:
		return q, h, nil
	case refused && (ctx.Err() == nil || !errors.Is(err, ctx.Err())):
		return q, nil, nil
	}
	return q, nil, err
}

// Limit returns the limits and how many permits are taken. A positive limit becomes the one in force. It blocks until the server
// has answered, and repeats the call until the server has swept all that has expired.
func (l *Lock) Limit(ctx context.Context, limit int) (protocol.LimitReply, error) {
	return l.setLimit(ctx, limit, 0)
}

// Pause keeps permits that return by the clock from being granted, for d from when the server runs the call. An earlier pause that lasts longer
// stays in force.
func (l *Lock) Pause(ctx context.Context, d time.Duration) error {
	_, err := l.setLimit(ctx, 0, d.Milliseconds())
	return err
}

// Resume ends a pause.
func (l *Lock) Resume(ctx context.Context) error {
	_, err := l.setLimit(ctx, 0, -1)
	return err
}

// setLimit sets the limit, and the pause in ms (negative: none), by limit.lua. 0 changes nothing.
func (l *Lock) setLimit(ctx context.Context, limit int, pause int64) (protocol.LimitReply, error) {
	for {
		if err := server.ContextError(ctx); err != nil {
			return protocol.LimitReply{}, l.Fail(err)
		}
		if !l.k.BeginWork(false) {
			return protocol.LimitReply{}, l.Fail(server.ErrClosed)
		}
		token, _ := l.newToken("", 0, "")
		call, inDoubt, err := l.k.RoundTrip(ctx, 0, func(p *server.Pending) {
			l.SetLimit(&p.Call, limit, token, pause)
		})
		if inDoubt = inDoubt && (limit > 0 || pause != 0); inDoubt { // a late copy would undo what others have set since
			l.Tombstone(ctx, token)
		}
		l.k.EndWork()
		if err != nil {
			return protocol.LimitReply{}, l.Fail(err)
		}
		n, err := server.Decode(call, protocol.ParseLimitReply)
		if err != nil {
			return protocol.LimitReply{}, l.Fail(err)
		}
		if limit > 0 && (inDoubt || n.LimitsChanged) { // the reply that said so may have been lost
			l.limitsChanged(l.NewObservation(ctx, ""), "", limit)
		}
		if !n.More {
			return n, nil
		}
		limit, pause = 0, 0
	}
}

// limitsChanged reports to the observer that a request has changed the limit in force.
func (l *Lock) limitsChanged(o *Observation, token string, limit int) {
	ev := l.Event(LimitChanged, o)
	ev.Token, ev.Limit = token, limit
	l.Observe(ev)
}
