package keeper

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// ReleaseBy ends the lease, and returns its cleanup, which has begun; by sends the command. unused says that nobody ever had the
// lease. The error is ErrLost if the lease was lost. Both are nil if the lease was released before, or leaves nothing to clean up.
func (h *Lease) ReleaseBy(by func(*transport.Call), unused bool) (*Cleanup, error) {
	return h.end(by, unused, time.Time{})
}

// end ends the lease for ReleaseBy; and for Complete, if record is set, the time until which a record lasts.
func (h *Lease) end(by func(*transport.Call), unused bool, record time.Time) (*Cleanup, error) {
	ev := claim.Event{Kind: claim.Released, Unused: unused}
	if !record.IsZero() {
		ev.Until = max(h.lock.k.Instant(record), 1)
	}
	h.Mu.Lock()
	var a actions
	first := h.cleanup == nil
	a.begin(h, h.lock.k.Now(), &ev, nil)
	c, err := h.cleanup, h.ErrLocked()
	h.Mu.Unlock()
	a.finish(h, by)
	switch {
	case errors.Is(err, server.ErrLost):
		return nil, h.lock.Fail(err)
	case !first || c == nil:
		return nil, nil
	}
	return c, nil
}

// Release releases the lease. See Lease.Release in package lockkeeper.
func (h *Lease) Release(ctx context.Context) error {
	var ended noteEnd // of ctx, while the release was sent
	c, err := h.ReleaseBy(func(call *transport.Call) { h.lock.k.Transport.SendInline(ctx, call, &ended) }, false)
	switch {
	case c == nil:
		return err
	case bool(ended) && !c.finished.IsClosed():
		return h.lock.Fail(ErrReleaseUnanswered, server.ContextError(ctx))
	}
	return h.await(ctx, c, ErrReleaseUnanswered)
}

// noteEnd is an EndReceiver that notes that it was notified.
type noteEnd bool

// ContextEnded implements transport.EndReceiver.
func (n *noteEnd) ContextEnded(context.Context) { *n = true }

// await returns when the cleanup has ended and no renewal is under way, when ctx ends, or when Close waits no longer. If ctx has ended
// already, it waits for CancelGrace at most. The error is silence if there was no reply.
func (h *Lease) await(ctx context.Context, c *Cleanup, silence error) error {
	var timeout <-chan time.Time
	done, closing := ctx.Done(), h.lock.k.Closing().Done()
	if ctx.Err() != nil {
		timeout, done = time.After(CancelGrace), nil
	}
	for {
		select {
		case <-c.finished.Done():
			return c.err()
		case <-done:
			return h.lock.Fail(silence, server.ContextError(ctx))
		case <-timeout:
			return h.lock.Fail(silence, server.ContextError(ctx))
		case <-closing:
			closing = nil
			if timeout == nil {
				timeout = time.After(h.lock.k.UntilClosed())
			}
		}
	}
}

// Abandon releases the lease in the background, as one that no caller has used, or whose caller has returned.
func (h *Lease) Abandon() { _, _ = h.ReleaseBy(h.lock.k.Transport.Send, true) }

// Detach ends the lease in this process, and leaves it at the server, for another handle or another process that has its token.
func (h *Lease) Detach() { h.Step(claim.Event{Kind: claim.Forgotten}, nil) }

// StartRelease begins a release, and returns the cleanup for ReleaseEnded; nil: there is nothing to wait for.
func (h *Lease) StartRelease() (*Cleanup, error) { return h.ReleaseBy(h.lock.k.Transport.Send, false) }

// ReleaseEnded reports whether the release has ended, with or without an answer, and no renewal is under way. err is as from Release. When it
// ends, CleanedUp of the observer is called.
func (h *Lease) ReleaseEnded(c *Cleanup) (ended bool, err error) {
	if !c.Ended() {
		return false, nil
	}
	return true, c.err()
}

// A Cleanup releases whatever the token of a lease has at the server: a lease, a queue entry, or what an upgrade has changed. It retries in
// the background until the server has answered, or until the lease or entry must have expired. The claim of the lease decides.
type Cleanup struct {
	of       *Lease
	first    transport.Call // the first call, which so needs no allocation
	script   releaseScript  // of the call under way; set between attempts only
	finished server.Signal

	// Guarded by the lease's Mu.
	sent    bool  // first is in use
	over    bool  // the cleanup has ended, though finished may not be closed yet
	failure error // of the last attempt, if it had no answer
	loss    error // who has broken the lease, if the server did not have it; nil: nobody, as far as is known
}

