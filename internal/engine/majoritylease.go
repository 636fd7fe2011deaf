package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// MajorityLease is a lease on a majority of servers, from the first question on. At each server that granted it, it has a
// Hold, which renews itself and knows when it is lost; the whole is lost when no majority of them is left. A server
// that did not agree at first, or has lost the lease, is asked again while the others agree.
type MajorityLease struct {
	lifecycle
	m       *Majority
	token   string
	began   time.Time     // before the first request left
	changed chan struct{} // something has happened at a seat; capacity 1
	timer   timers.Timer

	// Guarded by the tenure's mu, which may be held when that of a Hold is taken, and not the other way round.
	members          []member
	fence            int64     // the largest of the first majority's; 0: not yet known
	held             bool      // it was handed out
	adopts           bool      // it was made of a token; what does not come about stays as it was
	reportedDeadline time.Time // the deadline when the observer was last told of a renewal
	lastDeadline     time.Time // the last deadline that is known
	ttl              int64     // ms that Extend has set; 0: it has not
}

// member is the lease at one server.
type member struct {
	request      *request      // for it, if one is under way
	last         *request      // the last one, under way or not
	pending      bool          // a question is under way
	settled      chan struct{} // closed when it is so no more, and what it brought about in vain is on its way back
	askedAt      time.Time     // when it left
	lease        *Lease        // once it is granted; perhaps over
	next         int64         // the server's fences go on from here, as far as is known: it counts if that is the lease's or more
	raisingFence bool          // the question for that is under way
	err          error         // why it is not granted
	retryAfter   time.Duration
	inDoubt      bool     // the server may have something of the lease, or yet take it, of which no hold knows
	leaseCleanup *Cleanup // gives that back, once the lease has ended
}

// live says whether there is a lease at this server.
func (s *member) live(now time.Time) bool {
	if s.lease == nil || s.err != nil {
		return false
	}
	s.lease.mu.Lock()
	defer s.lease.mu.Unlock()
	return s.lease.err == nil && now.Before(s.lease.deadline)
}

func (m *Majority) newLease(token string) *MajorityLease {
	u := &MajorityLease{m: m, token: token, began: time.Now(), changed: make(chan struct{}, 1), members: make([]member, len(m.locks))}
	u.begin(u)
	u.timer.Fire = u.onTimer
	return u
}

// propose begins an attempt: it asks every server.
func (m *Majority) propose() *MajorityLease {
	u := m.newLease(m.newToken())
	for i := range u.members {
		u.ask(i)
	}
	return u
}

// ask asks one server for the lease.
func (u *MajorityLease) ask(i int) {
	w := u.m.locks[i].proposal(u)
	u.mu.Lock()
	s := &u.members[i]
	s.askedAt = time.Now()
	s.request, s.last, s.pending, s.next, s.raisingFence = w, w, w != nil, 0, false
	s.settled = make(chan struct{})
	loose := s.inDoubt
	if w == nil {
		s.err = ErrClosed
		close(s.settled)
	}
	u.mu.Unlock()
	if w == nil {
		u.notify()
		return
	}
	if loose {
		w.copySent(time.Now()) // one before it, with the same token
		w.copyDone(transport.InDoubt)
	}
	w.propose(true, func(w *request, a acquireReply, sent time.Time, err error) {
		u.m.noteClock(i, a.now, sent)
		h, ended := w.result()
		if h == nil && ended == nil {
			ended = err
		}
		u.answered(i, w, h, duration(max(a.retryAfter, 0)), ended)
	})
}

// cleanUp gives back what is loose, when the lease has ended.
func (u *MajorityLease) cleanUp() {
	for i, l := range u.m.locks {
		var d *Cleanup
		u.mu.Lock()
		if s := &u.members[i]; s.inDoubt && s.request == nil && s.lease == nil && s.leaseCleanup == nil {
			d = l.newCleanup(u.token, true, time.Now().Add(max(u.m.spec.TTL, duration(u.ttl))))
			s.leaseCleanup = d
		}
		u.mu.Unlock()
		if d != nil {
			d.send(l.e.transport.Send)
		}
	}
}

func (u *MajorityLease) notify() {
	select {
	case u.changed <- struct{}{}:
	default:
	}
}

