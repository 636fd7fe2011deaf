package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Extend makes the lease expire ttl from now, and renewals request ttl from now on. See Lease.Extend in package
// lockkeeper.
func (h *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	return h.ExtendIf(ctx, ttl, func() error { return nil })
}

// ExtendIf is Extend, and does nothing if check, which it calls when no other Extend is in progress, returns an error.
func (h *Lease) ExtendIf(ctx context.Context, ttl time.Duration, check func() error) error {
	for {
		err := h.tryExtend(ctx, ttl, check)
		if err != errConverting {
			return err
		}
		if !h.awaitConversion(ctx) {
			return h.lock.Fail(server.ErrNoAnswer, ctx.Err())
		}
	}
}

// errConverting is the error of tryExtend if the server does not know the token while the lease is being converted: it may know that of
// the lease that replaces this one, whose reply is still under way.
var errConverting = errors.New("the lease is being converted")

// tryExtend is ExtendIf without waiting for a conversion.
func (h *Lease) tryExtend(ctx context.Context, ttl time.Duration, check func() error) error {
	if next := h.next.Load(); next != nil {
		return next.ExtendIf(ctx, ttl, check)
	}
	if err := server.CheckTTL("ttl", ttl); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return h.lock.Fail(err)
	}
	if err := CheckLifetime(ttl, h.lock.spec.MaxLifetime, h.Since()); err != nil {
		return err
	}
	turn, err := h.beginExtension(ctx)
	if err != nil {
		return h.lock.Fail(err)
	}
	defer h.endExtension(turn)
	if err := check(); err != nil {
		return err
	}
	ms := server.Millis(ttl)
	keys := server.RenewMetadata
	if began := h.step(claim.Event{Kind: claim.ExtendBegan, TTL: ms}, nil); began.Notify {
		keys = server.RenewAndNotify
	}
	r, err := h.lock.renew(ctx, h.token, ms, keys, true)
	ev := claim.Event{Kind: claim.Extended, TTL: ms, Sent: h.lock.e.Instant(r.sent)}
	switch {
	case r.inDoubt:
		ev.Outcome = claim.InDoubt
	case err != nil:
		ev.Outcome = claim.NotSent
	}
	switch {
	case err == nil && r.Held:
		ev.Code = claim.Granted
	case err == nil:
		ev.Code = claim.Denied
	}
	h.step(ev, nil)
	if ev.Code == claim.Denied {
		if h.isConverting() {
			return errConverting
		}
		<-h.Done()
	}
	if lost := h.Err(); lost != nil {
		return h.lock.Fail(lost)
	}
	if err != nil {
		return h.lock.Fail(err)
	}
	return nil
}

// CheckLifetime returns ErrInvalid if a lease held since that time may not be extended to ttl from now. If maxLifetime is 0,
// the lifetime is not limited.
func CheckLifetime(ttl, maxLifetime time.Duration, since time.Time) error {
	if left := maxLifetime - time.Since(since); maxLifetime > 0 && ttl > left {
		return server.Invalid("ttl %v exceeds the %v that are left of MaxLifetime %v; extend by less, or set a longer MaxLifetime", ttl, server.Duration(server.Millis(left)), maxLifetime)
	}
	return nil
}

// RenewalTTL returns the ttl that renewals ask for.
func (h *Lease) RenewalTTL() time.Duration {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return server.Duration(h.claim.TTL())
}

// beginExtension waits until no other Extend of the lease is in progress. If two ran at once, it would not be known which
// one the server ran last.
func (h *Lease) beginExtension(ctx context.Context) (turn chan struct{}, err error) {
	turn = make(chan struct{})
	for {
		h.Mu.Lock()
		inProgress, err := h.extending, h.ErrLocked()
		if inProgress == nil && err == nil {
			h.extending = turn
		}
		h.Mu.Unlock()
		if inProgress == nil || err != nil {
			return turn, err
		}
		if !server.WaitFor(ctx, inProgress) {
			return nil, server.Chain(server.ErrNoAnswer, ctx.Err())
		}
	}
}

// endExtension lets the next Extend start.
func (h *Lease) endExtension(turn chan struct{}) {
	h.Mu.Lock()
	h.extending = nil
	h.Mu.Unlock()
	close(turn)
}
