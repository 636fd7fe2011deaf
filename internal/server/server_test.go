package server

import (
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// answers feeds a reply to n requests that take the script which is due, and counts those that take the fast one.
func (b *FastBackoff) answers(n int, wait bool, fast, general protocol.AcquireReply) (taken int) {
	for range n {
		if b.Usable() {
			taken++
			if b.Answered(true, wait, fast) {
				continue
			}
		}
		b.Answered(false, wait, general)
	}
	return taken
}

func TestFastBackoff(t *testing.T) {
	granted := protocol.AcquireReply{Code: lua.Granted}
	refused := protocol.AcquireReply{Code: lua.Refused}
	waiting := protocol.AcquireReply{Code: lua.Waiting}
	undecided := protocol.AcquireReply{Undecided: true}

	var b FastBackoff
	if n := b.answers(10, true, granted, granted); n != 10 {
		t.Errorf("%d of 10 requests that are granted took the fast script", n)
	}
	if n := b.answers(10, false, refused, granted); n != 10 {
		t.Errorf("%d of 10 tries that are refused took the fast script", n)
	}
	if n := b.answers(1000, true, refused, waiting); n != 1 {
		t.Errorf("%d of 1,000 requests that have to wait began with the fast script, want the first", n)
	}
	// Nobody waits any more: the fast script is used again.
	if n := b.answers(10, true, granted, granted); n != 9 {
		t.Errorf("%d of 10 requests after that took the fast script, want all but the first", n)
	}
	// It fails for a long time, as while there are tombstones.
	if n := b.answers(200, true, undecided, granted); n > 20 || n < 5 {
		t.Errorf("the fast script was tried %d times in 200 requests that need the general one", n)
	}
}

// TestSignal checks that channels of a signal are closed when it happens, whether they were made before, after, or at that time.
func TestSignal(t *testing.T) {
	open := func(s *Signal) bool {
		select {
		case <-s.Done():
			return false
		default:
			return true
		}
	}
	var s Signal
	if s.IsClosed() || !open(&s) {
		t.Error("it has happened before close")
	}
	before := s.Done()
	s.Close()
	<-before
	if !s.IsClosed() || open(&s) {
		t.Error("it has not happened after close")
	}
	var unwatched Signal
	unwatched.Close()
	if !unwatched.IsClosed() || open(&unwatched) {
		t.Error("without a channel it has not happened after close")
	}
	for range 100 {
		var s Signal
		var wg sync.WaitGroup
		wg.Go(s.Close)
		for range 3 {
			wg.Go(func() { <-s.Done() })
		}
		wg.Wait()
	}
}