// answered takes a server's answer to a request, unless that was given up meanwhile: a lease, or why there is none.
//
// What there may be at the server of a request that has brought nothing stays until the lease has ended, for the server is
// asked again with the same token: what is granted then, something that is on its way back would take away again, and a
// token that is buried could not be granted.
func (u *MajorityLease) answered(i int, w *request, h *Lease, left time.Duration, err error) {
	u.mu.Lock()
	s := &u.members[i]
	if s.request != w {
		u.mu.Unlock()
		return
	}
	s.request, s.pending, s.lease, s.retryAfter, s.err = nil, false, h, left, WithoutName(err)
	quits := h == nil && w != nil
	if quits && u.err == nil && w.stop(err) {
		s.inDoubt = true
	}
	over := u.err != nil
	settled, ttl := s.settled, u.ttl
	adopts := u.adopts && !u.held
	u.mu.Unlock()
	if quits {
		w.leave(err) // does nothing if it has quit
		w.abandoned()
	}
	switch {
	case h == nil || !over:
		if h != nil && ttl > 0 {
			h.setTTL(ttl)
		}
		u.step()
	case adopts:
		h.replaced()
	default:
		h.abandon() // it is too late
	}
	close(settled)
	u.notify()
}

// settleFenceLocked says what the fence of the lease is, as soon as a majority has granted it and until it is handed out: the
// largest of a majority's. If one of these has dropped out, it may become a larger one; then it says yes. Every majority
// before shares a server with this one, which has given it a larger fence than that one's.
func (u *MajorityLease) settleFenceLocked(now time.Time) bool {
	if u.held {
		return false
	}
	var fences []int64
	for i := range u.members {
		if s := &u.members[i]; s.live(now) {
			fences = append(fences, int64(s.lease.fence))
		}
	}
	if len(fences) < u.m.need {
		return false
	}
	slices.Sort(fences)
	before := u.fence
	u.fence = max(u.fence, fences[u.m.need-1])
	return u.fence > before
}

// step goes on with what has come to be known: when a majority has granted the lease, those of which it is not sure that
// their fences go on from the lease's are asked to see to it.
func (u *MajorityLease) step() {
	now := time.Now()
	u.mu.Lock()
	if u.err != nil {
		u.mu.Unlock()
		return
	}
	u.settleFenceLocked(now)
	var affirm []int
	holds := make([]*Lease, len(u.members))
	for i := range u.members {
		s := &u.members[i]
		if u.fence == 0 || s.raisingFence || !s.live(now) {
			continue
		}
		if u.m.spec.MinUptime == 0 {
			s.next = max(s.next, int64(s.lease.fence))
		}
		if s.next < u.fence {
			s.raisingFence = true
			holds[i] = s.lease
			affirm = append(affirm, i)
		}
	}
	fence := u.fence
	u.mu.Unlock()
	for _, i := range affirm {
		holds[i].raiseFence(fence, u.m.spec.MinUptime, func(err error) { u.fenceRaised(i, holds[i], fence, err) })
	}
}

// fenceRaised takes a server's second word, that its fences go on from this one. Without it the lease there does not count, and
// the server is asked again.
func (u *MajorityLease) fenceRaised(i int, h *Lease, fence int64, err error) {
	u.mu.Lock()
	s := &u.members[i]
	if s.lease != h {
		u.mu.Unlock()
		return
	}
	s.raisingFence, s.err = false, err
	adopts, over := u.adopts && !u.held, u.err != nil
	if err == nil {
		s.next = max(s.next, fence)
	} else if !over && !adopts {
		s.lease, s.inDoubt = nil, true // as in answered
	}
	u.mu.Unlock()
	switch {
	case err == nil:
		u.step()
	case over && !adopts:
		h.abandon()
	default:
		h.replaced()
	}
	u.notify()
}

// tally is how an attempt stands: at how many servers the lease is sure, granted but not sure, refused because another
// has it, and asked for without an answer yet.
type tally struct{ sure, granted, refused, pending int }

func (u *MajorityLease) tallyLocked(now time.Time) (t tally) {
	for i := range u.members {
		switch s := &u.members[i]; {
		case s.pending:
			t.pending++
		case errors.Is(s.err, ErrNotAcquired):
			t.refused++
		case !s.live(now):
		case u.fence > 0 && s.next >= u.fence:
			t.sure++
		default:
			t.granted++
		}
	}
	return t
}

