package quorum

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// leaseState is what a Lease is for its caller.
type leaseState int

const (
	leaseAcquiring leaseState = iota // an attempt, or an adoption
	leaseHeld                        // a majority has agreed, and the lease was handed out
	leaseFailed                      // ended before it was handed out
	leaseOver                        // released or lost after it was held
)

func (s leaseState) ended() bool { return s == leaseFailed || s == leaseOver }

func (s leaseState) String() string {
	return [...]string{"leaseAcquiring", "leaseHeld", "leaseFailed", "leaseOver"}[s]
}

// The next two functions are the events of a lease. If one cannot come in the state, it changes nothing and reports false.

// hold notes that a majority has agreed.
func (s *leaseState) hold() (possible bool) {
	if *s != leaseAcquiring {
		return false
	}
	*s = leaseHeld
	return true
}

// end notes that the lease has ended for its holder.
func (s *leaseState) end() (possible bool) {
	switch *s {
	case leaseAcquiring:
		*s = leaseFailed
	case leaseHeld:
		*s = leaseOver
	default:
		return false
	}
	return true
}

// logBug logs that an event came which cannot come in this state.
func (u *Lease) logBug(state, event string) { u.lock.locks[0].LogBug(u.token, state, event) }

// Lease is a lease at a majority of servers, from the first request on. It implements lifecycle.Handle. Each server that grants it
// has a part, which renews itself and knows when it is lost; the Lease is lost when no majority of parts is left. A server that
// did not grant the lease, or has lost its part, is asked again while the others agree.
type Lease struct {
	lock        *Majority
	token       string
	observation *keeper.Observation // the call that acquired it, for the observer
	since       time.Time           // before the first request was sent; MaxLifetime and the duration in events count from here
	lifecycle   lifecycle.Lifecycle // ended under mu, together with state
	changed     chan struct{}       // something has happened at a member; capacity 1

	mu               sync.Mutex // guards what follows; see the package comment for the order
	state            leaseState
	adopted          bool   // made of a token; see keepsPartsLocked
	stopped          bool   // see stopAsking
	keeperClosed     bool   // one of the keepers is closed
	stopReleasing    func() // ends the wait of Release; nil: it does not wait
	members          []member
	fence            int64         // 0: not yet known; see settleFenceLocked
	ttl              time.Duration // the longest ttl of Extend; 0: it was not called
	reportedDeadline time.Time     // the deadline at the last Renewed event
	lastDeadline     time.Time     // the last deadline that was known
}

func (m *Majority) newLease(token string, o *keeper.Observation) *Lease {
	u := &Lease{lock: m, token: token, observation: o, changed: make(chan struct{}, 1), members: make([]member, len(m.locks))}
	u.since = time.Now()
	u.lifecycle.Begin(u)
	return u
}

// keepsPartsLocked reports whether the parts stay at the servers if the lease ends now or has ended: those of an adoption that
// failed are still the previous holder's.
func (u *Lease) keepsPartsLocked() bool {
	return u.adopted && (u.state == leaseAcquiring || u.state == leaseFailed)
}

// notify wakes await.
func (u *Lease) notify() {
	select {
	case u.changed <- struct{}{}:
	default:
	}
}

// register makes Close of any keeper end the attempt or release the lease, even without a part at its server. The first request comes later.
func (u *Lease) register() {
	open := true
	for _, e := range u.lock.spec.Keepers {
		open = e.OnClose(u) && open
	}
	if !open {
		u.KeeperClosed()
	}
}

// unregister undoes register, once the lease has ended.
func (u *Lease) unregister() {
	for _, e := range u.lock.spec.Keepers {
		e.RemoveOnClose(u)
	}
}

// KeeperClosed implements keeper.CloseObserver. It releases a lease that is held, because one of its parts is not renewed any more; it ends
// await; and it bounds the wait of releaseParts. It lets go of the parts of an adoption, because Close would release them.
func (u *Lease) KeeperClosed() {
	u.mu.Lock()
	u.keeperClosed = true
	if u.stopReleasing != nil {
		time.AfterFunc(server.CloseTimeout, u.stopReleasing)
	}
	held, adopting := u.state == leaseHeld, u.keepsPartsLocked()
	u.mu.Unlock()
	if (held || adopting) && u.giveUp(u.lock.released) && held {
		u.observe(keeper.Released, nil)
	}
	u.notify()
}

// LeaseEvent handles what happened to one of the parts. It implements keeper.Observer.
func (u *Lease) LeaseEvent(event keeper.EventType) (own bool) {
	switch event {
	case keeper.Renewed:
		u.partRenewed()
	case keeper.Lost:
		u.checkMajority()
	}
	u.notify()
	return true
}

