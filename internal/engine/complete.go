package engine

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// doneMark stands before the token in the record that complete.lua leaves.
const doneMark = "done:"

var errNotRecorded = errors.New("it was not answered whether the work was recorded as done; if it was not, the lease ends by itself")

// RecordUnknown is why it is not known whether work that is done was recorded as done.
type RecordUnknown struct {
	LeaseEnds time.Time // when others get in at the latest, if it was not
	Err       error
}

// Error is as in error.
func (e *RecordUnknown) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *RecordUnknown) Unwrap() error { return e.Err }

// Complete ends the lease for its holder, as Release does, but leaves a record at the server that keeps everybody else out
// until that time. If it has passed, it is a release. Like a release it is repeated in the background until the server has
// answered or the lease is over by itself, blocks until then or until ctx ends, for a second at the most if ctx has ended
// already, and is not undone by Close.
//
// A renewal that is still under way does not find the token in the record, so it changes nothing, whenever it runs. The
// error is ErrLost or ErrReleased if the lease was over before, and an *Unconfirmed if it is not known what the server has.
func (h *Lease) Complete(ctx context.Context, until time.Time) error {
	d, err := h.end(h.lock.e.transport.Send, false, until)
	if err != nil {
		return err
	}
	if d == nil {
		return h.lock.fail(ErrReleased)
	}
	err = h.await(ctx, d, errNotRecorded)
	if err != nil && !errors.Is(err, ErrLost) {
		return &RecordUnknown{d.until, err}
	}
	if err == nil && h.inDoubt() && time.Until(until) < tombstoneTTL {
		// A copy of its request could come after the record has ended.
		h.lock.tombstone(ctx, h.token)
	}
	return err
}

// Since is when the lease was granted.
func (h *Lease) Since() time.Time { return h.grantedAt }

// IsDone says whether a holder's token is the record of work that is done, and not a lease.
func IsDone(token string) bool { return strings.HasPrefix(token, doneMark) }

// Forget deletes a record that Holders has told of. It blocks until the server has answered, until ctx ends, or until the
// retry policy gives up.
func (l *Lock) Forget(ctx context.Context, record string) error {
	call, _, err := l.e.roundTrip(ctx, l.e.closing.Done(), 0, func(done func(*transport.Call)) *transport.Call {
		call := l.call(l.spec.Scripts.Release, 4, 6, done)
		call.Args = lua.ReleaseArgs(call.Args, record, l.args.metadataTTL, l.args.channelPrefix, l.args.sharded, 0, 0)
		return call
	})
	if errors.Is(err, errStopped) {
		err = ErrClosed
	}
	if err == nil {
		_, err = parseReply(call)
	}
	if err != nil {
		return l.fail(err)
	}
	return nil
}
