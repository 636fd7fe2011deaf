package keeper

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// This file has what another package needs to build one lease of several, each at a server of its own and so of another
// Keeper: a request that does not wait. Package quorum does so.

// CloseObserver is notified by Close, once, after waiting calls have been ended and before any lease of the keeper ends. It is
// called without any mutex of this package held.
type CloseObserver interface{ KeeperClosed() }

// OnClose makes Close notify the observer, until RemoveOnClose is called with it. It returns false if Close has been called
// already: then the observer is not notified.
func (k *Keeper) OnClose(o CloseObserver) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.onClose[o] = struct{}{}
	}
	return !k.closed
}

// RemoveOnClose undoes OnClose. Close may be notifying the observer at this moment, and is not waited for.
func (k *Keeper) RemoveOnClose(o CloseObserver) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.onClose, o)
}

// AwaitsReplicas reports whether the keeper hands out leases only when replicas have acknowledged them.
func (k *Keeper) AwaitsReplicas() bool { return k.cfg.ReplicaAck.enabled() }

// Keeper is the keeper of the lock's keeper.
func (l *Lock) Keeper() *Keeper { return l.k }

// WaitLocally returns when no other goroutine of this process that called it for the lock's name is ahead of the caller. It
// returns what those before have recorded about the server, and the caller must call LeaveLocally to admit the next one. Otherwise
// the error is ErrClosed, says how the wait ended with ctx, or is that of those before, if the caller has come at that time and would
// give up as they did.
func (l *Lock) WaitLocally(ctx context.Context, maxAge time.Duration, since time.Time) (shared *server.Health, err error) {
	return l.k.local.Wait(ctx, l.KeyOf(server.QueueKey), maxAge, since)
}

// LeaveLocally ends the turn that began when WaitLocally returned.
func (l *Lock) LeaveLocally() { l.k.local.Leave(l.KeyOf(server.QueueKey)) }

// NewToken returns a token for a new request of this lock, with flags and a number that the policy reads, and a note of the caller; see
// protocol.Token.
func (l *Lock) NewToken(flags string, number int64, note string) string {
	token, _ := l.newToken(flags, number, note)
	return token
}

// A TokenRequest asks the server for a lease with a token that the caller has made, and may use at other servers as well and
// again after a request with it has ended. It does not block and does not wait for another holder.
//
// It ends once: with a lease, by Drop, by Cancel, or when the keeper is closed. Send must be called once; the other methods are
// safe for concurrent use.
type TokenRequest struct {
	request  request
	server   int // for the receiver
	receiver TokenReceiver
}

// TokenReceiver receives the outcome of a TokenRequest, without any mutex of this package held. Server is the argument of Send.
type TokenReceiver interface {
	TokenAnswered(server int, r *TokenRequest, reply TokenReply)
}

// TokenReply is the outcome of a TokenRequest.
type TokenReply struct {
	Lease      *lease.Lease  // nil: not granted, or the request had ended before
	Err        error         // why there is no lease
	RetryAfter time.Duration // if refused: when the lease in the way expires at the latest; 0: not known
	Sent       time.Time     // when the request was sent that was answered
	ServerTime int64         // the server's clock when it answered, in ms; 0: not in the reply
}

// NewTokenRequest returns a request for a lease that is part of one which began at that time. InDoubt says that an earlier request with this token
// may still arrive at the server. It returns nil if the keeper is closed.
func (l *Lock) NewTokenRequest(token string, since time.Time, observer lease.Observer, inDoubt bool) *TokenRequest {
	t := &TokenRequest{}
	r := &t.request
	r.part, r.mode, r.policyArg, r.reportedRank, r.health = t, claim.Part, "", -1, &r.own
	c := claim.New(claim.Part, false, inDoubt)
	c.SetSince(l.k.Instant(since))
	// It is registered under the token. A serial in it may be of another keeper, and so equal to one of this keeper's.
	r.lock, r.Lease = l, l.NewLease(token, token, c, nil)
	r.Bind(r, observer)
	if _, closed := l.k.Messages.Register(r.Serial(), r, true); closed {
		return nil
	}
	return t
}

// Send sends the request, and once more if its connection breaks. It does not block. The receiver is called when there is an
// answer or an error; the request has then ended if there is a lease, or if it was canceled or the keeper was closed.
func (t *TokenRequest) Send(server int, receiver TokenReceiver) {
	r := &t.request
	r.lock.k.Announce()
	t.server, t.receiver = server, receiver
	if done := r.Step(claim.Event{Kind: claim.Called}, nil); !done.Ask { // it has ended
		t.answer(TokenReply{}, nil)
	}
}

// answerPart passes the outcome of a call to the receiver, unless the request is sent once more. err is why there is no reply.
func (r *request) answerPart(c *askCall, done claim.Effects, a protocol.AcquireReply, err error) {
	if r.part == nil || done.Ask {
		return
	}
	if err == nil {
		switch done.Refusal {
		case claim.ByDenial:
			err = server.ErrNotAcquired
		case claim.ByTombstone:
			err = errTombstoned
		case claim.ByLateness:
			err = ErrTooLate
		}
	}
	r.part.answer(TokenReply{RetryAfter: server.Duration(max(a.RetryAfter, 0)), Sent: c.Sent, ServerTime: a.Now}, err)
}

// answer passes the outcome to the receiver: that of the request if it has ended, else the error.
func (t *TokenRequest) answer(reply TokenReply, err error) {
	reply.Lease, reply.Err = t.Lease(), t.request.result()
	if reply.Lease != nil {
		reply.Err = nil
	} else if reply.Err == nil {
		reply.Err = err
	}
	t.receiver.TokenAnswered(t.server, t, reply)
}

// Drop ends the request without a lease and without a cleanup. It reports whether the server may have granted it, or may still
// do so: then the caller has to call Lock.CleanUp at some time. It does nothing and returns false if the request has ended.
func (t *TokenRequest) Drop(err error) (inDoubt bool) {
	r := &t.request
	return r.Step(claim.Event{Kind: claim.Forgotten}, err).Deliver && r.Snapshot().NeedsCleanup()
}

// Cancel ends the request without a lease, if it has not ended, and starts a Cleanup if the server may have granted it or may
// still do so. It also forgets a request that was dropped.
func (t *TokenRequest) Cancel(err error) {
	t.request.Step(claim.Event{Kind: claim.Cancelled}, err)
	t.request.unregister()
}

// Lease is what the request was granted; nil: nothing, or nothing yet.
func (t *TokenRequest) Lease() *lease.Lease {
	r := &t.request
	if !r.ended.IsClosed() || r.result() != nil {
		return nil
	}
	return r.Lease
}

// Cleanup is what Cancel, or the keeper's Close, has started; nil: nothing.
func (t *TokenRequest) Cleanup() *lease.Cleanup { return t.request.Cleanup() }