// hopeless says whether no majority can come about any more. If it is not others that are in the way, the answers that
// are missing are waited for, so as to know what is.
func (t tally) hopeless(need int) bool {
	if t.sure+t.granted+t.pending >= need {
		return false
	}
	return t.pending == 0 || t.refused > 0 && t.sure+t.granted+t.refused >= need
}

// await returns when an attempt is decided, and whether the lease is there. It waits for no server longer than the
// limit, once for the lease and once for its second word.
func (u *MajorityLease) await(ctx context.Context) bool {
	limit := time.NewTimer(u.m.spec.ServerTimeout)
	defer limit.Stop()
	extended := false
	for {
		u.mu.Lock()
		now := time.Now()
		larger := u.settleFenceLocked(now)
		t := u.tallyLocked(now)
		granted := u.fence > 0
		if ctx.Err() == nil && t.sure >= u.m.need {
			u.held = true
			u.reportedDeadline = u.deadlineLocked()
			u.mu.Unlock()
			u.register()
			return true
		}
		u.mu.Unlock()
		if larger {
			u.step()
		}
		if t.hopeless(u.m.need) || ctx.Err() != nil {
			return false
		}
		if granted && !extended {
			extended = true
			limit.Reset(u.m.spec.ServerTimeout)
		}
		select {
		case <-u.changed:
		case <-ctx.Done():
		case <-limit.C:
			return false
		}
	}
}

// register makes the closing of any keeper end the lease, also of one whose server has no part in it just now.
func (u *MajorityLease) register() {
	closed := false
	for _, l := range u.m.locks {
		closed = !l.e.addMajority(u) || closed
	}
	u.mu.Lock()
	over := u.err != nil
	u.mu.Unlock()
	switch {
	case over:
		u.unregister()
	case closed:
		u.keeperClosed()
	}
}

// unregister is the opposite of enlist, once the lease has ended.
func (u *MajorityLease) unregister() {
	for _, l := range u.m.locks {
		l.e.dropMajority(u)
	}
}

// keeperClosed releases the lease: there is nobody any more who would renew it at each server.
func (u *MajorityLease) keeperClosed() {
	if u.giveUp(u.m.fail(nil, ErrReleased)) {
		u.observe(Released, nil)
	}
}

// wait sees to it that requests which are not answered are given up when their time is over, once the lease has ended.
func (u *MajorityLease) wait() {
	u.mu.Lock()
	var next time.Time
	for i := range u.members {
		if s := &u.members[i]; s.request != nil && (next.IsZero() || s.askedAt.Before(next)) {
			next = s.askedAt
		}
	}
	u.mu.Unlock()
	if !next.IsZero() {
		u.m.locks[0].e.timers.Set(&u.timer, next.Add(u.m.spec.ServerTimeout))
	}
}

// onTimer gives up the requests that were not answered in time, once the lease has ended: what they have brought about is
// undone. As long as it is held they are waited for, since a late answer is as good as any.
func (u *MajorityLease) onTimer(now time.Time) {
	var late []member
	u.mu.Lock()
	for i := range u.members {
		s := &u.members[i]
		if s.request != nil && now.Sub(s.askedAt) >= u.m.spec.ServerTimeout {
			late = append(late, *s)
			s.request, s.pending, s.lease, s.err = nil, false, nil, ErrNoAnswer
		}
	}
	u.mu.Unlock()
	for _, s := range late {
		s.request.leave(ErrNoAnswer)
		if h, _ := s.request.result(); h != nil { // the answer has come just now
			h.abandon()
		}
		close(s.settled)
	}
	u.wait()
}

// answersLocked is what each server has said last; nil: it agrees.
func (u *MajorityLease) answersLocked() []error {
	answers := make([]error, len(u.members))
	for i := range u.members {
		s := &u.members[i]
		switch {
		case s.pending, s.raisingFence && time.Since(s.askedAt) >= u.m.spec.ServerTimeout:
			answers[i] = ErrNoAnswer
		case s.err != nil:
			answers[i] = s.err
		case s.lease != nil:
			s.lease.mu.Lock()
			answers[i] = WithoutName(s.lease.err)
			s.lease.mu.Unlock()
		}
	}
	return answers
}

