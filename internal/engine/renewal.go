package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// renew sends a renewal for so many ms. full says that it includes the metadata.
func (h *Lease) renew(ms int64, full bool) {
	does, keys := h.renewal(full), server.RenewOnly
	if does.Metadata {
		keys = server.RenewMetadata
	}
	h.lock.e.Announce()
	h.lock.e.Transport.Send(h.lock.RenewCall(h.token, ms, keys, false, does.Ask, func(call *transport.Call) {
		h.renewed(call, ms, does)
	}))
}

// RenewNow makes a renewal leave now.
func (h *Lease) RenewNow() { h.step(claim.Event{Kind: claim.RenewalWanted}, nil) }

// renewed handles the reply to a renewal that asked for so many ms.
func (h *Lease) renewed(call *transport.Call, ms int64, does retain.Renewal) {
	parse := protocol.ParseRenewReply
	if does.Ask {
		parse = protocol.ParseRetainedRenewReply
	}
	r, err := server.Decode(call, parse)
	if err != nil {
		lasting := transport.WrongType(err)
		done := h.step(claim.Event{Kind: claim.RenewFailed, Lasting: lasting, Pause: h.pause()}, err)
		if x := h.sharing(); x != nil && !done.End && transport.SlotMigrates(err) {
			x.RenewalRefused(does)
		}
		return
	}
	ev := claim.Event{Kind: claim.Renewed, Sent: h.lock.e.Instant(call.Sent), TTL: ms, Metadata: does.Metadata, Code: claim.Denied}
	if r.Held {
		ev.Code = claim.Granted
	}
	if done := h.step(ev, nil); done.Confirmed {
		if x := h.sharing(); x != nil {
			x.Renewed(h.lock.e.Instant(h.Since()), does, r.Recalled)
		}
		h.lock.listen(h.token)
		h.observe(Renewed, h.held(), nil)
	}
}

// renewal is the result of a renewal that was waited for.
type renewal struct {
	protocol.RenewReply
	sent    time.Time
	inDoubt bool // a copy of the call may still run
}

// renew renews a lease and the metadata. It blocks until that is answered, and repeats it while it fails for a transient
// reason.
func (l *Lock) renew(ctx context.Context, token string, ttl int64, keys int, exact bool) (r renewal, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if l.e.Closing().Err() != nil {
		return r, server.ErrClosed
	}
	call, inDoubt, err := l.e.RoundTrip(ctx, l.e.Closing().Done, 0, func(p *server.Pending) {
		l.SetRenewal(&p.Call, token, ttl, keys, exact, false)
	})
	r.inDoubt = inDoubt
	if errors.Is(err, server.ErrStopped) {
		return r, server.ErrClosed
	}
	if err != nil {
		return r, err
	}
	r.sent = call.Sent
	r.RenewReply, err = server.Decode(call, protocol.ParseRenewReplyWithFence)
	return r, err
}
