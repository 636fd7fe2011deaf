package retainer

import (
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/retain"
)

// retention is one lease that the process retains, from the request for it to its end, and what is granted by it: reads, or the turns of
// one holder at a time. It does what its retain.Lease decides, and implements lease.Sharing, by which it learns of the lease.
// Methods may be called on nil, which is no retention.
type retention struct {
	*retain.Hold // who is inside; closed until open is called
	of           *name
	permits      int64  // of a semaphore; else 0
	serial       string // of its request; set before the request is sent

	// Guarded by the mu of its name.
	state    retain.Lease
	uses     int64               // until the last renewal
	lease    *lease.Lease        // nil until open is called
	handles  map[*Lease]struct{} // those with a Lifecycle
	upgrader *Lease              // that waits until it is the only one inside, or to which the lease belongs since
	alone    chan struct{}       // closed when it is to look whether it is
	turn     chan struct{}       // closed when the caller that waits for the one inside to leave waits no more; see turn.go
	place    place               // in the pool of a semaphore
}

// open begins to grant reads by a lease, and returns the first of them: that of the caller whose request brought it. queued says that it
// came by way of the queue.
func (x *retention) open(h *lease.Lease, queued bool) *Lease {
	r := x.of
	r.mu.Lock()
	x.lease = h
	switch admits := x.state.Granted(x.Hold, queued); {
	case x.permits > 0:
		r.openLocked(x)
	case admits:
		r.current.Store(x)
	}
	r.mu.Unlock()
	return x.newLease(h.Observation())
}

// abandon ends a retention whose lease was not granted.
func (x *retention) abandon() {
	var out retain.Effects
	x.of.mu.Lock()
	x.state.NotGranted(&out)
	x.unlock(&out)
}

// unlock does what is to be done after an event. The caller holds the name's mu, which it unlocks.
func (x *retention) unlock(out *retain.Effects) {
	r := x.of
	x.wakeLocked(out)
	if out.GaveBack {
		r.policy.GaveBack(r.lock.Keeper().Now(), &x.state, x.uses+x.TakeUses(), rand.Float64())
	}
	if x.permits > 0 {
		r.placeLocked(x)
	}
	h := x.lease
	r.mu.Unlock()
	if out.Release {
		if out.Recalled {
			r.lock.ExpectWaiters()
		}
		_, _ = h.StartRelease()
	}
	if out.Forget {
		x.forget()
	}
	if out.Release && out.Recalled {
		ev := r.lock.Event(lease.Recalled, h.Observation())
		ev.Token, ev.Fence, ev.Duration = h.Token(), h.Fence(), out.Took
		r.lock.Observe(ev)
	}
}

// wakeLocked wakes those who wait for what has happened. The caller holds the name's mu.
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
	e := r.lock.Keeper()
	r.mu.Lock()
	if r.held == x {
		r.held = nil
		r.policy.Free()
	}
	r.current.CompareAndSwap(x, nil)
	if x.permits > 0 {
		r.leaveLocked(x)
	}
	r.mu.Unlock()
	e.Messages.Forget(x.serial, x)
	e.Subscriber.Release(r.lock.Channel)
	if x.permits > 0 {
		r.serve()
	}
}

// giveBack admits nobody any more, and releases the lease when nobody is inside. lease.Recalled says that somebody waits whom the lease
// excludes, here or in another process.
func (x *retention) giveBack(recalled bool) {
	if x == nil {
		return
	}
	var out retain.Effects
	x.of.mu.Lock()
	x.state.GiveBack(x.Hold, x.of.lock.Keeper().Now(), recalled, &out)
	x.unlock(&out)
}

// Ended ends what was granted by the lease, which has ended with that error.
func (x *retention) Ended(err error) {
	r := x.of
	var out retain.Effects
	r.mu.Lock()
	x.state.Ended(x.Hold, r.lock.Keeper().Now(), &out)
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
	x.state.TurnedAway(x.Hold, x.of.lock.Keeper().Now(), settle, &out)
	x.unlock(&out)
}

// Renewal returns what a renewal does that is about to be sent.
func (x *retention) Renewal(metadata bool) retain.Renewal {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	return x.state.Renewal(x.Hold, metadata)
}

// Renewed notes that the server has renewed the lease, which was granted at that time, and whether it was recalled, if the renewal asked.
func (x *retention) Renewed(granted claim.Instant, asked retain.Renewal, recalled bool) {
	e := x.of.lock.Keeper()
	var out retain.Effects
	x.of.mu.Lock()
	x.state.Renewed(x.Hold, e.Now(), asked, recalled, &out)
	x.wakeLocked(&out)
	x.of.mu.Unlock()
	if out.ExpectRecall {
		e.Messages.ExpectRecall(x.serial, granted)
	}
	x.of.mu.Lock()
	x.unlock(&out)
}

// RenewalRefused handles that the server refuses renewals with two keys for now.
func (x *retention) RenewalRefused(asked retain.Renewal) {
	var out retain.Effects
	x.of.mu.Lock()
	x.state.RenewalRefused(x.Hold, x.of.lock.Keeper().Now(), asked, &out)
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
		h.RenewNow()
	}
}

// Unused reports, when a renewal is due, whether the lease, of that ttl, is to be given back instead.
func (x *retention) Unused(now claim.Instant, ttl time.Duration) bool {
	r := x.of
	var out retain.Effects
	r.mu.Lock()
	unused := x.state.Due(x.Hold, now, ttl, &out)
	x.uses += out.Uses
	r.mu.Unlock()
	if out.Used {
		r.of.get(r.lock.Key(), nil) // it counts as used
	}
	return unused
}

// LeaseEvent reports what happens to a lease that belongs to one call. The release of one that belongs to several is of none of them.
func (x *retention) LeaseEvent(what lease.EventType) (own bool) {
	x.of.mu.Lock()
	h, detached := x.upgrader, x.state.State() == retain.Detached
	x.of.mu.Unlock()
	if detached {
		h.report(what)
	}
	return detached || what == lease.Released
}

// CleanedUp implements lease.Observer.
func (x *retention) CleanedUp() {}

// Requested notes the serial of the request.
func (x *retention) Requested(serial string) { x.serial = serial }

// GiveBack releases the lease when nobody is inside.
func (x *retention) GiveBack() { x.giveBack(false) }
