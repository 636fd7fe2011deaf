package server

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// FastBackoff decides whether the calls of a lock begin with a fast script. It costs the server half of the general script, and decides the
// common cases. If it does not decide, a round trip is lost, so the next calls take the general script at once: one, and twice as many each time
// that the fast script fails again, up to 16. A call counts if the general script grants it without waiting, or finds that nobody waits, because
// the fast script would probably have decided it. A FastBackoff is safe for concurrent use.
type FastBackoff struct {
	pending  atomic.Int32 // calls that take the general script at once
	failures atomic.Int32 // of the fast script, in a row
}

const maxFastFailures = 4

// FastBackoffs is shared by the locks of one name, because a program may make another lock for each use.
type FastBackoffs struct {
	Acquire FastBackoff // of acquire.lua
	Release FastBackoff // of a release that nobody waits for
	HandOn  FastBackoff // of a release that others wait for; each general script counts
}

// Usable reports whether the next call should take the fast script.
func (b *FastBackoff) Usable() bool { return b.pending.Load() <= 0 }

// Failed notes that the fast script has not decided a call.
func (b *FastBackoff) Failed() {
	n := b.failures.Load()
	if n < maxFastFailures {
		b.failures.Store(n + 1)
	}
	b.pending.Store(1 << n)
}

// Contended notes that others probably wait, so that the next call takes another script.
func (b *FastBackoff) Contended() {
	if b.Usable() {
		b.Failed()
	}
}

// Decided notes that the fast script has decided a call.
func (b *FastBackoff) Decided() { b.failures.Store(0) }

// Replied notes whether the fast script has decided a call.
func (b *FastBackoff) Replied(decided bool) {
	if decided {
		b.Decided()
	} else {
		b.Failed()
	}
}

// GeneralGranted notes that the general script has granted a request without waiting, or has found that nobody waits for a release.
func (b *FastBackoff) GeneralGranted() { b.pending.Add(-1) }

// Answered notes the reply to a request, and reports whether it decides the request. The fast script never queues a request, so its refusal does
// not decide one that may wait.
func (b *FastBackoff) Answered(fast, wait bool, a protocol.AcquireReply) (decided bool) {
	switch {
	case !fast:
		if a.Code == lua.Granted {
			b.GeneralGranted()
		}
		return true
	case a.Undecided || wait && a.Code == lua.Refused:
		b.Failed()
		return false
	}
	b.Decided()
	return true
}
