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

// This file handles that somebody else has ended a lease or a request of this keeper: a message says so, or the server, when it is asked
// why it does not have the lease. The other side is in package views.

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

// askBreaker asks who has broken what a token had, since the message may have been lost, or been sent when the keeper was not
// subscribed. The tombstone knows for a minute. then is called with nil if nobody has, or there is no answer.
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

// gone asks why the server does not have the lease of a token any more. All that find this out in the answer to a call go on here, since
// the message of a break may have been lost. then is called with who has broken it, or with nil if nobody is known to have or there is
// no answer within reasonTimeout. It is called once, and may be called at once.
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

// lossOf returns why a lease is gone, by what gone has found.
func (k *Keeper) lossOf(b *protocol.Breaker) error {
	if b == nil {
		return ErrNotHeld
	}
	return k.cfg.Broken(b.By, b.Reason)
}

// GoneError returns the error of a call that finds that the server does not have the lease of a token any more. It blocks until it is
// known why, for reasonTimeout at most, or until ctx ends.
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

// LoseRefused ends a lease that the server does not have any more, and returns its error when it has ended, as it is known whether somebody has
// broken it; or another ErrLost when ctx ends.
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

// listen subscribes to the keeper's channel in the background, when a lease is granted for the first time, and again when one is renewed
// after a refusal: so the holder is told at once if somebody breaks it. On a Cluster, where each name has a channel of its own, that
// would be too many.
func (l *Lock) listen(token string) {
	k := l.k
	if !k.Subscriber.Sharded() && strings.HasPrefix(token, k.ID()) && !k.Subscriber.IsSubscribed(l.Channel) {
		k.listens.Store(true)
		id, _, _ := strings.Cut(token, ":")
		k.Subscriber.Use(l.Channel, id)
		k.Subscriber.Begin(l.Channel)
	}
}

// Gone handles that the server does not have the lease, as the answer to a call says. It calls then when the lease is lost, with the reason:
// ErrNotHeld, or who has broken it.
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
