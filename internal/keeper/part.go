package keeper

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
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

// Keeper returns the keeper of the lock.
func (l *Lock) Keeper() *Keeper { return l.k }

// WaitLocally blocks until the caller is the first one of this process that wants the lock's name. The caller must then call LeaveLocally, which
// admits the next one. The error is ErrClosed, or that of a wait which ctx has ended; or that of a judge by whom the server has not answered for
// too long since the caller came.
func (l *Lock) WaitLocally(ctx context.Context, j Judge) (Turn, error) {
	return l.k.local.Wait(ctx, l.KeyOf(server.QueueKey), j)
}

// LeaveLocally ends the turn that began when WaitLocally returned.
func (l *Lock) LeaveLocally() { l.k.local.Leave(l.KeyOf(server.QueueKey)) }

// NewToken returns a token for a new request of this lock, with flags and a number that the policy reads, and a note of the caller; see
// protocol.Token.
func (l *Lock) NewToken(flags string, number int64, note string) string {
	token, _ := l.newToken(flags, number, note)
	return token
}

// Part is what became of a request for a part of a lease at several servers.
type Part struct {
	Lease      *Lease        // nil: not granted
	Err        error         // why there is no lease
	InDoubt    bool          // there is none, but the server may have granted one, or may still do so: the caller has to call CleanUp
	Cleanup    *Cleanup      // the keeper's Close has begun that; nil: it has not
	RetryAfter time.Duration // if refused: when the lease in the way expires at the latest; 0: not known
}

// AskPart asks the server for a lease with a token that may be used at other servers as well, and again later; it is part of one that began at
// that time. It does not wait for another holder, and sends the request once more if its connection breaks. inDoubt says that an earlier
// request with the token may still arrive. It does not block. answered is called once, with no mutex of this package held, and perhaps before
// AskPart returns: when there is an answer, the keeper is closed, or stop is called.
func (l *Lock) AskPart(token string, since time.Time, observer Observer, inDoubt bool, answered func(Part)) (stop func()) {
	r := &request{part: &partRequest{answered: answered}, mode: claim.Part, policyArg: ""}
	c := claim.New(claim.Part, false, inDoubt)
	c.SetSince(l.k.Instant(since))
	// It is registered under the token. A serial in it may be of another keeper, and so equal to one of this keeper's.
	r.Lease = l.NewLease(token, token, c, nil)
	r.request, r.observer = r, observer
	if _, closed := l.k.messages.Register(r.Serial(), r, true); closed {
		answered(Part{Err: server.ErrClosed, InDoubt: inDoubt})
		return func() {}
	}
	l.k.Announce()
	r.Step(claim.Event{Kind: claim.Called}, nil)
	return func() { r.Step(claim.Event{Kind: claim.Cancelled}, server.ErrNoAnswer) }
}

// partRequest is what a request for a part has besides.
type partRequest struct {
	answered   func(Part)
	retryAfter time.Duration // guarded by the lease's mu
}

// answerPart tells what has become of a request for a part, which has ended.
func (r *request) answerPart() {
	p := Part{RetryAfter: r.part.retryAfter, Err: r.result()}
	if p.Err == nil {
		p.Lease = r.Lease
	} else {
		p.InDoubt, p.Cleanup = r.Snapshot().NeedsCleanup(), r.Cleanup()
	}
	r.part.answered(p)
}