// CleanedUp implements keeper.Observer.
func (u *Lease) CleanedUp() {}

// checkMajority ends the lease as lost if no majority is left.
func (u *Lease) checkMajority() {
	u.mu.Lock()
	if u.state != leaseHeld || u.tallyLocked(time.Now()).agreed >= u.lock.need {
		u.mu.Unlock()
		return
	}
	answers := u.answersLocked()
	u.mu.Unlock()
	err := u.lock.lost(answers)
	if u.giveUp(err) { // the parts that are left keep no other holder out
		u.observe(keeper.Lost, err)
	}
}

// partRenewed reports a renewal if a majority has been renewed, and asks servers without a live part for the lease.
func (u *Lease) partRenewed() {
	now := time.Now()
	spec := &u.lock.spec
	u.mu.Lock()
	if u.state != leaseHeld {
		u.mu.Unlock()
		return
	}
	deadline := u.deadlineLocked()
	report := deadline.Sub(u.reportedDeadline) > deadline.Sub(now)/16 // once, and not for each part
	if report {
		u.reportedDeadline = deadline
	}
	var vacant []int
	for i := range u.members {
		s := &u.members[i]
		if s.state != memberAsking && !s.live(now) && now.Sub(s.askedAt) >= spec.TTL/4 && // a renewal may be a little early
			(spec.MaxLifetime == 0 || now.Sub(u.since)+spec.TTL <= spec.MaxLifetime) {
			s.askedAt = now // so that no other goroutine asks as well
			vacant = append(vacant, i)
		}
	}
	u.mu.Unlock()
	for _, i := range vacant {
		u.ask(i)
	}
	if report {
		u.observe(keeper.Renewed, nil)
	}
}

// observe passes an event to the first keeper's observer.
func (u *Lease) observe(event keeper.EventType, err error) {
	first := u.lock.locks[0]
	ev := first.Event(event, u.observation)
	ev.Token, ev.Fence, ev.Err = u.token, u.Fence(), err
	u.observation.OfLease(ev)
}

// endLocked ends the lease for its holder. The caller calls the result after it has unlocked mu; see lifecycle.Lifecycle.
func (u *Lease) endLocked(err error) (endContexts func()) {
	var last time.Time // when the newest unanswered request was sent
	for i := range u.members {
		if s := &u.members[i]; s.state == memberAsking && s.askedAt.After(last) {
			last = s.askedAt
		}
	}
	if !last.IsZero() {
		time.AfterFunc(time.Until(last.Add(u.lock.spec.ServerTimeout)), u.stopAsking)
	}
	state := u.state
	if !u.state.end() {
		return func() { u.logBug(state.String(), "end") }
	}
	return u.lifecycle.End(err)
}

// giveUp ends the lease and releases its parts in the background. It leaves the parts of a lost lease without renewal at the servers, because
// another process may have adopted it. giveUp reports whether the lease had not ended before.
func (u *Lease) giveUp(err error) bool {
	u.mu.Lock()
	if u.state.ended() {
		u.mu.Unlock()
		return false
	}
	u.deadlineLocked()
	keep, leave := u.keepsPartsLocked(), u.lock.spec.NoRenewal && errors.Is(err, server.ErrLost)
	endContexts := u.endLocked(err)
	parts := u.partsLocked()
	u.mu.Unlock()
	endContexts()
	u.unregister()
	for _, part := range parts {
		if keep {
			part.Detach()
		} else if !leave {
			part.Abandon()
		}
	}
	if !leave {
		u.cleanUp()
	}
	return true
}

// deadlineLocked returns until when a majority is certain: the latest time until which enough parts are held.
func (u *Lease) deadlineLocked() time.Time {
	var deadlines []time.Time
	for i := range u.members {
		if s := &u.members[i]; u.agreesLocked(s) {
			if deadline, err := s.part.State(); err == nil {
				deadlines = append(deadlines, deadline)
			}
		}
	}
	if len(deadlines) >= u.lock.need {
		slices.SortFunc(deadlines, func(a, b time.Time) int { return b.Compare(a) })
		u.lastDeadline = deadlines[u.lock.need-1]
	}
	return u.lastDeadline
}

// CheckDeadline ends the lease as lost if its deadline has passed. It implements lifecycle.DeadlineChecker.
func (u *Lease) CheckDeadline() {
	u.mu.Lock()
	if u.state != leaseHeld {
		u.mu.Unlock()
		return
	}
	var parts []*keeper.Lease
	if u.tallyLocked(time.Now()).agreed < u.lock.need {
		parts = u.partsLocked()
	}
	u.mu.Unlock()
	for _, part := range parts {
		part.CheckDeadline() // LeaseEvent gets its loss
	}
	if parts != nil {
		u.checkMajority()
	}
}

