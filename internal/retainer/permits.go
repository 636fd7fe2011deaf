package retainer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Permits grants permits of a rate limit inside the process, from blocks that it takes of the server, and refuses inside for as long as
// the server has said that there are none. There is one for each name that was used lately, with the same limits. It is safe for
// concurrent use.
type Permits struct {
	lock    *keeper.Lock // its window is longer, by ahead
	ahead   time.Duration
	limit   int64
	block   atomic.Pointer[block]   // what callers are granted; nil: nothing
	refusal atomic.Pointer[refusal] // nil: the server has not refused lately
	waiting atomic.Int32            // callers that wait at the server, whom newcomers may not pass

	mu     sync.Mutex // guards the fields below
	stock  retain.Stock
	fetch  *fetch // under way; nil: none
	closed bool   // the name is used no more, or after Close
}

// block is a retain.Block with what the server has said when it was granted.
type block struct {
	*retain.Block
	lease *lease.Lease // of the request, which holds nothing
	fence uint64
	quota keeper.Quota
	at    time.Duration // of the answer, since the keeper was started
	timer func()        // cancels the end
}

// refusal is what the server has said to a request that it refused.
type refusal struct {
	n     int64         // callers who want as many, or more, are refused
	until time.Duration // since the keeper was started
	quota keeper.Quota
	at    time.Duration
}

// fetch is a request for a block, which several callers may wait for.
type fetch struct {
	done chan struct{}
	err  error // final when done is closed
}

// NewPermits returns what grants permits of these limits inside, which are by the clock alone. The error is ErrInvalid.
func NewPermits(k *keeper.Keeper, spec keeper.Spec, names *Names) (*Permits, error) {
	limits := *spec.Limits
	if limits.Per < retain.MinWindow {
		return nil, server.Invalid("window %v is shorter than %v, the least with Retain", limits.Per, retain.MinWindow)
	}
	ahead := retain.Ahead(limits.Per)
	limits.Per += ahead
	spec.Limits = &limits
	l, err := k.Lock(spec)
	if err != nil {
		return nil, err
	}
	open := k.OnClose(names)
	names.mu.Lock()
	key := l.Key() + " " + l.PolicyArg().(string)
	p, known := names.permits.Get(key)
	var removed *Permits
	if !known {
		p = &Permits{lock: l, ahead: ahead, limit: int64(limits.Window), stock: retain.NewStock(ahead), closed: !open}
		removed, _ = names.permits.Add(key, p)
	}
	names.mu.Unlock()
	if removed != nil {
		removed.close()
	}
	return p, nil
}

// KeeperClosed implements keeper.CloseObserver.
func (ns *Names) KeeperClosed() {
	ns.mu.Lock()
	all := slices.Collect(ns.permits.All())
	ns.mu.Unlock()
	for _, p := range all {
		p.close()
	}
}

// Lock returns the lock of what is not granted inside.
func (p *Permits) Lock() *keeper.Lock { return p.lock }

// inside grants n permits of the block, or refuses them, or reports false. Who waits at the server is not passed.
func (p *Permits) inside(n int64) (q keeper.Quota, fence uint64, ok bool) {
	if b := p.block.Load(); b != nil && p.waiting.Load() == 0 {
		if left, at, ok := b.Take(n); ok {
			return after(b.quota, left, at-b.at), b.fence, true
		}
	}
	r := p.refusal.Load()
	if r == nil || n < r.n || n > int64(r.quota.Limit) {
		return q, 0, false
	}
	at := time.Since(p.lock.Keeper().Started())
	if at >= r.until {
		return q, 0, false
	}
	q = after(r.quota, 0, at-r.at)
	q.RetryAfter = r.until - at
	return q, 0, true
}

// after returns the quota that long after the answer, when so many permits of the block are left.
func after(q keeper.Quota, left int64, d time.Duration) keeper.Quota {
	q.Remaining += int(left)
	q.ResetAfter = max(q.ResetAfter-d, 0)
	return q
}

// TryTake is Lock.TryTake, without a round trip if it can be decided inside.
func (p *Permits) TryTake(ctx context.Context, t keeper.Terms) (q keeper.Quota, fence uint64, err error) {
	n := int64(t.Number)
	if ctx.Err() == nil {
		q, fence, ok := p.inside(n)
		if !ok && p.waiting.Load() == 0 {
			if q, fence, ok, err = p.fetched(ctx, n); err != nil {
				return q, 0, err
			}
		}
		if ok {
			p.observe(ctx, t, fence)
			return q, fence, nil
		}
	}
	q, fence, err = p.lock.TryTake(ctx, t)
	p.answered(n, q, fence, err)
	return q, fence, err
}

// Take is Lock.Take, without a round trip if there are permits of a block.
func (p *Permits) Take(ctx context.Context, t keeper.Terms) (fence uint64, err error) {
	n := int64(t.Number)
	if ctx.Err() == nil {
		_, fence, ok := p.inside(n)
		if !ok && p.waiting.Load() == 0 {
			if _, fence, _, err = p.fetched(ctx, n); err != nil {
				return 0, err
			}
		}
		if fence > 0 {
			p.observe(ctx, t, fence)
			return fence, nil
		}
	}
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	fence, err = p.lock.Take(ctx, t)
	if err == nil {
		p.answered(n, keeper.Quota{}, fence, nil)
	}
	return fence, err
}

