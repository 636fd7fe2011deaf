package ahead

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lru"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
)

// Permits grants permits of a rate limit inside the process, from blocks that it takes from the server, and refuses inside for as long as
// the server has said that there are none. Limiters of one name with the same limits share one. It is safe for concurrent use.
type Permits struct {
	names   *Names
	lock    *keeper.Lock // its window is longer, by ahead
	ahead   time.Duration
	limit   int64
	block   atomic.Pointer[block]   // from which callers are granted permits; nil: none
	refusal atomic.Pointer[refusal] // nil: the server has not refused lately
	waiting atomic.Int32            // callers that wait at the server; newcomers may not pass them

	mu    sync.Mutex // guards the fields below
	stock Stock
	fetch *fetch        // under way; nil: none
	late  claim.Instant // until then no fetch begins, because a block came too late to be used
}

// block is a Block with what the server said when it granted it.
type block struct {
	*Block
	lease *keeper.Lease // of the request; it holds nothing, but names the token by which the block is given back
	fence uint64
	quota keeper.Quota
	at    time.Duration // of the answer, since the keeper was started
	timer timers.Timer  // when it ends
	since version
}

// refusal is what the server said when it refused a request.
type refusal struct {
	n     int64         // callers who want n permits or more are refused
	until time.Duration // since the keeper was started
	quota keeper.Quota
	at    time.Duration
	since version
}

// fetch is a request for a block, which several callers may wait for.
type fetch struct {
	done chan struct{}
	err  error // final when done is closed
}

// NewPermits returns the Permits of a rate limit whose permits all return by the clock. The error is ErrInvalid.
func NewPermits(k *keeper.Keeper, spec keeper.Spec, names *Names) (*Permits, error) {
	limits := *spec.Limits
	if limits.Per < MinWindow {
		return nil, server.InvalidFor(spec.Scripts.Kind, spec.Name, "window %v is shorter than %v, the least with Ahead", limits.Per, MinWindow)
	}
	ahead := Length(limits.Per)
	limits.Per += ahead
	spec.Limits = &limits
	l, err := k.Lock(spec)
	if err != nil {
		return nil, err
	}
	names.mu.Lock()
	defer names.mu.Unlock()
	key := l.Key() + " " + l.PolicyArg().(string)
	p, known := names.permits.Get(key)
	if !known {
		p = &Permits{names: names, lock: l, ahead: ahead, limit: int64(limits.Window), stock: NewStock(ahead)}
		names.permits.Add(key, p) // one that is dropped for it still serves its limiters, and its block ends by the timer
	}
	return p, nil
}

// Lock returns the lock that asks the server.
func (p *Permits) Lock() *keeper.Lock { return p.lock }

// inside grants n permits of the block, or refuses them (fence 0). It reports false if it can do neither. It does not let callers pass waiters.
func (p *Permits) inside(n int64) (q keeper.Quota, fence uint64, ok bool) {
	if p.lock.Keeper().Closing().Err() != nil {
		return q, 0, false
	}
	if b := p.block.Load(); b != nil && p.waiting.Load() == 0 && b.since.isCurrent() {
		if left, at, ok := b.Take(n); ok && b.since.isCurrent() { // else there was a change meanwhile, such as Pause
			return after(b.quota, left, at-b.at), b.fence, true
		}
	}
	r := p.refusal.Load()
	if r == nil || !r.since.isCurrent() || n < r.n || n > int64(r.quota.Limit) {
		return q, 0, false
	}
	at := time.Since(p.lock.Keeper().Started())
	if at >= r.until {
		return q, 0, false
	}
	q = after(r.quota, 0, at-r.at)
	q.RetryAfter = max(r.until, r.at+q.RetryAfter) - at
	return q, 0, true
}

// after returns what has become of q after d, with left permits in the block.
func after(q keeper.Quota, left int64, d time.Duration) keeper.Quota {
	q.Remaining += int(left)
	q.ResetAfter = max(q.ResetAfter-d, 0)
	return q
}

