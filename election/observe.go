package election

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// Leading reports whether this process leads: lead is running, and its lease is held. It sends nothing, and checks the lease's
// deadline, so it is right even after a pause of the process. The answer may be out of date when the caller acts on it; work
// that only the leader may do belongs in lead.
func (e *Election) Leading() bool {
	e.mu.Lock()
	lease := e.lease
	e.mu.Unlock()
	return lease != nil && lease.Err() == nil
}

// Leader asks the server who leads, in any process; held is false if nobody does. The process need not be a candidate. A former
// leader whose lease was lost or released does not count, even if its lead is still running. It blocks for a round trip, and
// makes up to three attempts. The error is that of the lock's method Holder; see [lockkeeper.Holder].
func (e *Election) Leader(ctx context.Context) (leader lockkeeper.Holder, held bool, err error) {
	return e.locker.Holder(ctx)
}

// Watch returns an iterator that yields who leads, and then each change, until the caller ends the loop or ctx ends. A zero
// Holder, without a Token, means that nobody leads. Watch asks the server at once, then every Options.WatchInterval, and when a
// Run of this Election starts or stops leading. It does not see a change that is undone before it asks again. A new term of the
// same process is a change, since its fence is larger.
//
// An error means that it is not known who leads. It is yielded once, and Watch goes on asking until it is known again. After an
// error that matches ErrClosed the loop ends.
//
//	for leader, err := range e.Watch(ctx) {
//		…
//	}
func (e *Election) Watch(ctx context.Context) iter.Seq2[lockkeeper.Holder, error] {
	return func(yield func(lockkeeper.Holder, error) bool) {
		var last lockkeeper.Holder
		known, failed := false, false // the last answer was a leader, or an error; at first neither
		ticker := time.NewTicker(e.o.WatchInterval)
		defer ticker.Stop()
		for {
			changed := e.nextChange() // before asking
			leader, _, err := e.Leader(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				final := errors.Is(err, lockkeeper.ErrClosed)
				if (final || !failed) && !yield(lockkeeper.Holder{}, err) || final {
					return
				}
				known, failed = false, true
			case !known || leader.Token != last.Token || leader.Fence != last.Fence:
				if !yield(leader, nil) {
					return
				}
				last, known, failed = leader, true, false
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-ticker.C:
			}
		}
	}
}

// nextChange returns a channel that is closed when a term of this process begins or ends.
func (e *Election) nextChange() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}
