package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/redis/go-redis/v9"
)

// This file stores who a keeper is, in words, and reads it for others. Tokens have only the keeper's id.

const (
	// ownerTTL is how long the server keeps a keeper's label after the keeper last stored it. A crashed holder of a long lease is
	// known by it for that long.
	ownerTTL = 24 * time.Hour
	// ownerInterval is how often it is stored while the keeper sends requests, renewals or heartbeats: a server may lose it.
	ownerInterval = 10 * time.Minute
	// ownerRetry is the pause after the label could not be stored.
	ownerRetry = time.Minute
)

// ownerLabel is what an engine knows of its own label at the server. The zero value is ready for use.
type ownerLabel struct {
	due    atomic.Int64 // when the label is to be stored again, as a time since the engine was started
	denied atomic.Bool  // there is no permission to store it
	stored atomic.Bool  // the server may have it
}

// announce stores the keeper's label if that is due. It does not block, and sends with the call that is about to be sent.
func (e *Engine) announce() {
	if e.cfg.Owner == "" {
		return
	}
	now := time.Since(e.started)
	due := e.owner.due.Load()
	if int64(now) < due || !e.owner.due.CompareAndSwap(due, int64(now+ownerInterval)) {
		return
	}
	e.owner.stored.Store(true)
	e.transport.Send(e.ownerCall(func(call *transport.Call) {
		if call.Err == nil {
			return
		}
		e.owner.due.Store(int64(time.Since(e.started) + ownerRetry))
		if redis.HasErrorPrefix(call.Err, "NOPERM") && !e.owner.denied.Swap(true) {
			e.cfg.Log.Warn("lockkeeper: the owner label cannot be stored; others see this keeper's id alone", "error", call.Err)
		}
	}, "set", e.cfg.Owner, "px", millis(ownerTTL)))
}

// withdraw removes the keeper's label, when the keeper is closed. It blocks until the server has answered or the client's timeouts have
// passed.
func (e *Engine) withdraw() {
	if !e.owner.stored.Load() {
		return
	}
	var removed signal
	e.transport.Send(e.ownerCall(func(*transport.Call) { removed.close() }, "del"))
	<-removed.done()
}

// ownerCall prepares a command on the key of the keeper's label.
func (e *Engine) ownerCall(done func(*transport.Call), command string, args ...any) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	setLabelCall(call, protocol.OwnerKey(e.cfg.Prefix, e.id), command, args...)
	return call
}

func setLabelCall(call *transport.Call, key, command string, args ...any) {
	call.Key, call.Mixed = key, true
	call.Args = append([]any{command, key}, args...)
}

// owners returns the labels of keepers, by their ids. It blocks for a round trip. A label that is unknown or cannot be read, or
// that no keeper stores, is missing.
func (e *Engine) owners(ctx context.Context, ids map[string]bool) map[string]string {
	labels := map[string]string{}
	calls := make(map[string]*pending, len(ids))
	for id := range ids {
		p := &pending{}
		p.Done = p
		setLabelCall(&p.Call, protocol.OwnerKey(e.cfg.Prefix, id), "get")
		calls[id] = p
		e.transport.Send(&p.Call)
	}
	for id, p := range calls {
		if e.waitFor(ctx, p.ended.done()) != nil {
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

// Prefix returns the prefix of the keys.
func (e *Engine) Prefix() string { return e.cfg.Prefix }

// Server says which deployment the keeper uses, for people, without credentials.
func (e *Engine) Server() string { return e.cfg.Client.String() }
