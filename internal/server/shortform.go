package server

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// ShortForm decides by which form of a script the calls of a lock begin: acquire.lua, or release.lua. The short form of acquire.lua
// costs the server half, and decides the common cases; that of release.lua costs a tenth less, and decides unless others wait.
// Where it does not decide, it costs a round trip: so the next calls take the long form at once, twice as many each time that the
// short form fails in a row, up to 16. Only those are counted whose long form was granted without waiting, or found that nobody
// waits, which is when the short form is likely to do again. It is safe for concurrent use.
type ShortForm struct {
	pending  atomic.Int32 // calls that take the long form at once
	failures atomic.Int32 // of the short form, in a row
}

const maxShortFailures = 4

// ShortForms is what the locks of one name share, because a program may make another one for each use.
type ShortForms struct {
	Acquire ShortForm // of acquire.lua
	Release ShortForm // of release.lua
}

// Usable reports whether the next call should take the short form.
func (s *ShortForm) Usable() bool { return s.pending.Load() <= 0 }

// Failed notes that the short form has not decided a call.
func (s *ShortForm) Failed() {
	n := s.failures.Load()
	if n < maxShortFailures {
		s.failures.Store(n + 1)
	}
	s.pending.Store(1 << n)
}

// Contended notes that others probably wait, so that the next call takes the long form.
func (s *ShortForm) Contended() {
	if s.Usable() {
		s.Failed()
	}
}

// Decided notes that the short form has decided a call.
func (s *ShortForm) Decided() { s.failures.Store(0) }

// LongGranted notes that the long form has granted a request without waiting, or has found that nobody waits for a release.
func (s *ShortForm) LongGranted() { s.pending.Add(-1) }

// Answered notes the reply to a request, and reports whether it decides the request. The short form never queues one.
func (s *ShortForm) Answered(short, wait bool, a protocol.AcquireReply) (decided bool) {
	switch {
	case !short:
		if a.Code == lua.Granted {
			s.LongGranted()
		}
		return true
	case a.NeedsLong || wait && a.Code == lua.Refused:
		s.Failed()
		return false
	}
	s.Decided()
	return true
}
