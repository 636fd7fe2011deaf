package server

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/redis/go-redis/v9"
)

// This file stores the label of a keeper, which says in words who it is, and reads the labels of others. Tokens have only the id of a keeper.

const (
	// ownerTTL is how long the server keeps a keeper's label after the keeper last stored it. A crashed holder of a long lease is
	// known by it for that long.
	ownerTTL = 24 * time.Hour
	// ownerInterval is how often it is stored while the keeper sends requests, renewals or heartbeats, because a server may lose it.
	ownerInterval = 10 * time.Minute
	// ownerRetry is the pause after the label could not be stored.
	ownerRetry = time.Minute
)

// Announce stores the keeper's label if that is due. It does not block. It is called before a call is sent, to share the pipeline of the call.
func (s *Server) Announce() {
	if s.Config.Owner == "" {
		return
	}
	now := time.Since(s.started)
	due := s.owner.due.Load()
	if int64(now) < due || !s.owner.due.CompareAndSwap(due, int64(now+ownerInterval)) {
		return
	}
	s.owner.stored.Store(true)
	s.Transport.Send(s.ownerCall(func(call *transport.Call) {
		if call.Err == nil {
			return
		}
		s.owner.due.Store(int64(time.Since(s.started) + ownerRetry))
		if redis.HasErrorPrefix(call.Err, "NOPERM") && !s.owner.denied.Swap(true) {
			s.Config.Log.Warn("lockkeeper: the owner label cannot be stored; others see this keeper's id alone", "error", call.Err)
		}
	}, "set", s.Config.Owner, "px", ownerTTL.Milliseconds()))
}

// withdraw removes the keeper's label, when the keeper is closed. It blocks until the server has answered or the client's timeouts have
// passed.
func (s *Server) withdraw() {
	if !s.owner.stored.Load() {
		return
	}
	var removed Signal
	s.Transport.Send(s.ownerCall(func(*transport.Call) { removed.Close() }, "del"))
	<-removed.Done()
}

// ownerCall prepares a command on the key of the keeper's label.
func (s *Server) ownerCall(done func(*transport.Call), command string, args ...any) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	setLabelCall(call, protocol.OwnerKey(s.Config.Prefix, s.id), command, args...)
	return call
}

func setLabelCall(call *transport.Call, key, command string, args ...any) {
	call.Key, call.Mixed = key, true
	call.Args = append([]any{command, key}, args...)
}

// Owners returns the labels of keepers, by their ids. It blocks for a round trip. A label that is unknown, unreadable or invalid is missing.
func (s *Server) Owners(ctx context.Context, ids map[string]bool) map[string]string {
	labels := map[string]string{}
	calls := make(map[string]*Pending, len(ids))
	for id := range ids {
		p := &Pending{}
		p.Done = p
		setLabelCall(&p.Call, protocol.OwnerKey(s.Config.Prefix, id), "get")
		calls[id] = p
		s.Transport.Send(&p.Call)
	}
	for id, p := range calls {
		if s.WaitFor(ctx, p.ended.Done()) != nil {
			p.Withdraw()
			continue
		}
		if len(p.Values) == 1 {
			if label, ok := p.Values[0].(string); ok && protocol.CheckText("Owner", label) == nil {
				labels[id] = label
			}
		}
	}
	return labels
}