// holdsLocked is the leases at the servers, those that are over included.
func (u *MajorityLease) holdsLocked() []*Lease {
	var list []*Lease
	for i := range u.members {
		if h := u.members[i].lease; h != nil {
			list = append(list, h)
		}
	}
	return list
}

// giveUp ends the lease, and gives back in the background what there is of it. It says whether it did.
func (u *MajorityLease) giveUp(err error) bool {
	u.mu.Lock()
	if u.err != nil {
		u.mu.Unlock()
		return false
	}
	u.deadlineLocked()
	cancel := u.endLocked(err)
	holds, keep := u.holdsLocked(), u.adopts && !u.held
	u.mu.Unlock()
	cancel()
	u.unregister()
	for _, h := range holds {
		if keep {
			h.replaced()
		} else {
			h.abandon()
		}
	}
	u.onTimer(time.Now())
	u.cleanUp()
	return true
}

// settle waits until what this attempt, and those before it, had is given back, but not longer than the limit in all. What
// is not given back then it returns, by server, and adds to what was left before.
func (u *MajorityLease) settle(ctx context.Context, left [][]*Cleanup) [][]*Cleanup {
	limit, cancel := context.WithTimeout(ctx, u.m.spec.ServerTimeout)
	defer cancel()
	rest := make([][]*Cleanup, len(u.members))
	for i := range u.members {
		u.mu.Lock()
		s := u.members[i]
		u.mu.Unlock()
		var list []*Cleanup
		if left != nil {
			list = left[i]
		}
		if d := s.cleanup(); d != nil {
			list = append(list, d)
		}
		for _, d := range list {
			if !waitFor(limit, d.finished) {
				rest[i] = append(rest[i], d)
			}
		}
	}
	return rest
}

// cleanup is that of what was asked for here, if there was something to give back.
func (s *member) cleanup() *Cleanup {
	switch {
	case s.leaseCleanup != nil:
		return s.leaseCleanup
	case s.lease != nil:
		return s.lease.currentCleanup()
	case s.last != nil:
		s.last.mu.Lock()
		defer s.last.mu.Unlock()
		return s.last.cleanup
	}
	return nil
}

// memberEvent is told what has happened to the lease at one server.
func (u *MajorityLease) memberEvent(h *Lease, what EventType) {
	switch what {
	case Renewed:
		u.renewed()
	case Lost:
		u.check()
	}
	u.notify()
}

// check loses the lease if no majority is left.
func (u *MajorityLease) check() {
	u.mu.Lock()
	if !u.held || u.err != nil || u.tallyLocked(time.Now()).sure >= u.m.need {
		u.mu.Unlock()
		return
	}
	answers := u.answersLocked()
	u.mu.Unlock()
	err := u.m.fail(answers, ErrLost, errMinority)
	if u.giveUp(err) { // what is left of it keeps nobody out
		u.observe(Lost, err)
	}
}

// renewed tells of a renewal when a majority has had one, and asks the servers again at which there is no lease.
func (u *MajorityLease) renewed() {
	now := time.Now()
	spec := u.m.spec
	u.mu.Lock()
	if !u.held || u.err != nil {
		u.mu.Unlock()
		return
	}
	deadline := u.deadlineLocked()
	tell := deadline.Sub(u.reportedDeadline) > deadline.Sub(now)/16 // and not each server's
	if tell {
		u.reportedDeadline = deadline
	}
	var vacant []int
	for i := range u.members {
		s := &u.members[i]
		if !s.pending && !s.live(now) && now.Sub(s.askedAt) >= spec.TTL/4 && // a renewal may come a little before its time
			(spec.MaxLifetime == 0 || now.Sub(u.began)+spec.TTL <= spec.MaxLifetime) {
			s.askedAt = now // whoever comes first does it
			vacant = append(vacant, i)
		}
	}
	u.mu.Unlock()
	for _, i := range vacant {
		u.ask(i)
	}
	if tell {
		u.observe(Renewed, nil)
	}
}

func (u *MajorityLease) observe(what EventType, err error) {
	first := u.m.locks[0]
	ev := first.event(what)
	ev.Token, ev.Fence, ev.Duration, ev.Err = u.token, u.Fence(), time.Since(u.began), err
	first.e.observe(ev)
}

