package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// pageSize is the maximum number of holders or waiters that one script returns.
const pageSize = 500

// Holder is a lease at the server.
type Holder struct {
	Token     string
	Fence     uint64
	ExpiresIn time.Duration
}

// Waiter is a queue entry at the server.
type Waiter struct {
	Token         string
	WaitTime      time.Duration
	HeartbeatLeft time.Duration // until its heartbeat expires; not positive if it has
}

// Holders returns the leases of the lock. A long list is read in pages; leases that are granted or end meanwhile may or may
// not be included.
func (l *Lock) Holders(ctx context.Context) ([]Holder, error) {
	var list []Holder
	seen := map[string]bool{}
	for after := int64(0); ; after += pageSize {
		v, err := l.inspect(ctx, protocol.InspectHolders, after)
		if err != nil {
			return nil, err
		}
		for i := 1; i+2 < len(v); i += 3 {
			token, ok := v[i].(string)
			fence, ok2 := v[i+1].(int64)
			left, ok3 := v[i+2].(int64)
			if !ok || !ok2 || !ok3 {
				return nil, l.fail(fmt.Errorf("%w: %v from inspect", transport.ErrReply, v[i:i+3]))
			}
			if !seen[token] {
				seen[token] = true
				list = append(list, Holder{token, uint64(max(fence, 0)), duration(left)})
			}
		}
		if len(v) < pageSize*3 {
			return list, nil
		}
	}
}

// Waiters returns the queue in order. A long queue is read in pages; waiters that join or leave meanwhile may or may not be
// included.
func (l *Lock) Waiters(ctx context.Context) ([]Waiter, error) {
	var list []Waiter
	for after := int64(0); ; {
		v, err := l.inspect(ctx, protocol.InspectWaiters, after)
		if err != nil {
			return nil, err
		}
		for i := 1; i+3 < len(v); i += 4 {
			token, ok := v[i].(string)
			place, ok2 := v[i+1].(int64)
			waited, ok3 := v[i+2].(int64)
			life, ok4 := v[i+3].(int64)
			if !ok || !ok2 || !ok3 || !ok4 || place <= after {
				return nil, l.fail(fmt.Errorf("%w: %v from inspect", transport.ErrReply, v[i:i+4]))
			}
			after = place
			list = append(list, Waiter{token, duration(max(waited, 0)), duration(life)})
		}
		if len(v) < pageSize*4 {
			return list, nil
		}
	}
}

// inspect requests one page. It makes up to MaxTries attempts.
func (l *Lock) inspect(ctx context.Context, what int, after int64) ([]any, error) {
	if err := ctx.Err(); err != nil {
		return nil, l.fail(err)
	}
	if !l.e.beginWork(false) {
		return nil, l.fail(ErrClosed)
	}
	defer l.e.endWork()
	call, _, err := l.e.roundTrip(ctx, l.e.closing.Done(), MaxTries, func(done func(*transport.Call)) *transport.Call {
		call := l.call(l.spec.Scripts.Inspect, 4, 3, done)
		call.Mixed = true
		call.Args = protocol.InspectArgs(call.Args, what, after, pageSize)
		return call
	})
	switch {
	case errors.Is(err, errStopped):
		return nil, l.fail(ErrClosed)
	case err != nil:
		return nil, l.fail(err)
	case len(call.Values) == 0:
		return nil, l.fail(fmt.Errorf("%w: an empty array from inspect", transport.ErrReply))
	}
	return call.Values, nil
}

// Is reports whether the lease is one for this use, by the first letter of its token's flags; "" if there are none.
func (h *Lease) Is(use string) bool {
	h = h.current()
	if h.use != "" {
		return h.use == use
	}
	t, _ := protocol.ParseToken(h.token)
	return t.Flags[:min(len(t.Flags), 1)] == use
}
