package engine

import (
	"sync"
	"testing"
)

// TestSignal checks that channels of a signal are closed when it happens, whether they were made before, after, or at that time.
func TestSignal(t *testing.T) {
	open := func(s *signal) bool {
		select {
		case <-s.done():
			return false
		default:
			return true
		}
	}
	var s signal
	if s.isClosed() || !open(&s) {
		t.Error("it has happened before close")
	}
	before := s.done()
	s.close()
	<-before
	if !s.isClosed() || open(&s) {
		t.Error("it has not happened after close")
	}
	var unwatched signal
	unwatched.close()
	if !unwatched.isClosed() || open(&unwatched) {
		t.Error("without a channel it has not happened after close")
	}
	for range 100 {
		var s signal
		var wg sync.WaitGroup
		wg.Go(s.close)
		for range 3 {
			wg.Go(func() { <-s.done() })
		}
		wg.Wait()
	}
}
