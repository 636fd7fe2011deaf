package keeper

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// This file handles that somebody has ended a lease or a request of this keeper by Break: a message says so, or the server, when it is asked why
// it does not have the lease. Package views has Break.

// Broken handles the message that somebody has ended the lease of this serial.
func (k *Keeper) Broken(serial string, b protocol.Breaker) {
	for _, h := range k.leasesOf(serial) {
		h.Broken(b)
	}
}

// Broken ends a request or a lease that somebody has broken.
func (h *Lease) Broken(b protocol.Breaker) {
	k := h.lock.k
	switch done := h.Step(claim.Event{Kind: claim.Broken}, k.cfg.Broken(b.By, b.Reason)); {
	case done.End:
		k.logBroken(h.lock, h.token, "lease", b)
	case done.Deliver:
		k.logBroken(h.lock, h.token, "request", b)
	case done.Explained: // its holder had released it before
		k.logBroken(h.lock, h.token, "lease", b)
	}
}

// reasonTimeout bounds how long the server is asked why a lease is gone.
const reasonTimeout = claim.ReasonTimeout

// askBreaker asks the server who has broken the request or lease of a token, because the message may have been lost, or sent when the keeper was
// not subscribed. The tombstone knows for a minute. then is called with nil if nobody has, or if the call fails.
func (l *Lock) askBreaker(token string, then func(b *protocol.Breaker)) {
	call := &transport.Call{Done: transport.Func(func(call *transport.Call) {
		var b *protocol.Breaker
		if call.Err == nil {
			b, _ = protocol.ParseBreaker(call.Values)
		}
		then(b)
	})}
	l.SetInspect(call, protocol.InspectBreak, 0, server.PageSize, token)
	call.Urgent = true
	l.k.Transport.Send(call)
}

// gone asks who has broken a lease that the server does not have any more. then is called once, perhaps before gone returns; with nil if nobody
// is known to have broken the lease, or if there is no answer within reasonTimeout.
func (l *Lock) gone(token string, then func(b *protocol.Breaker)) {
	var answered atomic.Bool
	timeout := &timers.Timer{}
	once := func(b *protocol.Breaker) {
		if answered.CompareAndSwap(false, true) {
			l.k.Timers.Cancel(timeout)
			then(b)
		}
	}
	timeout.Handler = timers.Func(func(time.Time) { once(nil) })
	l.k.Timers.Set(timeout, time.Now().Add(reasonTimeout))
	l.askBreaker(token, once)
}

// lossOf returns why a lease is gone, if b has broken it; nil: nobody, as far as is known.
func (k *Keeper) lossOf(b *protocol.Breaker) error {
	if b == nil {
		return ErrNotHeld
	}
	return k.cfg.Broken(b.By, b.Reason)
}

// GoneError returns the error for a lease that the server does not have any more. It blocks until the server has said whether somebody has
// broken it, for reasonTimeout at most, or until ctx ends.
func (l *Lock) GoneError(ctx context.Context, token string) error {
	reason := make(chan error, 1)
	l.gone(token, func(b *protocol.Breaker) { reason <- l.k.lossOf(b) })
	select {
	case err := <-reason:
		return l.Fail(server.ErrLost, err)
	case <-ctx.Done():
		return l.Fail(server.ErrLost, ErrNotHeld)
	}
}

// LoseRefused ends a lease that the server does not have any more, and returns the lease's error. It blocks until the lease has ended, because
// the server is asked first who has broken it. If ctx ends before, the error is another ErrLost.
func (h *Lease) LoseRefused(ctx context.Context) error {
	h.Step(claim.Event{Kind: claim.Refused}, nil)
	if !server.WaitFor(ctx, h.Done()) {
		return h.lock.Fail(server.ErrLost, ErrNotHeld, server.ContextError(ctx))
	}
	return h.lock.Fail(h.Err())
}

func (k *Keeper) logBroken(l *Lock, token, what string, b protocol.Breaker) {
	k.Config.Log.Warn("lockkeeper: a "+what+" of this process was broken",
		"kind", l.Kind(), "name", l.Name(), "token", token, "by", b.By, "reason", b.Reason)
}

// leasesOf returns the leases of a serial. It looks at all leases, because breaks are rare.
func (k *Keeper) leasesOf(serial string) (list []*Lease) {
	for _, h := range k.leases.all() {
		if t, _ := protocol.ParseToken(h.token); t.Keeper == k.ID() && t.Serial == serial {
			list = append(list, h)
		}
	}
	return list
}

// listen subscribes to the keeper's channel in the background, so that a holder learns at once that somebody has broken its lease. It is called
// at the first grant, and at renewals, in case the server has refused the subscription before. On a Cluster it does nothing, because each name
// has a channel of its own, and these would be too many.
func (l *Lock) listen(token string) {
	k := l.k
	if !k.Subscriber.Sharded() && strings.HasPrefix(token, k.ID()) && !k.Subscriber.IsSubscribed(l.Channel) {
		k.listens.Store(true)
		id, _, _ := strings.Cut(token, ":")
		k.Subscriber.Use(l.Channel, id)
		k.Subscriber.Begin(l.Channel)
	}
}

// Gone loses the lease, because an answer says that the server does not have it. It asks first who has broken it, and calls then afterwards with
// the reason: ErrNotHeld, or who has broken the lease.
func (h *Lease) Gone(then func(error)) {
	l := h.lock
	l.gone(h.token, func(b *protocol.Breaker) {
		if b == nil {
			h.Lose(ErrNotHeld)
		} else {
			h.Broken(*b)
		}
		then(l.k.lossOf(b))
	})
}
