package share

import (
	"context"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/timers"
)

// shared is one lease of the server, and who is inside. It implements keeper.Observer.
type shared struct {
	Gate
	of       *name
	lock     *keeper.Lock
	permits  int           // of a semaphore; else 0
	lease    *keeper.Lease // set by grant
	timer    timers.Timer  // at the end of Linger
	released chan struct{} // closed when the server has nothing of the lease any more

	first     *Lease // of the caller to whom the server has granted the lease; only this one is watched for a leak. Set before it is used
	upgrading *Lease // the one inside that is being upgraded; guarded by the mutex of the name
}

// grant notes that the server has granted the lease.
func (s *shared) grant(h *keeper.Lease, linger time.Duration) {
	s.lease = h
	end := time.Now().Add(linger)
	if deadline, _ := h.State(); deadline.Before(end) {
		end = deadline
	}
	k := s.lock.Keeper()
	s.of.share(s, k.Started(), end.Sub(k.Started()))
	if !s.IsOpen() {
		return
	}
	s.timer.Handler = timers.Func(func(time.Time) { s.close() })
	k.Timers.Set(&s.timer, end)
	h.OnEnd(func(error) { s.close() })
}

// enter counts a caller as inside. It reports false if the lease is not shared any more, or somebody is inside and only one caller may be.
func (s *shared) enter() bool {
	if s.Enter() {
		return true
	}
	if !s.InTime() { // the timer is late: the process was frozen, or is busy
		s.close()
	}
	return false
}

// leave counts a caller as outside. inTime is what InTime has told the caller. It reports true if the caller must release the lease, because
// it is closed and nobody is inside any more.
func (s *shared) leave(inTime bool) (last bool) {
	n := s.of
	if !inTime {
		s.close()
	}
	if s.permits > 0 {
		return n.leave(s)
	}
	last = s.Leave()
	if n.waiting.Load() > 0 {
		n.wake()
	}
	return last
}

// close lets nobody enter any more. If nobody is inside, it releases the lease, in the background. It may be called on nil.
func (s *shared) close() {
	if s == nil {
		return
	}
	was, empty := s.Close()
	if !was {
		return
	}
	s.of.open.CompareAndSwap(s, nil)
	s.of.wake()
	if empty {
		s.over()
		_, _ = s.lease.StartRelease()
		s.CleanedUp()
	}
}

// release releases the lease, for the caller who was the last inside.
func (s *shared) release(ctx context.Context) error {
	s.over()
	defer s.CleanedUp()
	return s.lease.Release(ctx)
}

// over notes that nobody is inside any more, nor can enter.
func (s *shared) over() {
	s.lock.Keeper().Timers.Cancel(&s.timer)
	n := s.of
	n.mu.Lock()
	defer n.mu.Unlock()
	n.releasing[s] = struct{}{}
	n.idle = slices.DeleteFunc(n.idle, func(x *shared) bool { return x == s })
}

// CleanedUp implements keeper.Observer. If the lease was released and the server has nothing of it any more, it ends the waits of awaitReleases.
func (s *shared) CleanedUp() {
	n := s.of
	n.mu.Lock()
	_, ended := n.releasing[s]
	if ended {
		c := s.lease.Cleanup() // nil: there was nothing to release
		ended = c == nil || c.Ended()
	}
	if ended {
		delete(n.releasing, s)
	}
	n.mu.Unlock()
	if ended {
		close(s.released)
		n.unuse()
	}
}

// LeaseEvent implements keeper.Observer. The callers report the release, each of what it was granted.
func (s *shared) LeaseEvent(what keeper.EventType) (own bool) {
	if what == keeper.Refused {
		s.close()
	}
	return what == keeper.Released
}
