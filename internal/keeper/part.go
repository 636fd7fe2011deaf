package keeper

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// This file has what package quorum needs to build one lease of parts, each at a server of its own and so of a Keeper of its own: above all a
// request that does not wait.

// CloseObserver is called by Close, once, after waiting calls have been ended and before any lease of the keeper ends. It is called without
// any mutex of this package.
type CloseObserver interface{ KeeperClosed() }

// OnClose makes Close call the observer, unless RemoveOnClose removes it before. It returns false if Close was called already: then the
// observer is not called.
func (k *Keeper) OnClose(o CloseObserver) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.onClose[o] = struct{}{}
	}
	return !k.closed
}

// RemoveOnClose undoes OnClose. It does not wait for Close, which may be calling the observer at this moment.
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
// admits the next one. The error is ErrClosed, the error of a wait if ctx has ended, or the judge's if the servers have not answered for too long.
func (l *Lock) WaitLocally(ctx context.Context, j Judge) (Turn, error) {
	return l.k.local.Wait(ctx, l.Key(), j)
}

// LeaveLocally ends the turn that began when WaitLocally returned.
func (l *Lock) LeaveLocally() { l.k.local.Leave(l.Key()) }

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
	InDoubt    bool          // no lease, but the server may have granted one, or may still do so: the caller has to call CleanUp
	Cleanup    *Cleanup      // begun by the keeper's Close, in place of CleanUp; nil: it was not
	RetryAfter time.Duration // if refused: when the lease in the way expires at the latest; 0: not known
}

// AskPart asks the server for a part of a lease that began at since. The parts at all servers have one token, which may be used again later. The
// request does not wait for another holder, and is sent once more if its connection breaks. inDoubt says that an earlier request with the token
// may still arrive. AskPart does not block: answered is called once, perhaps before AskPart returns, when there is an answer, the keeper is
// closed, or stop is called. It is called without any mutex of this package.
func (l *Lock) AskPart(token string, since time.Time, observer Observer, inDoubt bool, answered func(Part)) (stop func()) {
	r := &request{part: &partRequest{answered: answered}, serial: token, policyArg: ""}
	c := claim.New(claim.Part, false, inDoubt)
	c.SetSince(l.k.Instant(since))
	// It is registered under the token, because the serial in the token is another keeper's, and this keeper may have drawn the same one.
	r.Lease = l.NewLease(token, c, nil)
	r.request, r.observer = r, observer
	if _, closed := l.k.messages.Register(r.serial, r, true); closed {
		answered(Part{Err: server.ErrClosed, InDoubt: inDoubt})
		return func() {}
	}
	l.k.Announce()
	r.Step(claim.Event{Kind: claim.Called}, nil)
	return func() { r.Step(claim.Event{Kind: claim.Cancelled}, server.ErrNoAnswer) }
}

// partRequest is what only a request for a part has.
type partRequest struct {
	answered   func(Part)
	retryAfter time.Duration // guarded by the lease's mu
}

// answerPart passes the result of a request for a part to the caller of AskPart.
func (r *request) answerPart() {
	p := Part{RetryAfter: r.part.retryAfter, Err: r.result()}
	if p.Err == nil {
		p.Lease = r.Lease
	} else {
		p.InDoubt, p.Cleanup = r.Snapshot().NeedsCleanup(), r.Cleanup()
	}
	r.part.answered(p)
}
