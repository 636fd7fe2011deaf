package server

import "sync"

// Signal is an event that happens once. It makes a channel only if somebody has to wait for it. The zero signal has not happened.
// It is safe for concurrent use.
type Signal struct {
	mu     sync.Mutex // guards the fields below
	closed bool
	ch     chan struct{} // nil until Done is called
}

// closedChannel is the channel of signals that happened before anybody waited for them.
var closedChannel = func() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// Close makes the signal happen. It must be called once.
func (s *Signal) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.ch != nil {
		close(s.ch)
	}
}

// IsClosed reports whether the signal has happened.
func (s *Signal) IsClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Done returns a channel that is closed when the signal happens.
func (s *Signal) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		if s.closed {
			return closedChannel
		}
		s.ch = make(chan struct{})
	}
	return s.ch
}
