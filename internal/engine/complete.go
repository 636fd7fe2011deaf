package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

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

// Complete ends the lease for its holder, as Release does, but leaves a record at the server that prevents all acquisitions
// until the given time. If that time has passed, it releases the lease. As with Release, the command is retried in the
// background until the server has answered or the lease has expired. Complete blocks until then or until ctx ends, and for
// cancelGrace at most if ctx has ended already. Close does not undo it.
//
// A renewal that is still in flight has no effect, whenever it runs: the record is not the token. The error is ErrLost or
// ErrReleased if the lease had ended before, and a *RecordUnknown if the server has not confirmed the record.
func (h *Lease) Complete(ctx context.Context, until time.Time) error {
	c, err := h.end(h.lock.e.Transport.Send, false, until)
	if err != nil {
		return err
	}
	if c == nil {
		return h.lock.Fail(server.ErrReleased)
	}
	err = h.await(ctx, c, errNotRecorded)
	if err == nil || !errors.Is(err, server.ErrLost) {
		h.observe(Succeeded, h.held(), nil)
	}
	if err != nil && !errors.Is(err, server.ErrLost) {
		return &RecordUnknown{h.lock.e.Time(h.releaseUntil()), err}
	}
	if err == nil && h.inDoubt() && time.Until(until) < server.TombstoneTTL {
		// A copy of its request could run after the record has expired.
		h.lock.tombstone(ctx, h.token)
	}
	return err
}

// Forget deletes a record that Holders has returned. It blocks until the server has answered, until ctx ends, or until the
// retry policy gives up.
func (l *Lock) Forget(ctx context.Context, record string) error {
	call, _, err := l.e.RoundTrip(ctx, l.e.Closing().Done, 0, func(p *server.Pending) {
		l.SetRelease(&p.Call, record, 0, server.UsedLease, l.spec.Yield)
	})
	if errors.Is(err, server.ErrStopped) {
		err = server.ErrClosed
	}
	if err == nil {
		_, err = server.Decode(call, protocol.ParseReleaseReply)
	}
	if err != nil {
		return l.Fail(err)
	}
	return nil
}
