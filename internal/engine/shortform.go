package engine

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/lua"
)

// shortForm decides by which form of a script the calls of a lock begin: acquire.lua, or release.lua. The short form of acquire.lua
// costs the server half, and decides the common cases; that of release.lua costs a tenth less, and decides unless others wait.
// Where it does not decide, it costs a round trip: so the next calls take the long form at once, twice as many each time that the
// short form fails in a row, up to 16. Only those are counted whose long form was granted without waiting, or found that nobody
// waits, which is when the short form is likely to do again. It is safe for concurrent use.
type shortForm struct {
	pending  atomic.Int32 // calls that take the long form at once
	failures atomic.Int32 // of the short form, in a row
}

const maxShortFailures = 4

// maxShortForms is of how many names the process remembers by which form to begin: those of which it has made a lock last.
const maxShortForms = 10_000

// shortForms is what the locks of one name share, because a program may make another one for each use.
type shortForms struct {
	short  shortForm // of acquire.lua
	ending shortForm // of release.lua
}

// shortFormsLocked returns what the locks of a name share, by the lock's key. The caller holds mu.
func (e *Engine) shortFormsLocked(key string) *shortForms {
	s, known := e.shortForms.Get(key)
	if !known {
		s = &shortForms{}
		e.shortForms.Add(key, s)
	}
	return s
}

// usable reports whether the next call should take the short form.
func (s *shortForm) usable() bool { return s.pending.Load() <= 0 }

// failed notes that the short form has not decided a call.
func (s *shortForm) failed() {
	n := s.failures.Load()
	if n < maxShortFailures {
		s.failures.Store(n + 1)
	}
	s.pending.Store(1 << n)
}

// contended notes that others probably wait, so that the next call takes the long form.
func (s *shortForm) contended() {
	if s.usable() {
		s.failed()
	}
}

// decided notes that the short form has decided a call.
func (s *shortForm) decided() { s.failures.Store(0) }

// longGranted notes that the long form has granted a request without waiting, or has found that nobody waits for a release.
func (s *shortForm) longGranted() { s.pending.Add(-1) }

// ExpectWaiters notes that others probably wait, so that the next release of the name takes the long form.
func (s *shortForms) ExpectWaiters() { s.ending.contended() }

// hasShortForm reports whether requests of this lock can take the short form. That relies on metadata which others may have kept
// for short leases: for half of MetadataTTL at least, by when renewals keep it for this lease.
func (l *Lock) hasShortForm() bool {
	return l.spec.Scripts.ShortKeys > 0 && server.Duration(l.TTL) <= l.e.Config.MetadataTTL/4
}

// mayUseShort reports whether the next call of the request should be the short form.
func (r *request) mayUseShort() bool {
	return r.origin == nil && r.part == nil && r.observer == nil && r.quota == nil && r.lock.hasShortForm() && r.lock.short.usable()
}

// answered notes the reply to a request, and reports whether it decides the request. The short form never queues one.
func (s *shortForm) answered(short, wait bool, a protocol.AcquireReply) (decided bool) {
	switch {
	case !short:
		if a.Code == lua.Granted {
			s.longGranted()
		}
		return true
	case a.NeedsLong || wait && a.Code == lua.Refused:
		s.failed()
		return false
	}
	s.decided()
	return true
}