// TryTake is Lock.TryTake, without a round trip if it can be decided inside.
func (p *Permits) TryTake(ctx context.Context, t keeper.Terms) (q keeper.Quota, fence uint64, err error) {
	if q, fence, ok, err := p.decide(ctx, &t, false); ok || err != nil {
		return q, fence, err
	}
	since := p.names.version(p.lock.Key())
	q, fence, err = p.lock.TryTake(ctx, t)
	if err == nil {
		p.answered(since, int64(t.Number), q, fence)
	}
	return q, fence, err
}

// Take is Lock.Take, without a round trip if there are permits of a block.
func (p *Permits) Take(ctx context.Context, t keeper.Terms) (fence uint64, err error) {
	if _, fence, ok, err := p.decide(ctx, &t, true); ok || err != nil {
		return fence, err
	}
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	since := p.names.version(p.lock.Key())
	if fence, err = p.lock.Take(ctx, t); err == nil {
		p.answered(since, int64(t.Number), keeper.Quota{}, fence)
	}
	return fence, err
}

// decide grants or refuses inside, after waiting for a block if one is worth while, and reports the outcome to the observer. If it returns
// neither ok nor an error, the caller asks the server itself. So does a caller that waits if it was refused, or no block could be fetched.
func (p *Permits) decide(ctx context.Context, t *keeper.Terms, wait bool) (q keeper.Quota, fence uint64, ok bool, err error) {
	if ctx.Err() != nil {
		return q, 0, false, nil
	}
	n, o := int64(t.Number), p.lock.NewObservation(ctx, t.Flags)
	if q, fence, ok = p.inside(n); !ok && p.waiting.Load() == 0 {
		t.Turn.Since = time.Now()
		q, fence, ok, err = p.fetched(ctx, n)
	}
	if wait && fence == 0 && (err == nil || ctx.Err() == nil) {
		return q, 0, false, nil
	}
	if o == nil || !ok && err == nil {
		return q, fence, ok, err
	}
	outcome := err
	if ok && fence == 0 {
		outcome = p.lock.Fail(server.ErrNotAcquired)
	}
	o.Starts()
	o.Ends("", fence, ok, outcome)
	return q, fence, ok, err
}