var (
	// ErrNotHeld means that the server knows no lease of the token.
	ErrNotHeld = server.NewLoss(server.LossGone, "the server does not know the token: the lease expired there, or its key was deleted or lost")
	// ErrReleaseUnanswered means that the server has not confirmed a release.
	ErrReleaseUnanswered = server.Chain(server.ErrUnavailable, errors.New("the release was not answered; if the server did not run it, the lease expires by itself"))
)

// CleanUp releases whatever a token has at the server, and leaves a tombstone, so that a copy of its request that arrives later is not granted.
// It runs in the background, and is repeated until the server has answered, but not after until. The observer may be nil.
func (l *Lock) CleanUp(token string, observer Observer, until time.Time) *Cleanup {
	h := l.NewLease(token, claim.Clean(l.k.Instant(until)), nil)
	h.observer = observer
	c, _ := h.ReleaseBy(l.k.Transport.Send, false)
	return c
}

// Tombstone keeps copies of a request that has ended from being granted. It blocks until the server has answered, for CancelGrace at most, or
// until ctx ends; then it continues in the background.
func (l *Lock) Tombstone(ctx context.Context, token string) {
	c := l.CleanUp(token, nil, time.Now().Add(server.TombstoneTTL))
	ctx, cancel := context.WithTimeout(ctx, CancelGrace)
	defer cancel()
	server.WaitFor(ctx, c.finished.Done())
}

// send sends a release as the claim describes it. by is Transport.Send or SendInline.
func (c *Cleanup) send(by func(*transport.Call)) {
	h, l := c.of, c.of.lock
	h.Mu.Lock()
	call := &c.first
	if c.sent {
		call = &transport.Call{}
	}
	c.sent = true
	tombstone, unused, record, _ := h.Claim.Cleanup()
	general := h.Claim.NeedsGeneral()
	h.Mu.Unlock()
	call.Done = c
	handedOn := c.script >= handsOn // by an earlier call of this cleanup
	c.script = releases
	ms := int64(0)
	if record > 0 {
		ms = time.Until(l.k.Time(record)).Milliseconds()
	}
	switch {
	case ms > 0: // a record that has not expired
		l.SetComplete(call, h.token, ms)
	case !general && !unused && l.spec.Yield == 0 && l.Fast().Release != nil && l.FastBackoff.Release.Usable():
		c.script = releasesFast
		l.SetFastRelease(call, h.token)
	case !handedOn && !tombstone && !unused && l.spec.Yield == 0 && l.mayHandOn():
		c.script = handsOn
		l.SetHandOn(call, h.token)
	default:
		l.SetRelease(call, h.token, tombstone, unused, l.spec.Yield)
	}
	by(call)
}

// mayHandOn reports whether a release that others wait for should try the fast script first. With several holders, this script leaves it to the
// general one if a waiter's claim lasts as long as its lease, because the next waiter must then be told when that lease ends.
func (l *Lock) mayHandOn() bool {
	return l.Fast().HandOn != nil && (l.ClaimTTL < l.TTL || l.Scripts().OneHolder) && l.FastBackoff.HandOn.Usable()
}

// releaseScript is a script that releases. A cleanup tries them in this order.
type releaseScript uint8

const (
	releasesFast releaseScript = iota // releases if nobody waits
	handsOn                           // hands the lock on to the first waiter, in the common case
	releases                          // decides always; also complete.lua
)

// CallDone implements transport.Receiver. It handles the reply to a release.
func (c *Cleanup) CallDone(call *transport.Call) {
	l := c.of.lock
	parse := protocol.ParseFastReleaseReply
	if c.script == releases {
		parse = protocol.ParseReleaseReply
	}
	r, err := server.Decode(call, parse)
	if err != nil {
		c.of.Step(claim.Event{Kind: claim.ReleaseFailed, Outcome: transport.OutcomeOf(err), Retryable: transport.Retryable(err)}, err)
		return
	}
	ev := claim.Event{Kind: claim.ReleaseReplied, Code: claim.Granted, Fast: r.Undecided, QueueEmpty: r.QueueEmpty}
	if r.Code == lua.Refused {
		ev.Code = claim.Denied
	}
	switch c.script {
	case releasesFast:
		l.FastBackoff.Release.Replied(!r.Undecided)
	case handsOn:
		l.FastBackoff.HandOn.Replied(!r.Undecided)
	case releases:
		l.FastBackoff.HandOn.GeneralGranted()
	}
	if c.script != releasesFast && r.QueueEmpty {
		l.FastBackoff.Release.GeneralGranted()
	}
	if done := c.of.Step(ev, nil); done.Release {
		return
	}
	if r.More && !call.Joined {
		l.ContinueAdmitting()
	}
	if r.QueueEmpty {
		l.k.queues.wasEmpty(&l.Resource, call.Sent)
	}
}