// deadlineLocked is until when a majority is certain: as many of the leases as are needed last until then at least.
func (u *MajorityLease) deadlineLocked() time.Time {
	var ends []time.Time
	for i := range u.members {
		if s := &u.members[i]; u.fence > 0 && s.next >= u.fence && s.lease != nil && s.err == nil {
			s.lease.mu.Lock()
			if s.lease.err == nil {
				ends = append(ends, s.lease.deadline)
			}
			s.lease.mu.Unlock()
		}
	}
	if len(ends) >= u.m.need {
		slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
		u.lastDeadline = ends[u.m.need-1]
	}
	return u.lastDeadline
}

// Deadline is until when the lease is believed if it is not renewed.
func (u *MajorityLease) Deadline() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err != nil {
		return u.lastDeadline
	}
	return u.deadlineLocked()
}

// checkDeadline loses a lease whose deadline has passed unnoticed.
func (u *MajorityLease) CheckDeadline() {
	u.mu.Lock()
	if u.err != nil || !u.held {
		u.mu.Unlock()
		return
	}
	var holds []*Lease
	if u.tallyLocked(time.Now()).sure < u.m.need {
		holds = u.holdsLocked()
	}
	u.mu.Unlock()
	for _, h := range holds {
		h.CheckDeadline() // its loss is told to us
	}
	if holds != nil {
		u.check()
	}
}

// Token, Fence and Name say what the lease is.
func (u *MajorityLease) Token() string { return u.token }

// Fence is the fencing token.
func (u *MajorityLease) Fence() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return uint64(u.fence)
}

// Name is what is locked.
func (u *MajorityLease) Name() string { return u.m.spec.Name }

// outcome is what became of something at one server.
type outcome struct {
	member int
	err    error
}

// onEveryMember does something with each lease that there is and, if it is not nil, something else at the other servers, all
// at once, and returns when a majority has succeeded, or all have ended. Then it says how many have succeeded, and why
// the others have not.
func (u *MajorityLease) onEveryMember(do func(h *Lease) error, other func(i int) error) (yes int, answers []error) {
	u.mu.Lock()
	answers = u.answersLocked()
	tasks := make(map[int]func() error, len(u.members))
	for i := range u.members {
		if s := &u.members[i]; s.lease != nil && s.err == nil && !s.pending {
			h := s.lease
			tasks[i] = func() error { return do(h) }
		} else if other != nil {
			tasks[i] = func() error { return other(i) }
		}
	}
	u.mu.Unlock()
	done := make(chan outcome, len(tasks))
	for i, task := range tasks {
		go func() { done <- outcome{i, task()} }()
	}
	for n := len(tasks); n > 0 && yes < u.m.need; n-- {
		o := <-done
		if answers[o.member] = WithoutName(o.err); o.err == nil {
			yes++
		}
	}
	return yes, answers
}

// Release gives the lease back. See Lease.Release in package lockkeeper.
func (u *MajorityLease) Release(ctx context.Context) error {
	u.CheckDeadline()
	u.mu.Lock()
	if err := u.err; err != nil {
		holds := u.holdsLocked()
		u.mu.Unlock()
		for _, h := range holds {
			h.abandon() // the holder has now stopped as well
		}
		if errors.Is(err, ErrReleased) {
			return nil
		}
		return err
	}
	cancel := u.endLocked(u.m.fail(nil, ErrReleased))
	u.mu.Unlock()
	cancel()
	u.unregister()
	u.onTimer(time.Now())
	u.cleanUp()
	yes, answers := u.onEveryMember(func(h *Lease) error {
		err := h.Release(ctx)
		if errors.Is(err, ErrReleaseUnanswered) {
			return ErrNoAnswer // what follows, and that the context has ended, is said once
		}
		return err
	}, func(i int) error { return u.cleanedUp(ctx, i) })
	u.observe(Released, nil)
	if yes >= u.m.need {
		return nil
	}
	var causes []error
	known := 0 // servers that have said something
	for _, err := range answers {
		if err == nil || errors.Is(err, ErrLost) {
			known++
		} else {
			causes = append(causes, err)
		}
	}
	if known >= u.m.need {
		return u.m.fail(answers, ErrLost, errMinority)
	}
	return u.m.fail(answers, append(append([]error{ErrReleaseUnanswered}, causes...), ctx.Err())...)
}

