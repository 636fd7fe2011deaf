package views

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Holder is a lease at the server.
type Holder struct {
	Token     string
	Owner     string // the label of its keeper, or ""
	Fence     uint64
	ExpiresIn time.Duration
	Converted bool // its token says that it reads, but it writes, or the other way round

	Unconfirmed bool // see lockkeeper.Holder; only in an Inspection
}

// Waiter is a queue entry at the server.
type Waiter struct {
	Token         string
	Owner         string // the label of its keeper, or ""
	WaitTime      time.Duration
	HeartbeatLeft time.Duration // until its heartbeat expires; not positive if it has
	HeartbeatAge  time.Duration // since its last heartbeat
}

// Holders returns the leases of the lock. A long list is read in pages; leases that are granted or end meanwhile may or may
// not be included.
func Holders(ctx context.Context, l *server.Resource) (list []Holder, err error) {
	err = eachHolder(ctx, l, protocol.InspectHolders, func(h Holder) { list = append(list, h) })
	if err != nil {
		return nil, err
	}
	labelHolders(ctx, l, list)
	return list, nil
}

// FirstHolders returns the first leases of the lock, no more than most or PageSize, and how many there are in all.
func FirstHolders(ctx context.Context, l *server.Resource, most int) (list []Holder, total int, err error) {
	page, n, err := holders(ctx, l, protocol.InspectHolders, protocol.Holder{}, most)
	if err != nil {
		return nil, 0, err
	}
	for _, h := range page {
		list = append(list, newHolder(h))
	}
	labelHolders(ctx, l, list)
	return list, max(int(n), len(list)), nil
}

// eachHolder calls f once for each lease, or for each request whose permits have not returned. Each page begins where the one before
// has ended, so no lease is left out that is there all the time.
func eachHolder(ctx context.Context, l *server.Resource, subject int, f func(Holder)) error {
	seen := map[string]bool{}
	for last := (protocol.Holder{}); ; {
		page, _, err := holders(ctx, l, subject, last, server.PageSize)
		if err != nil {
			return err
		}
		for _, h := range page {
			if !seen[h.Token] { // else it was renewed meanwhile, and so moved back
				seen[h.Token] = true
				f(newHolder(h))
			}
		}
		if len(page) < server.PageSize {
			return nil
		}
		last = page[len(page)-1]
	}
}

// holders requests one page of holders, those behind last, and how many there are in all.
func holders(ctx context.Context, l *server.Resource, subject int, last protocol.Holder, count int) ([]protocol.Holder, int64, error) {
	v, err := inspect(ctx, l, subject, last.Place, count, last.Token)
	if err != nil {
		return nil, 0, err
	}
	page, total, err := protocol.ParseHolders(v)
	if err != nil {
		return nil, 0, l.Fail(err)
	}
	return page, total, nil
}

func newHolder(h protocol.Holder) Holder {
	return Holder{Token: h.Token, Fence: uint64(max(h.Fence, 0)), ExpiresIn: claim.Duration(h.ExpiresIn), Converted: h.Converted}
}

func labelHolders(ctx context.Context, l *server.Resource, list []Holder) {
	labelOwners(ctx, l, len(list), func(i int) (string, *string) { return list[i].Token, &list[i].Owner })
}

// Waiters returns the queue in order. A long queue is read in pages; waiters that join or leave meanwhile may or may not be
// included.
func Waiters(ctx context.Context, l *server.Resource) ([]Waiter, error) {
	var list []Waiter
	for after := int64(0); ; {
		v, err := inspect(ctx, l, protocol.InspectWaiters, after, server.PageSize, "")
		if err != nil {
			return nil, err
		}
		page, err := protocol.ParseWaiters(v, after)
		if err != nil {
			return nil, l.Fail(err)
		}
		for _, w := range page {
			after = w.Place
			left, waited := claim.Duration(w.HeartbeatLeft), claim.Duration(max(w.WaitTime, 0))
			list = append(list, Waiter{
				Token: w.Token, WaitTime: waited, HeartbeatLeft: left, HeartbeatAge: min(max(heartbeatTimeoutOf(l.Server(), w.Token)-left, 0), waited),
			})
		}
		if len(page) < server.PageSize {
			break
		}
	}
	labelOwners(ctx, l, len(list), func(i int) (string, *string) { return list[i].Token, &list[i].Owner })
	return list, nil
}

// heartbeatTimeoutOf returns the heartbeat timeout of the keeper of a waiter, or this keeper's if the token does not have it.
func heartbeatTimeoutOf(s *server.Server, token string) time.Duration {
	t, _ := protocol.ParseToken(token)
	if ms := t.HeartbeatTimeout(); ms > 0 {
		return claim.Duration(ms)
	}
	return s.Config.HeartbeatTimeout
}

// markUnconfirmed sets which leases were granted to waiters and not renewed yet. Such a lease ends its claim ttl after the grant, a renewed
// one at least its ttl after the grant. The middle of both tells them apart, so it does not matter that the server's time is read later than
// the holders, and only if a lease ends soon.
func markUnconfirmed(ctx context.Context, l *server.Resource, holders []Holder) error {
	var now int64
	for i := range holders {
		h := &holders[i]
		t, ok := protocol.ParseToken(h.Token)
		if !ok || t.ClaimTTL >= t.TTL || h.Fence == 0 || h.ExpiresIn < 0 || h.ExpiresIn > claim.Duration(t.ClaimTTL) {
			continue
		}
		if now == 0 {
			var err error
			if now, err = server.ReadAgain(ctx, l.Server(), func() (int64, error) { return serverTime(l) }); err != nil {
				return err
			}
		}
		ends := now/1000 + h.ExpiresIn.Milliseconds()
		h.Unconfirmed = ends < int64(h.Fence)/1000+(t.ClaimTTL+t.TTL)/2
	}
	return nil
}

// labelOwners sets the owners of n entries, each by its token.
func labelOwners(ctx context.Context, l *server.Resource, n int, entry func(int) (token string, owner *string)) {
	keepers := make([]string, n)
	ids := map[string]bool{}
	for i := range n {
		token, _ := entry(i)
		if t, ok := protocol.ParseToken(token); ok {
			keepers[i], ids[t.Keeper] = t.Keeper, true
		}
	}
	if len(ids) == 0 || !l.Server().BeginWork(false) {
		return
	}
	defer l.Server().EndWork()
	labels := l.Server().Owners(ctx, ids)
	for i := range n {
		_, owner := entry(i)
		*owner = labels[keepers[i]]
	}
}

// inspect requests one page. It makes up to MaxTries attempts.
func inspect(ctx context.Context, l *server.Resource, subject int, after int64, count int, token string) ([]any, error) {
	if err := server.ContextError(ctx); err != nil {
		return nil, l.Fail(err)
	}
	if !l.Server().BeginWork(false) {
		return nil, l.Fail(server.ErrClosed)
	}
	defer l.Server().EndWork()
	call, _, err := l.Server().RoundTrip(ctx, server.MaxTries, func(p *server.Pending) {
		l.SetInspect(&p.Call, subject, after, count, token)
	})
	if err != nil {
		return nil, l.Fail(err)
	}
	return call.Values, nil
}