// fetched waits for a block, which it begins to fetch if no other caller has, and grants n permits of it or refuses them. It reports
// false if the caller must ask the server itself.
func (p *Permits) fetched(ctx context.Context, n int64) (q keeper.Quota, fence uint64, ok bool, err error) {
	for range 2 {
		p.mu.Lock()
		f := p.fetch
		if f == nil {
			f = p.fetchLocked(n)
		}
		p.mu.Unlock()
		if f == nil {
			return q, 0, false, nil
		}
		select {
		case <-f.done:
			err = f.err
		case <-ctx.Done():
			err = p.lock.Fail(server.ErrNoAnswer, server.ContextError(ctx))
		case <-p.lock.Keeper().Closing().Done():
			err = p.lock.Fail(server.ErrClosed)
		}
		switch {
		case errors.Is(err, server.ErrAboveLimit): // the caller who began the fetch needs more than the limit
			return q, 0, false, nil
		case err != nil:
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

// fetchLocked begins to fetch a block for a caller who needs n permits. It returns nil if a block is not worth while.
func (p *Permits) fetchLocked(n int64) *fetch {
	size := p.stock.Next(p.lock.Keeper().Now(), n, p.limit)
	if size <= n || p.lock.Keeper().Now() < p.late || !p.lock.Keeper().BeginWork(false) {
		return nil
	}
	f := &fetch{done: make(chan struct{})}
	p.fetch = f
	go p.run(f, size, n)
	return f
}

// run fetches a block of size permits. If the server has fewer, it tries a smaller one, of at least need permits.
func (p *Permits) run(f *fetch, size, need int64) {
	defer p.lock.Keeper().EndWork()
	for again := size; again > 0; {
		size = again
		since, sent := p.names.version(p.lock.Key()), time.Since(p.lock.Keeper().Started())
		q, h, err := p.lock.TryTakeLease(context.Background(), keeper.Terms{Number: int(size), Flags: protocol.FlagBlock})
		p.mu.Lock()
		switch {
		case errors.Is(err, server.ErrAboveLimit) && size > need: // the limit was lowered
			again = need
		case err != nil:
			f.err, again = err, 0
		case h == nil && since.isCurrent():
			var d time.Duration
			if again, d = p.stock.Refused(size, need, int64(q.Remaining), q.RetryAfter); again == 0 {
				p.refuseLocked(since, need, q, d)
			}
		case h != nil:
			b := &block{
				Block: NewBlock(size, p.lock.Keeper().Started(), sent, p.ahead),
				lease: h, fence: h.Fence(), quota: q, at: time.Since(p.lock.Keeper().Started()), since: since,
			}
			if !since.isCurrent() { // a pause may have begun since
				p.give(b)
				break
			}
			p.stock.Granted(size)
			p.openLocked(b)
			if again = 0; b.at >= b.Ends() {
				p.late = p.lock.Keeper().Now().Add(20 * p.ahead)
			}
		}
		if again == 0 {
			p.fetch = nil
		}
		p.mu.Unlock()
	}
	close(f.done)
}

// answered notes the answer to a caller who has asked the server itself; since is the version when it did.
func (p *Permits) answered(since version, n int64, q keeper.Quota, fence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stock.Used(p.lock.Keeper().Now(), n)
	switch {
	case fence > 0:
		p.stock.Granted(n)
	case q.Limit > 0 && since.isCurrent():
		_, d := p.stock.Refused(n, n, int64(q.Remaining), q.RetryAfter)
		p.refuseLocked(since, n, q, d)
	}
}

// refuseLocked refuses callers who need n permits or more, for d.
func (p *Permits) refuseLocked(since version, n int64, q keeper.Quota, d time.Duration) {
	at := time.Since(p.lock.Keeper().Started())
	p.refusal.Store(&refusal{n, at + d, q, at, since})
}

// openLocked makes a block the one from which callers are granted permits, and ends the one before.
func (p *Permits) openLocked(b *block) {
	k := p.lock.Keeper()
	p.refusal.Store(nil)
	p.endLocked(p.block.Swap(b))
	b.timer.Handler = timers.Func(func(time.Time) { p.ended(b) })
	k.Timers.Set(&b.timer, k.Started().Add(b.Ends()))
}

// ended handles that the time of a block is over.
func (p *Permits) ended(b *block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.block.CompareAndSwap(b, nil) {
		p.endLocked(b)
	}
}

// endLocked ends a block that callers find no more; nil is allowed.
func (p *Permits) endLocked(b *block) {
	if b == nil {
		return
	}
	p.lock.Keeper().Timers.Cancel(&b.timer)
	if used := b.Close(); used > 0 {
		p.stock.Used(p.lock.Keeper().Now(), used)
	} else {
		p.give(b)
	}
}

// give returns a block of which nothing was used to the server.
func (p *Permits) give(b *block) {
	until := p.lock.Keeper().Now().Add(server.TombstoneTTL)
	p.lock.NewLease(b.lease.Token(), claim.Clean(until), nil).Abandon()
}

// Names remembers the rate limits of which a keeper takes permits ahead. It is safe for concurrent use.
type Names struct {
	mu      sync.Mutex              // guards the fields below; nothing is locked under it
	permits *lru.Map[*Permits]      // by the lock's key and the limits
	changes *lru.Map[*atomic.Int64] // by the lock's key
}

const maxNames = 10_000

// NewNames returns Names that remember nothing yet.
func NewNames() *Names {
	return &Names{permits: lru.New[*Permits](maxNames), changes: lru.New[*atomic.Int64](maxNames)}
}

// version says how many changes of a rate limit this process knew when it asked the server.
type version struct {
	changes *atomic.Int64
	known   int64
}

// isCurrent reports whether there was no change since.
func (v version) isCurrent() bool { return v.changes.Load() == v.known }

// version returns the version of the rate limit whose lock has that key.
func (ns *Names) version(key string) version {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	changes, known := ns.changes.Get(key)
	if !known {
		changes = &atomic.Int64{}
		if removed, some := ns.changes.Add(key, changes); some {
			removed.Add(1) // its versions must not stay current, because later changes would not find them
		}
	}
	return version{changes, changes.Load()}
}

// Changed makes all limiters of the lock with that key ask the server again, because the limit or a pause has changed. From now on no permit
// is granted of a block that was requested before, even if its answer is still under way.
func (ns *Names) Changed(key string) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if changes, known := ns.changes.Get(key); known {
		changes.Add(1)
	}
}
