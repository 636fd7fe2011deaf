package keeper

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// renewal is a call that renews a lease.
type renewal struct {
	transport.Call
	of       *Lease
	ms       int64  // it asks for
	metadata bool   // it is also for the metadata
	writer   writer // of the lease, when it was sent
}

// renew sends a renewal for ms, and for the metadata as well if metadata is set.
func (h *Lease) renew(ms int64, metadata bool) {
	h.lock.k.Announce()
	c := &renewal{of: h, ms: ms, metadata: metadata, writer: h.writer()}
	c.Done = c
	h.lock.SetRenew(&c.Call, h.token, ms, metadata)
	h.lock.k.Transport.Send(&c.Call)
}

// CallDone implements transport.Receiver.
func (c *renewal) CallDone(*transport.Call) { c.of.renewed(c) }

// renewed handles the reply to a renewal.
func (h *Lease) renewed(c *renewal) {
	r, err := h.lock.DecodeRenewal(&c.Call)
	if err != nil {
		h.Step(claim.Event{Kind: claim.RenewFailed, Lasting: transport.WrongType(err)}, err)
		return
	}
	ev := claim.Event{Kind: claim.Renewed, Sent: h.lock.k.Instant(c.Sent), TTL: c.ms, Metadata: c.metadata, Code: claim.Denied}
	if r.Held && !h.markLost(c.writer, r) {
		ev.Code = claim.Granted
	}
	if done := h.Step(ev, nil); done.Confirmed {
		h.lock.listen(h.token)
		h.observe(Renewed, nil)
	}
}

// Renewal is the result of Renew.
type Renewal struct {
	protocol.RenewReply
	Sent    time.Time
	InDoubt bool // a copy of the call may still run
}

// Renew renews a lease and the metadata, and repeats the call while it fails for a transient reason. It blocks until a call is answered. ttl
// returns for how many ms, and is called for each call.
func (l *Lock) Renew(ctx context.Context, token string, ttl func() int64) (r Renewal, err error) {
	if err := server.ContextError(ctx); err != nil {
		return r, err
	}
	if l.k.Closing().Err() != nil {
		return r, server.ErrClosed
	}
	call, inDoubt, err := l.k.RoundTrip(ctx, 0, func(p *server.Pending) {
		l.SetRenew(&p.Call, token, ttl(), true)
	})
	r.InDoubt = inDoubt
	if err != nil {
		return r, err
	}
	r.Sent = call.Sent
	r.RenewReply, err = server.Decode(call, protocol.ParseRenewReply)
	return r, err
}

// Extend makes the lease last for ttl from now at least, and makes renewals ask for ttl at least. See Lease.Extend in package lockkeeper.
func (h *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if err := server.CheckTTL("ttl", ttl); err != nil {
		return h.lock.Fail(err)
	}
	if err := h.Err(); err != nil {
		return h.lock.Fail(err)
	}
	if err := CheckLifetime(ttl, h.lock.Rules.MaxLifetime, h.Since()); err != nil {
		return h.lock.Fail(err)
	}
	ms := ttl.Milliseconds()
	h.Step(claim.Event{Kind: claim.ExtendBegan, TTL: ms}, nil)
	if err := h.Err(); err != nil { // the deadline has passed meanwhile
		return h.lock.Fail(err)
	}
	sent := h.writer()
	r, err := h.lock.Renew(ctx, h.token, func() int64 {
		ms = h.withinLifetime(ms)
		return ms
	})
	ev := claim.Event{Kind: claim.Extended, TTL: ms, Sent: h.lock.k.Instant(r.Sent)}
	switch {
	case r.InDoubt:
		ev.Outcome = claim.InDoubt
	case err != nil:
		ev.Outcome = claim.NotSent
	}
	switch {
	case err == nil && r.Held && !h.markLost(sent, r.RenewReply):
		ev.Code = claim.Granted
	case err == nil:
		ev.Code = claim.Denied
	}
	h.Step(ev, nil)
	if ev.Code == claim.Denied {
		if !server.WaitFor(ctx, h.Done()) { // the lease ends when the server has said why
			return h.lock.Fail(server.ErrLost, ErrNotHeld, server.ContextError(ctx))
		}
	}
	if lost := h.Err(); lost != nil {
		return h.lock.Fail(lost)
	}
	if err != nil {
		return h.lock.Fail(err)
	}
	return nil
}

// withinLifetime returns ms, or what is left of MaxLifetime if that is less.
func (h *Lease) withinLifetime(ms int64) int64 {
	limit := h.lock.Rules.MaxLifetime
	if limit == 0 {
		return ms
	}
	return min(ms, max((limit-time.Since(h.Since())).Milliseconds(), 1))
}

// CheckLifetime returns ErrInvalid if a lease that was granted at since may not last until ttl from now. If maxLifetime is 0, the lifetime is
// not limited.
func CheckLifetime(ttl, maxLifetime time.Duration, since time.Time) error {
	if left := maxLifetime - time.Since(since); maxLifetime > 0 && ttl > left {
		return server.Invalid("ttl %v exceeds the %v that are left of MaxLifetime %v; extend by less, or set a longer MaxLifetime", ttl, claim.Duration(left.Milliseconds()), maxLifetime)
	}
	return nil
}

// SetTTL makes renewals ask for ttl at least, and sends the first one at once.
func (h *Lease) SetTTL(ttl time.Duration) {
	h.Step(claim.Event{Kind: claim.TTLSet, TTL: ttl.Milliseconds()}, nil)
}
