package engine

import (
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/retain"
)

// retention is one lease that the process retains, from the request for it to its end, and what is granted by it: reads, or the turns of
// one holder at a time.
// Methods may be called on nil, which is no retention.
type retention struct {
	*retain.Hold // who is inside; closed until open is called
	of           *Retainer
	serial       string       // of its request; set before the request is sent
	reads        atomic.Int64 // granted until the last renewal
	detached     atomic.Bool  // the lease belongs to the caller of an upgrade alone; set with the state
	usedAt       time.Time    // when it was last seen in use; zero: not yet. Guarded by the lease's mu

	// Guarded by the mu of the Engine.
	index    int  // in Engine.recalledBy
	notified bool // the message of its recall came

	// Guarded by the mu of the Retainer.
	RetentionRecord
	recalledAt time.Duration
	forgotten  bool
	lease      *Lease                   // nil until open is called
	handles    map[*LocalLease]struct{} // those with a Lifecycle
	upgrader   *LocalLease              // that waits until it is the only one inside
	alone      chan struct{}            // closed when it is; nil without an upgrader, or then
	next       *localTurn               // the caller that waits for the one inside to leave; see localturn.go
}

// open begins to grant reads by a lease, and returns the first of them: that of the caller whose request brought it. If the lease
// was recalled before it came, or has ended, there will be no other; nor if it is for one holder at a time and came by way of
// the queue.
func (x *retention) open(h *Lease, queued bool) *LocalLease {
	r := x.of
	r.mu.Lock()
	x.lease = h
	admits := x.Granted()
	if r.exclusive {
		admits = x.GrantedAlone(queued)
	}
	x.Open(!admits)
	if admits {
		r.current.Store(x)
	}
	r.mu.Unlock()
	return &LocalLease{retention: x, at: time.Since(r.lock.e.started), observation: h.observation}
}

// abandon ends a retention whose lease was not granted.
func (x *retention) abandon() {
	x.of.mu.Lock()
	x.state = retentionOver
	x.of.mu.Unlock()
	x.forget()
}

// forget makes room for another retention of the name.
func (x *retention) forget() {
	r := x.of
	e := r.lock.e
	r.mu.Lock()
	first := !x.forgotten
	x.forgotten = true
	if r.held == x {
		r.held = nil
	}
	r.current.CompareAndSwap(x, nil)
	r.mu.Unlock()
	if !first {
		return
	}
	e.mu.Lock()
	e.removeRetentionLocked(x)
	e.mu.Unlock()
	e.subscriber.Release(r.lock.channel)
}

// addRetentionLocked registers a retention whose lease is about to be requested, so that recalls find it. The caller holds mu.
func (e *Engine) addRetentionLocked(x *retention) {
	channel := x.of.lock.channel
	e.retentions[x.serial] = x
	x.index = len(e.recalledBy[channel])
	e.recalledBy[channel] = append(e.recalledBy[channel], x)
}

// removeRetentionLocked removes a retention, if it was registered. The caller holds mu.
func (e *Engine) removeRetentionLocked(x *retention) {
	if e.retentions[x.serial] != x {
		return
	}
	delete(e.retentions, x.serial)
	channel := x.of.lock.channel
	list := e.recalledBy[channel]
	last := len(list) - 1
	moved := list[last]
	list[x.index], moved.index = moved, x.index
	list[last] = nil
	if e.recalledBy[channel] = list[:last]; last == 0 {
		delete(e.recalledBy, channel)
	}
}

// giveBack admits nobody any more, and releases the lease when nobody is inside. Recalled says that somebody waits whom the lease
// excludes, here or in another process.
func (x *retention) giveBack(recalled bool) {
	if x == nil {
		return
	}
	r := x.of
	r.mu.Lock()
	if x.GiveBack(recalled) {
		x.recalledAt = time.Since(r.lock.e.started)
	}
	x.Close()
	next := x.takeNextLocked()
	r.mu.Unlock()
	next.end(false)
	x.settle()
}

