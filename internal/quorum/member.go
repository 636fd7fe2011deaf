package quorum

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lease"
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
	err     error     // why it failed
	askedAt time.Time // when the server was last asked for the lease
	settled bool      // the last request is answered or given up, and its cleanup, if any, has begun

	request    *keeper.TokenRequest // the last one; nil: of an adopted lease, or the keeper was closed
	part       *lease.Lease         // the last lease that was granted, perhaps lost by now; nil: none, or it does not count
	fenceFloor int64                // the server gives only fences larger than this, or equal for the part itself; 0: not known
	retryAfter time.Duration        // if it refused: when the lease in the way expires at the latest; 0: not known
	inDoubt    bool                 // the server may have, or still grant, a lease that part is not
	cleanup    *lease.Cleanup       // releases what is in doubt, once the whole lease has ended
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

// currentCleanup is what releases what there is at the server; nil: nothing was there, or nothing has begun to release it.
func (s *member) currentCleanup() *lease.Cleanup {
	switch {
	case s.cleanup != nil:
		return s.cleanup
	case s.part != nil:
		return s.part.Cleanup()
	case s.request != nil:
		return s.request.Cleanup()
	}
	return nil
}

// ask sends a server a request for the lease, unless that has ended meanwhile.
func (u *Lease) ask(i int) {
	u.mu.Lock()
	if u.state.ended() {
		u.mu.Unlock()
		return
	}
	s := &u.members[i]
	inDoubt := s.inDoubt || s.part != nil && s.part.Snapshot().InDoubt() // the part is lost by now
	r := u.lock.locks[i].NewTokenRequest(u.token, u.since, u, inDoubt)
	s.state, s.askedAt, s.request, s.fenceFloor, s.settled = memberAsking, time.Now(), r, 0, r == nil
	if r == nil {
		s.state, s.err = memberFailed, server.ErrClosed
	}
	u.mu.Unlock()
	if r == nil {
		u.notify()
		return
	}
	r.Send(i, u)
}

// TokenAnswered handles a server's answer to a request. It implements keeper.TokenReceiver.
func (u *Lease) TokenAnswered(i int, r *keeper.TokenRequest, reply keeper.TokenReply) {
	u.lock.spec.Keepers[i].Clock.Note(reply.ServerTime, reply.Sent)
	u.answered(i, r, reply.Lease, reply.RetryAfter, reply.Err)
}

// answered handles a server's answer to a request, or to an adoption, for which r is nil: a part, or why there is none. It does
// nothing if the request has been given up.
//
// What a failed request may have left at the server is not released before the lease has ended. The server is asked again with
// the same token until then: a cleanup would release what that is granted, or its tombstone would prevent it.
func (u *Lease) answered(i int, r *keeper.TokenRequest, part *lease.Lease, retryAfter time.Duration, err error) {
	u.mu.Lock()
	s := &u.members[i]
	if s.state != memberAsking || s.request != r {
		late := part != nil && r != nil && s.part != part && u.state.ended()
		u.mu.Unlock()
		if late {
			part.Abandon() // granted as the request was given up: onTimer has not found it
		}
		return
	}
	s.state, s.part, s.retryAfter, s.err = memberGranted, part, retryAfter, nil
	if part == nil {
		s.state, s.err = memberFailed, server.WithoutName(err)
	}
	ended, keep := u.state.ended(), u.keepsPartsLocked()
	failed := part == nil && r != nil
	if !ended && (failed && r.Drop(err) || part == nil && r == nil && !errors.Is(err, server.ErrLost)) {
		s.inDoubt = true // an adoption may fail although the server has the token
	}
	ttl := u.ttl
	u.mu.Unlock()
	if failed {
		r.Cancel(err) // nothing is left to end if it was dropped
	}
	switch {
	case part == nil || !ended:
		if part != nil && ttl > 0 {
			part.SetTTL(ttl)
		}
		u.raiseFences()
	case keep:
		part.Detach()
	default:
		part.Abandon() // too late
	}
	u.settle(i, r)
	u.notify()
}

// settle notes that a member's last request, which is r, is answered or given up.
func (u *Lease) settle(i int, r *keeper.TokenRequest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := &u.members[i]; s.request == r {
		s.settled = true
	}
}

// armTimer sets the timer of a lease that has ended to the time when the next unanswered request is given up.
func (u *Lease) armTimer() {
	u.mu.Lock()
	var next time.Time
	for i := range u.members {
		if s := &u.members[i]; s.unanswered() && (next.IsZero() || s.askedAt.Before(next)) {
			next = s.askedAt
		}
	}
	u.mu.Unlock()
	if !next.IsZero() {
		u.lock.spec.Keepers[0].Timers.Set(&u.timer, next.Add(u.lock.spec.ServerTimeout))
	}
}

// unanswered reports whether there is a request without an answer. An adoption ends by its own context.
func (s *member) unanswered() bool { return s.state == memberAsking && s.request != nil }

