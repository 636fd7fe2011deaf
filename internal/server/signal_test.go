package server

import (
	"sync"
	"testing"
)

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