func (c *Cleanup) end() {
	h := c.of
	h.Mu.Lock()
	c.over = true
	if h.Claim.Answer() != claim.None {
		c.failure = nil
	}
	h.Mu.Unlock()
	if h.observer != nil {
		h.observer.CleanedUp()
	}
	c.finished.Close()
	h.lock.k.EndWork()
}

// err returns how the release ended: nil if the server has released the lease, ErrLost if it did not know the lease, and else why there was no
// answer. If the outcome of an earlier attempt is unknown, that attempt may have released the lease, and err is nil instead of ErrLost.
func (c *Cleanup) err() error {
	c.of.Mu.Lock()
	defer c.of.Mu.Unlock()
	switch answer := c.of.Claim.Answer(); {
	case answer == claim.Denied:
		return c.of.lock.Fail(server.ErrLost, cmp.Or(c.loss, ErrNotHeld))
	case answer == claim.None:
		return c.of.lock.FailIf(c.failure)
	}
	return nil
}

// ErrNow returns how the release ended, or ErrReleaseUnanswered if it is under way.
func (c *Cleanup) ErrNow() error {
	if c.of.Snapshot().State() == claim.Over { // though a renewal may still be under way
		return c.err()
	}
	return c.of.lock.Fail(ErrReleaseUnanswered)
}

// Done is closed when the cleanup has ended, and no renewal of the lease is under way.
func (c *Cleanup) Done() <-chan struct{} { return c.finished.Done() }

// Ended reports whether the cleanup has ended, though Done may not be closed yet.
func (c *Cleanup) Ended() bool {
	c.of.Mu.Lock()
	defer c.of.Mu.Unlock()
	return c.over
}

// Failure returns why the cleanup ended without an answer of the server; nil: it was answered, or has not ended.
func (c *Cleanup) Failure() error {
	if !c.Ended() {
		return nil
	}
	c.of.Mu.Lock()
	defer c.of.Mu.Unlock()
	return c.failure
}

var errNotRecorded = errors.New("the record that the work is done was not confirmed; if it was not written, the lease expires by itself")

// RecordUnknown is the error of a Complete that the server has not confirmed.
type RecordUnknown struct {
	LeaseEnds time.Time // when others can acquire the lock at the latest, if the record was not written
	Err       error
}

// Error implements error.
func (u *RecordUnknown) Error() string { return u.Err.Error() }

// Unwrap returns Err.
func (u *RecordUnknown) Unwrap() error { return u.Err }

// Complete releases the lease, and leaves a record at the server that prevents all acquisitions before until. If until has passed, it leaves none.
// The command is retried in the background until the server has answered or the lease has expired. Complete blocks for as long, or until ctx
// ends, and for CancelGrace at most if ctx has ended already. Close does not undo it.
//
// A renewal that arrives after the record has no effect, because it only renews a key that has the token. The error is ErrLost or ErrReleased if
// the lease had ended before, and a *RecordUnknown if the server has not confirmed the record.
func (h *Lease) Complete(ctx context.Context, until time.Time) error {
	c, err := h.end(h.lock.k.Transport.Send, false, until)
	if err != nil {
		return err
	}
	if c == nil {
		return h.lock.Fail(server.ErrReleased)
	}
	err = h.await(ctx, c, errNotRecorded)
	if err == nil || !errors.Is(err, server.ErrLost) {
		h.observe(Succeeded, nil)
	}
	if err != nil && !errors.Is(err, server.ErrLost) {
		_, _, _, until := h.Snapshot().Cleanup() // complete is not repeated after it
		return &RecordUnknown{h.lock.k.Time(until), err}
	}
	if err == nil && h.Snapshot().InDoubt() && time.Until(until) < server.TombstoneTTL {
		// A copy of the request could run after the record has expired.
		h.lock.Tombstone(ctx, h.token)
	}
	return err
}