// cleanedUp waits until there is nothing of the lease at a server that has not granted it, or whose grant does not count. A
// request that is under way there is waited for, and what it brings about is on its way back then.
func (u *MajorityLease) cleanedUp(ctx context.Context, i int) error {
	u.mu.Lock()
	settled := u.members[i].settled
	u.mu.Unlock()
	if !waitFor(ctx, settled) {
		return ErrNoAnswer
	}
	u.mu.Lock()
	s := u.members[i]
	u.mu.Unlock()
	d := s.cleanup()
	if d == nil && errors.Is(s.err, ErrNotAcquired) {
		return nil // others have it there
	}
	if d == nil {
		return s.err // no request has come as far, but the server has not said so: it is not one of those that are free again
	}
	if !waitFor(ctx, d.finished) {
		return ErrNoAnswer
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// Extend makes the lease end ttl from now. See Lease.Extend in package lockkeeper.
func (u *MajorityLease) Extend(ctx context.Context, ttl time.Duration) error {
	if err := CheckTTL("ttl", ttl); err != nil {
		return err
	}
	if err := u.Err(); err != nil {
		return err
	}
	if err := CheckLifetime(ttl, u.m.locks[0].spec.MaxLifetime, u.began); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return u.m.fail(nil, err)
	}
	// Who is late goes on in the background, also if ctx ends then.
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.m.spec.ServerTimeout)
	decided := context.AfterFunc(ctx, cancel)
	yes, answers := u.onEveryMember(func(h *Lease) error {
		err := h.Extend(within, ttl)
		if err != nil && errors.Is(err, within.Err()) {
			return ErrNoAnswer // and if it was the caller's context that ended, that is said once
		}
		return err
	}, nil)
	decided()
	if yes >= u.m.need {
		u.mu.Lock()
		u.reportedDeadline, u.ttl = u.deadlineLocked(), millis(ttl)
		u.mu.Unlock()
		return nil // and the context ends by itself
	}
	cancel()
	if err := u.Err(); err != nil {
		return err
	}
	causes := []error{errMinority}
	for _, err := range answers {
		if err != nil && !errors.Is(err, ErrLost) { // at one server, that is; the lease is held
			causes = append(causes, err)
		}
	}
	return u.m.fail(answers, append(causes, ctx.Err())...)
}

// Adopt makes a lease out of a token that another process was granted, and extends it to the whole ttl.
func (m *Majority) Adopt(ctx context.Context, token string) (*MajorityLease, error) {
	if token == "" {
		return nil, Invalid("the token is empty")
	}
	if err := ctx.Err(); err != nil {
		return nil, m.fail(nil, err)
	}
	if m.closed() {
		return nil, m.fail(nil, ErrClosed)
	}
	if err := m.checkServers(ctx); err != nil {
		return nil, err
	}
	caller := ctx
	ctx, cancel := m.untilClosed(caller)
	defer cancel()
	u := m.newLease(token)
	u.adopts = true
	for i := range u.members {
		u.members[i].pending, u.members[i].askedAt, u.members[i].settled = true, u.began, make(chan struct{})
	}
	for i, l := range m.locks {
		go func() {
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.spec.ServerTimeout)
			defer cancel()
			h, err := l.adopt(within, token, u)
			if err != nil && errors.Is(err, within.Err()) {
				err = ErrNoAnswer
			}
			u.answered(i, nil, h, 0, err)
		}()
	}
	if u.await(ctx) {
		return u, nil
	}
	u.mu.Lock()
	answers := u.answersLocked()
	u.mu.Unlock()
	u.giveUp(ErrReleased)
	lost, causes := 0, []error{errMinority}
	for _, err := range answers {
		if errors.Is(err, ErrLost) {
			lost++
		} else if err != nil {
			causes = append(causes, err)
		}
	}
	switch {
	case lost > len(u.members)-m.need:
		return nil, m.fail(answers, ErrLost, ErrNotHeld)
	case ctx.Err() != nil && caller.Err() == nil:
		return nil, m.fail(answers, ErrClosed)
	}
	return nil, m.fail(answers, append(causes, caller.Err())...)
}
