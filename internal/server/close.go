package server

import (
	"context"
	"fmt"
	"time"
)

// This file closes a Server, and counts the work that closing it waits for.

const (
	// TombstoneTTL is how long a tombstone keeps late copies of an abandoned request from being granted.
	TombstoneTTL = time.Minute
	// CloseTimeout bounds how long Close waits, and how long cleanups are retried after it was called.
	CloseTimeout = 3 * time.Second
)

// BeginClose notes that the keeper is being closed. No work begins any more unless it releases something. It reports whether this is its first
// call.
func (s *Server) BeginClose() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.closed
	s.closed = true
	if first {
		s.closeBy = time.Now().Add(CloseTimeout)
		s.ended = make(chan struct{})
	}
	return first
}

// EndWaits ends Closing, and the calls that callers send in their own goroutines.
func (s *Server) EndWaits() {
	s.cancel()
	s.Transport.EndInline()
}

// ErrStillClosing is the error of Close if commands are still under way after CloseTimeout, and no cleanup is known to have failed.
var ErrStillClosing = fmt.Errorf("lockkeeper: the keeper is closed, but after %v commands are still on their way", CloseTimeout)

// Shutdown waits until all cleanups have ended and no command is under way, and ends the goroutines.
func (s *Server) Shutdown() {
	defer close(s.ended)
	s.mu.Lock()
	giveUp := time.AfterFunc(time.Until(s.closeBy), s.Transport.GiveUp)
	defer giveUp.Stop()
	for s.working > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
	s.withdraw()
	s.Subscriber.Close()
	s.Timers.Stop()
	s.Transport.Close()
}

// WaitShutdown waits until Shutdown has returned, or Close may wait no longer, and reports whether Shutdown has returned.
func (s *Server) WaitShutdown() bool {
	within, cancel := context.WithTimeout(context.Background(), s.UntilClosed())
	defer cancel()
	return WaitFor(within, s.ended)
}

// UntilClosed returns for how long Close may still wait. BeginClose must have been called.
func (s *Server) UntilClosed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.closeBy)
}

// IsClosed reports whether BeginClose was called.
func (s *Server) IsClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// RetryPause returns the pause before a cleanup sends again. After BeginClose it is short, because EndWaits may have ended the call before. last
// says that Close will have returned by the end of the pause.
func (s *Server) RetryPause(pause time.Duration) (_ time.Duration, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		pause = min(pause, CloseTimeout/4)
		last = !time.Now().Add(pause).Before(s.closeBy)
	}
	return pause, last
}

// BeginWork registers work that Close waits for. It returns false after Close, unless the work releases something.
func (s *Server) BeginWork(releases bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && !releases {
		return false
	}
	s.working++
	return true
}

// EndWork ends work that BeginWork has registered.
func (s *Server) EndWork() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.working--; s.working == 0 {
		s.idle.Broadcast()
	}
}
