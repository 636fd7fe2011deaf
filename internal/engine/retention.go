package engine

import (
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// retention is one lease that the process retains, from the request for it to its end, and what is granted by it: reads, or the turns of
// one holder at a time. It does what its retain.Lease decides.
// Methods may be called on nil, which is no retention.
type retention struct {
	*retain.Hold // who is inside; closed until open is called
	of           *Retainer
	serial       string // of its request; set before the request is sent

	// Guarded by the mu of the Retainer.
	state    retain.Lease
	uses     int64                    // until the last renewal
	lease    *Lease                   // nil until open is called
	handles  map[*LocalLease]struct{} // those with a Lifecycle
	upgrader *LocalLease              // that waits until it is the only one inside
	alone    chan struct{}            // closed when it is to look whether it is
	turn     chan struct{}            // closed when the caller that waits for the one inside to leave waits no more; see localturn.go
}

// open begins to grant reads by a lease, and returns the first of them: that of the caller whose request brought it. queued says that it
// came by way of the queue.
func (x *retention) open(h *Lease, queued bool) *LocalLease {
	r := x.of
	r.mu.Lock()
	x.lease = h
	if x.state.Granted(x.Hold, queued) {
		r.current.Store(x)
	}
	r.mu.Unlock()
	return &LocalLease{retention: x, at: time.Since(r.lock.e.Started()), observation: h.observation}
}

// abandon ends a retention whose lease was not granted.
func (x *retention) abandon() {
	var out retain.Effects
	x.of.mu.Lock()
	x.state.NotGranted(&out)
	x.unlock(&out)
}

// unlock does what is to be done after an event. The caller holds the Retainer's mu, which it unlocks.
func (x *retention) unlock(out *retain.Effects) {
	r := x.of
	x.wakeLocked(out)
	if out.GaveBack {
		r.name.GaveBack(r.lock.e.Now(), &x.state, x.uses+x.TakeUses(), rand.Float64())
	}
	h := x.lease
	r.mu.Unlock()
	if out.Release {
		if out.Recalled {
			h.lock.ending.contended()
		}
		_, _ = h.release(h.lock.e.Transport.Send, false)
	}
	if out.Forget {
		x.forget()
	}
	if e := r.lock.e; out.Release && out.Recalled && e.cfg.Observe != nil {
		ev := h.lock.Event(Recalled, h.observation)
		ev.Token, ev.Fence, ev.Duration = h.token, h.fence, out.Took
		e.observe(ev)
	}
}

// wakeLocked wakes those who wait for what has happened. The caller holds the Retainer's mu.
func (x *retention) wakeLocked(out *retain.Effects) {
	if out.TurnEnded {
		close(x.turn)
	}
	if out.Alone {
		close(x.alone)
	}
	out.TurnEnded, out.Alone = false, false
}

// forget makes room for another retention of the name.
func (x *retention) forget() {
	r := x.of
	e := r.lock.e
	r.mu.Lock()
	if r.held == x {
		r.held = nil
		r.name.Free()
	}
	r.current.CompareAndSwap(x, nil)
	r.mu.Unlock()
	e.messages.Forget(x.serial, x)
	e.Subscriber.Release(r.lock.Channel)
}

// giveBack admits nobody any more, and releases the lease when nobody is inside. Recalled says that somebody waits whom the lease
// excludes, here or in another process.
func (x *retention) giveBack(recalled bool) {
	if x == nil {
		return
	}
	var out retain.Effects
	x.of.mu.Lock()
	x.state.GiveBack(x.Hold, x.of.lock.e.Now(), recalled, &out)
	x.unlock(&out)
}

// leaseEnded ends what was granted by the lease, which has ended with that error.
func (x *retention) leaseEnded(err error) {
	r := x.of
	var out retain.Effects
	r.mu.Lock()
	x.state.Ended(x.Hold, r.lock.e.Now(), &out)
	x.wakeLocked(&out)
	handles := x.handles
	x.handles = nil
	r.mu.Unlock()
	if out.Forget {
		x.forget()
		out.Forget = false
	}
	for h := range handles {
		h.lifecycle.Load().End(err)()
	}
	r.mu.Lock()
	x.unlock(&out)
}

// turnedAway handles that a caller was not admitted; see retain.Lease.
func (x *retention) turnedAway(settle bool) {
	var out retain.Effects
	x.of.mu.Lock()
	x.state.TurnedAway(x.Hold, x.of.lock.e.Now(), settle, &out)
	x.unlock(&out)
}

// renewal returns what a renewal does that is about to be sent. full says that the metadata is to be renewed as well.
func (x *retention) renewal(full bool) retain.Renewal {
	if x == nil {
		return retain.Renewal{Metadata: full}
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	return x.state.Renewal(x.Hold, full)
}

// renewed notes that the server has renewed the lease, which was granted at that time, and whether it was recalled, if the renewal asked.
func (x *retention) renewed(granted claim.Instant, asked retain.Renewal, recalled bool) {
	if x == nil {
		return
	}
	e := x.of.lock.e
	var out retain.Effects
	x.of.mu.Lock()
	x.state.Renewed(x.Hold, e.Now(), asked, recalled, &out)
	x.wakeLocked(&out)
	x.of.mu.Unlock()
	if out.ExpectRecall {
		e.messages.ExpectRecall(x.serial, granted)
	}
	x.of.mu.Lock()
	x.unlock(&out)
}

// renewalRefused handles that the server refuses renewals with two keys for now.
func (x *retention) renewalRefused(asked retain.Renewal) {
	if x == nil {
		return
	}
	var out retain.Effects
	x.of.mu.Lock()
	x.state.RenewalRefused(x.Hold, x.of.lock.e.Now(), asked, &out)
	x.unlock(&out)
}

// Recall implements wait.Recalled.
func (x *retention) Recall() { x.giveBack(true) }

// AskNow makes the lease ask whether it was recalled, since a message may have been lost.
func (x *retention) AskNow() {
	x.of.mu.Lock()
	h := x.lease
	x.of.mu.Unlock()
	if h != nil {
		h.renewNow()
	}
}

// isUnused reports, when a renewal is due, whether the lease, of that ttl, is to be given back instead.
func (x *retention) isUnused(now claim.Instant, ttl time.Duration) bool {
	if x == nil {
		return false
	}
	r := x.of
	var out retain.Effects
	r.mu.Lock()
	unused := x.state.Due(x.Hold, now, ttl, &out)
	x.uses += out.Uses
	r.mu.Unlock()
	if out.Used {
		e := r.lock.e
		e.mu.Lock()
		e.retainers.Get(r.lock.KeyOf(server.LockKey)) // it counts as used
		e.mu.Unlock()
	}
	return unused
}

// isShared reports whether the lease has belonged to several callers until its end.
func (x *retention) isShared() bool {
	if x == nil {
		return false
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	return x.state.State() != retain.Detached
}