// fetched waits for a block, of which others of this process get permits as well, and grants n permits of it or refuses them. It reports
// false if the caller is to ask the server for its permits alone.
func (p *Permits) fetched(ctx context.Context, n int64) (q keeper.Quota, fence uint64, ok bool, err error) {
	for range 2 {
		p.mu.Lock()
		f := p.fetch
		if f == nil {
			if f = p.fetchLocked(n); f == nil {
				p.mu.Unlock()
				return q, 0, false, nil
			}
		}
		p.mu.Unlock()
		select {
		case <-f.done:
			err = f.err
		case <-ctx.Done():
			err = p.lock.Fail(server.ErrNoAnswer, ctx.Err())
		case <-p.lock.Keeper().Closing().Done():
			err = p.lock.Fail(server.ErrClosed)
		}
		if err != nil {
			return q, 0, false, err
		}
		if q, fence, ok = p.inside(n); ok {
			return q, fence, true, nil
		}
		p.mu.Lock()
		p.stock.Used(p.lock.Keeper().Now(), n) // others have taken all of the block
		p.mu.Unlock()
	}
	return q, 0, false, nil
}

// fetchLocked begins to fetch a block for a caller who needs n permits, if one is worth while.
func (p *Permits) fetchLocked(n int64) *fetch {
	size := p.stock.Next(p.lock.Keeper().Now(), n, p.limit)
	if size <= n || p.closed || !p.lock.Keeper().BeginWork(false) {
		return nil
	}
	f := &fetch{done: make(chan struct{})}
	p.fetch = f
	go p.run(f, size, n)
	return f
}

// run fetches a block of that size, or of a smaller one if there are not as many permits but those that are needed.
func (p *Permits) run(f *fetch, size, need int64) {
	defer p.lock.Keeper().EndWork()
	ctx := context.Background()
	for {
		sent := time.Since(p.lock.Keeper().Started())
		q, h, err := p.lock.TryTakeLease(ctx, keeper.Terms{Number: int(size)})
		p.mu.Lock()
		switch {
		case errors.Is(err, server.ErrAboveLimit) && size > need:
			size = need // the limit was lowered
			p.mu.Unlock()
			continue
		case err != nil:
			f.err = err
		case h != nil:
			p.stock.Granted(size)
			p.openLocked(&block{
				Block: retain.NewBlock(size, p.lock.Keeper().Started(), sent, p.ahead),
				lease: h, fence: h.Fence(), quota: q, at: time.Since(p.lock.Keeper().Started()),
			})
		default:
			again, d := p.stock.Refused(size, need, int64(q.Remaining), q.RetryAfter)
			if again > 0 {
				size = again
				p.mu.Unlock()
				continue
			}
			p.refuseLocked(need, q, d)
		}
		p.fetch = nil
		p.mu.Unlock()
		close(f.done)
		return
	}
}

// answered notes the answer to a caller who has asked the server alone.
func (p *Permits) answered(n int64, q keeper.Quota, fence uint64, err error) {
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.lock.Keeper().Now()
	p.stock.Used(now, n)
	if fence > 0 {
		p.stock.Granted(n)
	} else if q.Limit > 0 {
		_, d := p.stock.Refused(n, n, int64(q.Remaining), q.RetryAfter)
		p.refuseLocked(n, q, d)
	}
}

// refuseLocked refuses callers who need n permits, or more, for that long.
func (p *Permits) refuseLocked(n int64, q keeper.Quota, d time.Duration) {
	if p.closed {
		return
	}
	at := time.Since(p.lock.Keeper().Started())
	p.refusal.Store(&refusal{n, at + d, q, at})
}

// openLocked grants callers the permits of a block, in place of the one before.
func (p *Permits) openLocked(b *block) {
	if p.closed {
		p.give(b)
		return
	}
	p.refusal.Store(nil)
	p.endLocked(p.block.Swap(b))
	timer := time.AfterFunc(b.Ends()-b.at, func() { p.ended(b) })
	b.timer = func() { timer.Stop() }
}

// ended handles that the time of a block is over.
func (p *Permits) ended(b *block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.block.CompareAndSwap(b, nil) {
		p.endLocked(b)
	}
}

// endLocked ends a block that callers find no more, if it is not nil.
func (p *Permits) endLocked(b *block) {
	if b == nil {
		return
	}
	b.timer()
	if used := b.Close(); used > 0 {
		p.stock.Used(p.lock.Keeper().Now(), used)
	} else {
		p.give(b)
	}
}

// give gives back a block of which nothing was used.
func (p *Permits) give(b *block) {
	until := p.lock.Keeper().Now().Add(server.TombstoneTTL)
	p.lock.NewLease(b.lease.Token(), "", claim.Clean(until), nil).Abandon()
}

// Forget makes the process ask the server again, since the limit or a pause has changed.
func (p *Permits) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal.Store(nil)
	p.endLocked(p.block.Swap(nil))
}

// close makes the process ask the server for each permit from now on.
func (p *Permits) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Forget()
}

// observe reports a call that was decided inside.
func (p *Permits) observe(ctx context.Context, t keeper.Terms, fence uint64) {
	l := p.lock
	o := l.NewObservation(ctx, t.Flags)
	if o == nil {
		return
	}
	l.Observe(l.Event(lease.AcquireStart, o))
	ev := l.Event(lease.AcquireDone, o)
	ev.Local, ev.Fence = true, fence
	if fence == 0 {
		ev.Err = l.Fail(server.ErrNotAcquired)
	}
	l.Observe(ev)
}