// settle releases the lease if nobody is admitted any more and nobody is inside. If only the caller of an upgrade is, it
// notifies that.
func (x *retention) settle() {
	r := x.of
	e := r.lock.e
	r.mu.Lock()
	inside := x.Inside()
	if x.alone != nil && inside <= 1 {
		close(x.alone)
		x.alone = nil
	}
	if !x.Settle(inside) {
		r.mu.Unlock()
		return
	}
	now := time.Since(e.started)
	r.gaveBackLocked(x, now)
	recalled, after, h := x.recalled, now-x.recalledAt, x.lease
	r.mu.Unlock()
	if recalled {
		h.lock.ending.contended()
	}
	_, _ = h.release(e.transport.Send, false)
	x.forget()
	if recalled && e.cfg.Observe != nil {
		ev := h.lock.Event(Recalled, h.observation)
		ev.Token, ev.Fence, ev.Duration = h.token, h.fence, after
		e.observe(ev)
	}
}

// leaseEnded ends what was granted by the lease, which has ended with that error.
func (x *retention) leaseEnded(err error) {
	r := x.of
	r.mu.Lock()
	x.GiveBack(false)
	x.Close() // open may have opened it since the lease ended
	handles, next := x.handles, x.takeNextLocked()
	x.handles = nil
	if x.alone != nil {
		close(x.alone)
		x.alone = nil
	}
	r.mu.Unlock()
	next.end(false)
	x.forget()
	for h := range handles {
		h.lifecycle.Load().End(err)()
	}
	x.settle() // with nobody inside, nobody else releases what the server may still have
}

// renewed notes that the server has renewed the lease, which was granted at that time, in the reply to a renewal that was sent during
// that epoch; and whether it was recalled, if the renewal asked.
func (x *retention) renewed(granted time.Time, epoch uint64, asked, recalled bool) {
	if x == nil || !asked {
		return
	}
	if !recalled {
		x.Confirm(epoch)
		return
	}
	e := x.of.lock.e
	x.of.mu.Lock()
	missed := !x.recalled && !x.closing
	x.of.mu.Unlock()
	if since := e.subscriber.SubscribedSince(x.of.lock.channel); missed && !since.IsZero() && since.Before(granted) {
		e.mu.Lock()
		if e.retentions[x.serial] == x && !x.notified {
			e.expectLocked(x.serial, x.of.lock.channel, true)
		}
		e.mu.Unlock()
	}
	x.giveBack(true)
}

// subscription returns the epoch of the subscription on which a recall would come now.
func (x *retention) subscription() uint64 {
	if x == nil {
		return 0
	}
	return x.Current()
}

// renewal returns how many of the keys a renewal takes, and whether it asks whether the lease was recalled. full says that the metadata
// is to be renewed as well. For one holder at a time, only the metadata know of the recall.
func (x *retention) renewal(full bool) (keys int, ask bool) {
	keys = renewOnly
	if full {
		keys = renewMetadata
	}
	if x == nil || !x.of.exclusive {
		return keys, x != nil
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if x.closing {
		return keys, false
	}
	return renewMetadata, true
}

// askNow makes the lease ask whether it was recalled, since a message may have been lost.
func (x *retention) askNow() {
	x.of.mu.Lock()
	h := x.lease
	x.of.mu.Unlock()
	if h != nil {
		h.renewNow()
	}
}

// isUnusedLocked reports, when a renewal is due, whether the lease, of that ttl, is to be given back instead. The caller holds the
// lease's mu.
func (x *retention) isUnusedLocked(now time.Time, ttl time.Duration) bool {
	if x == nil || x.detached.Load() {
		return false
	}
	r := x.of
	n := x.TakeUses()
	x.reads.Add(n)
	if n > 0 || x.usedAt.IsZero() || x.Inside() > 0 {
		x.usedAt = now
		e := r.lock.e
		e.mu.Lock()
		e.retainers.Get(r.lock.key(keyLock)) // it counts as used
		e.mu.Unlock()
	}
	return retain.Tick(now.Sub(x.usedAt), ttl, x.Inside()) == retain.GiveBack
}

// isShared reports whether the lease has belonged to several callers until its end.
func (x *retention) isShared() bool { return x != nil && !x.detached.Load() }
