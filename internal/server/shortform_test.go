package server

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// answers feeds a reply to n requests that take the form which is due, and counts those of the short form.
func (s *ShortForm) answers(n int, wait bool, short, long protocol.AcquireReply) (shorts int) {
	for range n {
		if s.Usable() {
			shorts++
			if s.Answered(true, wait, short) {
				continue
			}
		}
		s.Answered(false, wait, long)
	}
	return shorts
}

func TestShortFormWhileItDecides(t *testing.T) {
	granted := protocol.AcquireReply{Code: lua.Granted}
	refused := protocol.AcquireReply{Code: lua.Refused}
	waiting := protocol.AcquireReply{Code: lua.Waiting}
	needsLong := protocol.AcquireReply{NeedsLong: true}

	var s ShortForm
	if n := s.answers(10, true, granted, granted); n != 10 {
		t.Errorf("%d of 10 requests that are granted took the short form", n)
	}
	if n := s.answers(10, false, refused, granted); n != 10 {
		t.Errorf("%d of 10 tries that are refused took the short form", n)
	}
	if n := s.answers(1000, true, refused, waiting); n != 1 {
		t.Errorf("%d of 1,000 requests that have to wait began by the short form, want the first", n)
	}
	// Nobody waits any more: the short form is used again.
	if n := s.answers(10, true, granted, granted); n != 9 {
		t.Errorf("%d of 10 requests after that took the short form, want all but the first", n)
	}
	// It fails for a long time, as while there are tombstones.
	if n := s.answers(200, true, needsLong, granted); n > 20 || n < 5 {
		t.Errorf("the short form was tried %d times in 200 requests that need the long one", n)
	}
}
