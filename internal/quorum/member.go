package quorum

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// memberState is how a server stands to a lease.
type memberState int

const (
	memberAsking  memberState = iota // it was asked for the lease, or is about to be, and has not answered
	memberGranted                    // it granted the lease. The part may be lost by now
	memberRaising                    // it granted the lease, and was asked to raise its fence
	memberFailed                     // it did not grant the lease, or its grant does not count
)

// member is one server of a lease. It is guarded by Lease.mu.
type member struct {
	state   memberState
	err     error         // why it failed
	askedAt time.Time     // when the server was last asked for the lease
	asked   chan struct{} // closed when the last request has ended; nil: there was none
	stop    func()        // gives this request up

	part       *keeper.Lease   // the last lease that was granted, perhaps lost by now; nil: none, or it does not count
	fenceFloor int64           // the server gives only larger fences, except to the part, which may have this one; 0: not known
	retryAfter time.Duration   // if it refused: when the lease in the way expires at the latest; 0: not known
	inDoubt    bool            // the server may have, or may still grant, a lease other than part
	cleanup    *keeper.Cleanup // releases what is in doubt, once the whole lease or the keeper has ended
}

func (s memberState) String() string {
	return [...]string{"memberAsking", "memberGranted", "memberRaising", "memberFailed"}[s]
}

// The next four functions are the events of a member, and enter its states. If an event cannot come in the state, they change nothing and report
// false; ask can always come. README.md has the table.

// ask notes that the server is asked for the lease. answered is closed when the request has ended.
func (s *member) ask(answered chan struct{}) {
	s.state, s.askedAt, s.asked, s.fenceFloor = memberAsking, time.Now(), answered, 0
}

// answer notes the server's answer.
func (s *member) answer(p keeper.Part) (possible bool) {
	if s.state != memberAsking {
		return false
	}
	s.state, s.part, s.retryAfter, s.err, s.inDoubt, s.cleanup = memberGranted, p.Lease, p.RetryAfter, nil, p.InDoubt, p.Cleanup
	if p.Lease == nil {
		s.state, s.err = memberFailed, server.WithoutName(p.Err)
	}
	return true
}

// raise notes that the server is asked to raise its fence.
func (s *member) raise() (possible bool) {
	if s.state != memberGranted {
		return false
	}
	s.state = memberRaising
	return true
}

// raised notes that the server has raised its fence, or why it has not.
func (s *member) raised(err error) (possible bool) {
	switch {
	case s.state == memberAsking: // the part has expired meanwhile, and the server has been asked again
	case s.state != memberRaising:
		return false
	case err == nil:
		s.state = memberGranted
	default:
		s.state, s.err = memberFailed, err
	}
	return true
}

// granted reports whether the server has granted the lease, as far as is known.
func (s *member) granted() bool { return s.state == memberGranted || s.state == memberRaising }

// live reports whether the server has granted the lease and its part is held.
func (s *member) live(now time.Time) bool {
	if !s.granted() {
		return false
	}
	deadline, err := s.part.State()
	return err == nil && now.Before(deadline)
}

// currentCleanup returns what releases the lease at the server; nil: nothing was there, or its release has not begun.
func (s *member) currentCleanup() *keeper.Cleanup {
	if s.cleanup == nil && s.part != nil {
		return s.part.Cleanup()
	}
	return s.cleanup
}

// ask asks a server for the lease, unless the lease has ended. While the lease is held, a late answer is as good as any. After its end,
// stopAsking gives up the request when ServerTimeout has passed.
func (u *Lease) ask(i int) {
	u.mu.Lock()
	if u.state.ended() {
		u.mu.Unlock()
		return
	}
	s, asked := &u.members[i], make(chan struct{})
	inDoubt := s.inDoubt || s.part != nil && s.part.Snapshot().InDoubt() // the part is lost by now
	s.ask(asked)
	u.mu.Unlock()
	stop := u.lock.locks[i].AskPart(u.token, u.since, u, inDoubt, func(p keeper.Part) {
		u.answered(i, p)
		close(asked)
	})
	u.mu.Lock()
	s.stop = stop
	stopped := u.stopped
	u.mu.Unlock()
	if stopped {
		stop()
	}
}

// stopAsking gives up the unanswered requests of a lease that has ended.
func (u *Lease) stopAsking() {
	u.mu.Lock()
	u.stopped = true
	var stops []func()
	for i := range u.members {
		if s := &u.members[i]; s.state == memberAsking && s.stop != nil {
			stops = append(stops, s.stop)
		}
	}
	u.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// answered handles a server's answer to a request, or to an adoption: a part, or why there is none.
//
// What a failed request may have left at the server is not released before the lease has ended, because until then the server may be asked again
// with the same token: a cleanup would release the new grant, or its tombstone would prevent it.
func (u *Lease) answered(i int, p keeper.Part) {
	part := p.Lease
	u.mu.Lock()
	s := &u.members[i]
	if !s.answer(p) {
		state := s.state
		u.mu.Unlock()
		u.logBug(state.String(), "answer")
		if part != nil {
			part.Detach() // a part that is known has the same token, and must stay
		}
		return
	}
	ended, keep, ttl := u.state.ended(), u.keepsPartsLocked(), u.ttl
	u.mu.Unlock()
	switch {
	case part == nil:
		u.raiseFences()
	case !ended:
		if ttl > 0 {
			part.SetTTL(ttl)
		}
		u.raiseFences()
	case keep:
		part.Detach()
	default:
		part.Abandon() // too late
	}
	if ended {
		u.cleanUp()
	}
	u.notify()
}

// cleanUp releases what is in doubt at the servers, once the lease has ended.
func (u *Lease) cleanUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keepsPartsLocked() {
		return
	}
	for i, l := range u.lock.locks {
		if s := &u.members[i]; s.inDoubt && s.state != memberAsking && s.part == nil && s.cleanup == nil {
			s.cleanup = l.CleanUp(u.token, u, time.Now().Add(max(u.lock.spec.TTL, u.ttl)))
		}
	}
}