// Name returns the name of the lock.
func (u *Lease) Name() string { return u.lock.spec.Name }

// Token is the identity of the lease, the same at all servers.
func (u *Lease) Token() string { return u.token }

// Fence is the fencing token.
func (u *Lease) Fence() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return uint64(u.fence)
}

// Deadline is until when the lease is held if it is not renewed. It does not check whether that has passed.
func (u *Lease) Deadline() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state.ended() {
		return u.lastDeadline
	}
	return u.deadlineLocked()
}

// Err is nil while the lease is held, and then says how it ended.
func (u *Lease) Err() error { return u.lifecycle.Err() }

// Done is closed when the lease has ended.
func (u *Lease) Done() <-chan struct{} { return u.lifecycle.Done() }

// OnEnd calls f when the lease ends.
func (u *Lease) OnEnd(f func(error)) (stop func()) { return u.lifecycle.OnEnd(f) }

// Context is a child of parent that also ends with the lease.
func (u *Lease) Context(parent context.Context) context.Context { return u.lifecycle.Context(parent) }

// Release releases the lease; see lockkeeper.Lease. It returns when a majority has nothing of the lease any more; the other
// servers are cleaned up in the background.
func (u *Lease) Release(ctx context.Context) error {
	u.CheckDeadline()
	u.mu.Lock()
	if u.state.ended() {
		parts := u.partsLocked()
		u.mu.Unlock()
		for _, part := range parts {
			part.Abandon() // the holder has stopped by now
		}
		u.cleanUp()
		if err := u.Err(); !errors.Is(err, server.ErrReleased) {
			return err
		}
		return nil
	}
	endContexts := u.endLocked(u.lock.released)
	u.mu.Unlock()
	endContexts()
	u.cleanUp()
	succeeded, answers := u.releaseParts(ctx)
	u.unregister()
	u.observe(keeper.Released, nil)
	if succeeded >= u.lock.need {
		return nil
	}
	var causes []error
	known := 0 // servers of which it is known that they have nothing of the lease
	for _, err := range answers {
		if err == nil || errors.Is(err, server.ErrLost) {
			known++
		} else {
			causes = append(causes, err)
		}
	}
	if known >= u.lock.need {
		return u.lock.lost(answers)
	}
	return u.lock.fail(answers, append(append([]error{keeper.ErrReleaseUnanswered}, causes...), server.ContextError(ctx))...)
}

// Extend makes the lease last for ttl from now at least; see lockkeeper.Lease. It returns when a majority has confirmed it, and waits no longer
// than ServerTimeout; the other servers are extended in the background.
func (u *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if err := server.CheckTTL("ttl", ttl); err != nil {
		return u.lock.locks[0].Fail(err)
	}
	if err := u.Err(); err != nil {
		return err
	}
	if err := keeper.CheckLifetime(ttl, u.lock.spec.MaxLifetime, u.since); err != nil {
		return u.lock.locks[0].Fail(err)
	}
	if err := server.ContextError(ctx); err != nil {
		return u.lock.fail(nil, err)
	}
	// Once a majority has confirmed it, the other servers have the rest of ServerTimeout, even if ctx ends.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.lock.spec.ServerTimeout)
	decided := context.AfterFunc(ctx, cancel)
	succeeded, answers := u.extendParts(ttl, func(part *keeper.Lease) error {
		err := part.Extend(limited, ttl)
		if err != nil && errors.Is(err, limited.Err()) {
			return server.ErrNoAnswer // if ctx has ended, the error below says so
		}
		return err
	})
	decided()
	if succeeded >= u.lock.need {
		return nil // limited ends by itself
	}
	cancel()
	if err := u.Err(); err != nil {
		return err
	}
	causes := []error{errMinority}
	for _, err := range answers {
		if err != nil && !errors.Is(err, server.ErrLost) { // ErrLost is about a part: the lease is held
			causes = append(causes, err)
		}
	}
	return u.lock.fail(answers, append(causes, server.ContextError(ctx))...)
}

// Life implements what lifecycle.WatchForLeak needs.
func (u *Lease) Life() *lifecycle.Lifecycle { return &u.lifecycle }

// CheckLeak reports the lease if it is held and renewed. The user can no longer release it.
func (u *Lease) CheckLeak() {
	u.mu.Lock()
	leaked := u.state == leaseHeld && !u.lock.spec.NoRenewal
	u.mu.Unlock()
	if leaked {
		u.lock.locks[0].ReportLeak(u.observation, u.token, u.Fence(), time.Since(u.since))
	}
}
