package server

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// ShortForm decides whether the calls of a lock begin by a fast script, which costs the server half of the general one and decides the
// common cases. Where it does not decide, it costs a round trip: so the next calls take the general script at once, twice as many each
// time that the fast one fails in a row, up to 16. Only those are counted that the fast one is likely to decide again: those whose
// general script was granted without waiting, or found that nobody waits. It is safe for concurrent use.
type ShortForm struct {
	pending  atomic.Int32 // calls that take the general script at once
	failures atomic.Int32 // of the fast script, in a row
}

const maxShortFailures = 4

// ShortForms is what the locks of one name share, because a program may make another one for each use.
type ShortForms struct {
	Acquire ShortForm // of acquire.lua
	Release ShortForm // of a release that nobody waits for
	HandOn  ShortForm // of a release that others wait for; each general script counts
}

// Usable reports whether the next call should take the fast script.
func (s *ShortForm) Usable() bool { return s.pending.Load() <= 0 }

// Failed notes that the fast script has not decided a call.
func (s *ShortForm) Failed() {
	n := s.failures.Load()
	if n < maxShortFailures {
		s.failures.Store(n + 1)
	}
	s.pending.Store(1 << n)
}

// Contended notes that others probably wait, so that the next call takes another script.
func (s *ShortForm) Contended() {
	if s.Usable() {
		s.Failed()
	}
}

// Decided notes that the fast script has decided a call.
func (s *ShortForm) Decided() { s.failures.Store(0) }

// Replied notes whether the fast script has decided a call.
func (s *ShortForm) Replied(decided bool) {
	if decided {
		s.Decided()
	} else {
		s.Failed()
	}
}

// LongGranted notes that the general script has granted a request without waiting, or has found that nobody waits for a release.
func (s *ShortForm) LongGranted() { s.pending.Add(-1) }

// Answered notes the reply to a request, and reports whether it decides the request. The fast script never queues one.
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