// answersLocked is what each server answered last; nil: it agrees.
func (u *Lease) answersLocked() []error {
	answers := make([]error, len(u.members))
	for i := range u.members {
		switch s := &u.members[i]; {
		case s.state == memberAsking, s.state == memberRaising && time.Since(s.askedAt) >= u.lock.spec.ServerTimeout:
			answers[i] = server.ErrNoAnswer
		case s.state == memberFailed:
			answers[i] = s.err
		default:
			_, err := s.part.State()
			answers[i] = server.WithoutName(err)
		}
	}
	return answers
}

// partsLocked is the parts at all servers, including those that have ended.
func (u *Lease) partsLocked() []*keeper.Lease {
	var list []*keeper.Lease
	for i := range u.members {
		if part := u.members[i].part; part != nil {
			list = append(list, part)
		}
	}
	return list
}

// grantedParts is the part of each server; nil: it has granted none.
func (u *Lease) grantedParts() []*keeper.Lease {
	u.mu.Lock()
	defer u.mu.Unlock()
	parts := make([]*keeper.Lease, len(u.members))
	for i := range u.members {
		if s := &u.members[i]; s.granted() {
			parts[i] = s.part
		}
	}
	return parts
}

// onMajority calls do with each server, all concurrently. It returns when a majority has succeeded or all have ended: how many succeeded, and the
// answer of each server. If done is false, the server had nothing to do and keeps its answer.
func (u *Lease) onMajority(do func(i int) (done bool, err error)) (succeeded int, answers []error) {
	u.mu.Lock()
	answers = u.answersLocked()
	type result struct {
		i    int
		done bool
		err  error
	}
	results := make(chan result, len(u.members))
	for i := range u.members {
		go func() {
			done, err := do(i)
			results <- result{i, done, err}
		}()
	}
	u.mu.Unlock()
	for n := len(answers); n > 0 && succeeded < u.lock.need; n-- {
		r := <-results
		if !r.done {
			continue
		}
		if answers[r.i] = server.WithoutName(r.err); r.err == nil {
			succeeded++
		}
	}
	return succeeded, answers
}

// extendParts extends each part that was granted. A part that is granted later gets the ttl from answered.
func (u *Lease) extendParts(ttl time.Duration, extend func(part *keeper.Lease) error) (succeeded int, answers []error) {
	u.mu.Lock()
	before := u.ttl
	longest := max(before, ttl)
	u.ttl = longest
	u.mu.Unlock()
	parts := u.grantedParts()
	succeeded, answers = u.onMajority(func(i int) (bool, error) {
		if parts[i] == nil {
			return false, nil
		}
		return true, extend(parts[i])
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	if succeeded >= u.lock.need {
		u.reportedDeadline = u.deadlineLocked()
	} else if u.ttl == longest {
		u.ttl = before
	}
	return succeeded, answers
}

// releaseParts releases the parts, and returns how many servers have nothing of the lease any more, and the answer of each. It waits until these
// are a majority or all servers have answered, but no longer than ctx, nor than the Close of a keeper. If ctx has ended before, it waits for
// keeper.CancelGrace.
func (u *Lease) releaseParts(ctx context.Context) (succeeded int, answers []error) {
	if ctx.Err() != nil {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), keeper.CancelGrace)
		defer cancel()
		ctx = within
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.mu.Lock()
	u.stopReleasing = cancel
	u.mu.Unlock()
	cleanups, errs := make([]*keeper.Cleanup, len(u.members)), make([]error, len(u.members))
	parts := u.grantedParts()
	for i, part := range parts { // sent here, so that no server waits for a goroutine to begin
		if part != nil {
			cleanups[i], errs[i] = part.StartRelease()
		}
	}
	return u.onMajority(func(i int) (bool, error) {
		if parts[i] == nil {
			return true, u.awaitNothing(ctx, i)
		}
		c, err := cleanups[i], errs[i]
		if c != nil && !server.WaitFor(ctx, c.Done()) {
			return true, server.ErrNoAnswer
		} else if c != nil {
			_, err = parts[i].ReleaseEnded(c)
		}
		return true, err
	})
}

// awaitNothing waits until a server without a part has nothing else of the lease, which has ended: its request was given up and has ended, and
// what this has left is released. An error says why that is not known.
func (u *Lease) awaitNothing(ctx context.Context, i int) error {
	u.mu.Lock()
	asked := u.members[i].asked
	u.mu.Unlock()
	if asked != nil && !server.WaitFor(ctx, asked) {
		return server.ErrNoAnswer
	}
	u.mu.Lock()
	c, err := u.members[i].currentCleanup(), u.members[i].err
	u.mu.Unlock()
	switch {
	case c == nil && errors.Is(err, server.ErrNotAcquired):
		return nil // another holder has the lock there
	case c == nil:
		return err // no request reached the server. Without an answer it does not count as released
	case !server.WaitFor(ctx, c.Done()):
		return server.ErrNoAnswer
	}
	return c.Failure()
}