// onTimer gives up requests that were not answered within ServerTimeout, once the lease has ended. As long as it is held a late
// answer is as good as any.
func (u *Lease) onTimer(now time.Time) {
	type request struct {
		i int
		r *keeper.TokenRequest
	}
	var late []request
	u.mu.Lock()
	for i := range u.members {
		s := &u.members[i]
		if s.unanswered() && now.Sub(s.askedAt) >= u.lock.spec.ServerTimeout {
			late = append(late, request{i, s.request})
			s.state, s.part, s.err = memberFailed, nil, server.ErrNoAnswer
		}
	}
	u.mu.Unlock()
	for _, x := range late {
		x.r.Cancel(server.ErrNoAnswer)
		if part := x.r.Lease(); part != nil { // the answer has just arrived
			part.Abandon()
		}
		u.settle(x.i, x.r)
	}
	if len(late) > 0 {
		u.notify()
	}
	u.armTimer()
}

// cleanUp releases what is in doubt at the servers, once the lease has ended.
func (u *Lease) cleanUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keepsPartsLocked() {
		return
	}
	for i, l := range u.lock.locks {
		if s := &u.members[i]; s.inDoubt && !s.unanswered() && s.part == nil && s.cleanup == nil {
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
func (u *Lease) partsLocked() []*lease.Lease {
	var list []*lease.Lease
	for i := range u.members {
		if part := u.members[i].part; part != nil {
			list = append(list, part)
		}
	}
	return list
}

// onEveryPart calls do, which extends to ttl, with each part that was granted, all concurrently; one that is granted later gets the ttl
// from answered. It returns when a majority has succeeded or all have ended: how many succeeded, and the answer of each server.
func (u *Lease) onEveryPart(ttl time.Duration, do func(part *lease.Lease) error) (succeeded int, answers []error) {
	u.mu.Lock()
	before := u.ttl
	u.ttl = ttl
	answers = u.answersLocked()
	tasks := make(map[int]func() error, len(u.members))
	for i := range u.members {
		if s := &u.members[i]; s.granted() {
			part := s.part
			tasks[i] = func() error { return do(part) }
		}
	}
	u.mu.Unlock()
	type result struct {
		i   int
		err error
	}
	results := make(chan result, len(tasks))
	for i, task := range tasks {
		go func() { results <- result{i, task()} }()
	}
	for n := len(tasks); n > 0 && succeeded < u.lock.need; n-- {
		r := <-results
		if answers[r.i] = server.WithoutName(r.err); r.err == nil {
			succeeded++
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if succeeded >= u.lock.need {
		u.reportedDeadline = u.deadlineLocked()
	} else if u.ttl == ttl {
		u.ttl = before
	}
	return succeeded, answers
}

// cleanedUp reports whether a server without a part has nothing else of a lease that has ended either: whether its request is
// answered or given up, and what that left is released. An error says why that is not known.
func (s *member) cleanedUp() (ended bool, err error) {
	if !s.settled {
		return false, nil
	}
	c := s.currentCleanup()
	switch {
	case c == nil && errors.Is(s.err, server.ErrNotAcquired):
		return true, nil // another holder has the lock there
	case c == nil:
		return true, s.err // no request reached the server. Without an answer it does not count as released
	case !c.Ended():
		return false, nil
	}
	return true, c.Failure()
}

// partRelease is the release of a part.
type partRelease struct {
	part    *lease.Lease   // nil: the server has none
	cleanup *lease.Cleanup // nil: it has ended
	err     error          // if it has ended
}

// releaseParts releases the parts, and waits until a majority of the servers has nothing of the lease any more, until all have
// ended, until ctx ends, or for lease.CancelGrace if it has ended before, or until the Close of a keeper waits no longer. It returns
// how many succeeded, and the answer of each server.
func (u *Lease) releaseParts(ctx context.Context) (succeeded int, answers []error) {
	u.mu.Lock()
	answers = u.answersLocked()
	releases := make([]partRelease, len(u.members))
	for i := range u.members {
		if s := &u.members[i]; s.granted() {
			releases[i].part = s.part
		}
	}
	u.mu.Unlock()
	for i := range releases {
		if r := &releases[i]; r.part != nil {
			r.cleanup, r.err = r.part.StartRelease()
		}
	}
	over := ctx.Done()
	var grace <-chan time.Time
	if ctx.Err() != nil {
		over, grace = nil, time.After(lease.CancelGrace)
	}
	for waiting := true; ; {
		succeeded = 0
		pending := false
		for i := range releases {
			switch ended, err := u.memberReleased(i, &releases[i]); {
			case ended:
				if answers[i] = server.WithoutName(err); err == nil {
					succeeded++
				}
			case waiting:
				pending = true
			default:
				answers[i] = server.ErrNoAnswer
			}
		}
		if succeeded >= u.lock.need || !pending {
			return succeeded, answers
		}
		u.mu.Lock()
		closing := u.keeperClosed // just now, or the lease would have ended before
		u.mu.Unlock()
		if closing && grace == nil {
			grace = time.After(server.CloseTimeout)
		}
		select {
		case <-u.changed:
		case <-over:
			waiting = false
		case <-grace:
			waiting = false
		}
	}
}

// memberReleased reports whether the release at a server has ended, and how.
func (u *Lease) memberReleased(i int, r *partRelease) (ended bool, err error) {
	switch {
	case r.part == nil:
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.members[i].cleanedUp()
	case r.cleanup == nil:
		return true, r.err
	}
	return r.part.ReleaseEnded(r.cleanup)
}
