package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// pageSize is the maximum number of holders or waiters that one script returns.
const pageSize = 500

// Holder is a lease at the server.
type Holder struct {
	Token     string
	Owner     string // the label of its keeper, or ""
	Fence     uint64
	ExpiresIn time.Duration
}

// Waiter is a queue entry at the server.
type Waiter struct {
	Token         string
	Owner         string // the label of its keeper, or ""
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
		page, err := protocol.ParseHolders(v)
		if err != nil {
			return nil, l.fail(err)
		}
		for _, h := range page {
			if !seen[h.Token] {
				seen[h.Token] = true
				list = append(list, Holder{Token: h.Token, Fence: uint64(max(h.Fence, 0)), ExpiresIn: duration(h.ExpiresIn)})
			}
		}
		if len(page) < pageSize {
			break
		}
	}
	l.labelOwners(ctx, len(list), func(i int) (string, *string) { return list[i].Token, &list[i].Owner })
	return list, nil
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
		page, err := protocol.ParseWaiters(v, after)
		if err != nil {
			return nil, l.fail(err)
		}
		for _, w := range page {
			after = w.Place
			list = append(list, Waiter{Token: w.Token, WaitTime: duration(max(w.WaitTime, 0)), HeartbeatLeft: duration(w.HeartbeatLeft)})
		}
		if len(page) < pageSize {
			break
		}
	}
	l.labelOwners(ctx, len(list), func(i int) (string, *string) { return list[i].Token, &list[i].Owner })
	return list, nil
}

// labelOwners sets the owners of n entries, each by its token.
func (l *Lock) labelOwners(ctx context.Context, n int, entry func(int) (token string, owner *string)) {
	keepers := make([]string, n)
	ids := map[string]bool{}
	for i := range n {
		token, _ := entry(i)
		if t, ok := protocol.ParseToken(token); ok {
			keepers[i], ids[t.Keeper] = t.Keeper, true
		}
	}
	if len(ids) == 0 || !l.e.beginWork(false) {
		return
	}
	defer l.e.endWork()
	labels := l.e.owners(ctx, ids)
	for i := range n {
		_, owner := entry(i)
		*owner = labels[keepers[i]]
	}
}

// inspect requests one page. It makes up to MaxTries attempts.
func (l *Lock) inspect(ctx context.Context, subject int, after int64) ([]any, error) {
	if err := ctx.Err(); err != nil {
		return nil, l.fail(err)
	}
	if !l.e.beginWork(false) {
		return nil, l.fail(ErrClosed)
	}
	defer l.e.endWork()
	call, _, err := l.e.roundTrip(ctx, l.e.closing.Done, MaxTries, func(p *pending) {
		l.setInspection(&p.Call, subject, after, pageSize)
	})
	switch {
	case errors.Is(err, errStopped):
		return nil, l.fail(ErrClosed)
	case err != nil:
		return nil, l.fail(err)
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
