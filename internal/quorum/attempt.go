package quorum

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// Acquire blocks until there is a lease, ctx ends, or the retry policy gives up.
func (m *Majority) Acquire(ctx context.Context) (*Lease, error) { return m.observed(ctx, true) }

// Do calls fn while holding a lease, for which it waits as Acquire does.
func (m *Majority) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	if fn == nil {
		return m.locks[0].Invalid("fn is nil")
	}
	h, err := m.Acquire(ctx)
	if err != nil {
		return err
	}
	return lifecycle.Do(ctx, h, fn)
}

// Try does not wait for another holder. It blocks for a few attempts at most while no majority answers.
func (m *Majority) Try(ctx context.Context) (*Lease, error) { return m.observed(ctx, false) }

// observed makes an acquisition, and reports its start and its end to the first keeper's observer.
func (m *Majority) observed(ctx context.Context, wait bool) (*Lease, error) {
	first := m.locks[0]
	o := first.NewObservation(ctx, "")
	o.Starts()
	stop := func() {}
	if wait {
		stop = first.WatchWait(m.holders)
	}
	u, err := m.acquire(ctx, wait, o)
	stop()
	if err != nil {
		o.Ends("", 0, false, err)
		return nil, err
	}
	o.Ends(u.token, u.Fence(), false, nil)
	return u, nil
}

// acquisition is one call of Acquire or Try: attempts until one succeeds, or it is clear that none will.
type acquisition struct {
	lock        *Majority
	caller      context.Context
	wait        bool                // for other holders
	observation *keeper.Observation // the call, for the observer
	polls       random.Backoff      // pauses while others hold the lock
	repeats     random.Backoff      // pauses while no majority answers
	turn        keeper.Turn         // of the caller, in the local queue
	failing     time.Time           // since when attempts have failed without finding the lock held; zero: they have not
	contended   bool                // others were found to hold the lock, or to be ahead, and no attempt has failed since
	note        string              // of the caller
	// leftovers are the unfinished cleanups of earlier attempts, by server. They may be why a server refuses; nil: none.
	leftovers [][]*keeper.Cleanup

	ctx    context.Context // of the caller; also ends when a keeper is closed. Set by untilClosed
	cancel func()
}

func (m *Majority) acquire(caller context.Context, wait bool, o *keeper.Observation) (*Lease, error) {
	a := acquisition{lock: m, caller: caller, wait: wait, observation: o}
	if caller.Err() != nil {
		return nil, a.fail(nil) // no server was asked, so nothing is known
	}
	if m.closed() {
		return nil, a.fail(nil, server.ErrClosed)
	}
	if err := m.checkServers(caller); err != nil {
		return nil, err
	}
	var err error
	if a.note, err = keeper.NoteOf(caller); err != nil {
		return nil, m.locks[0].Fail(err)
	}
	if wait {
		if a.turn, err = m.locks[0].WaitLocally(caller, m); err != nil {
			return nil, a.fail(nil, err)
		}
		defer m.locks[0].LeaveLocally()
		a.contended = a.turn.Waited
	}
	u, err := a.run()
	if a.cancel != nil {
		a.cancel()
	}
	return u, err
}

// over reports whether the caller's context has ended or a keeper is closed.
func (a *acquisition) over() bool { return a.caller.Err() != nil || a.lock.closed() }

// untilClosed is the caller's context, which also ends when a keeper is closed. An attempt that succeeds does without it.
func (a *acquisition) untilClosed() context.Context {
	if a.ctx == nil {
		a.ctx, a.cancel = a.lock.untilClosed(a.caller)
	}
	return a.ctx
}

// fail makes an error of the lock. It says that the caller's context has ended, if it has, whatever else has happened.
func (a *acquisition) fail(answers []error, causes ...error) error {
	end := a.caller.Err()
	if end != nil && !slices.ContainsFunc(causes, func(err error) bool { return errors.Is(err, end) && errors.Is(err, context.Cause(a.caller)) }) {
		causes = append(causes, server.ContextError(a.caller))
	}
	return a.lock.fail(answers, causes...)
}

// run makes one attempt after the other. It does not use Server.Repeat, because it also goes on after a refusal, with other pauses.
func (a *acquisition) run() (*Lease, error) {
	for try := 1; ; try++ {
		began := time.Now()
		u := a.lock.propose(a.note, a.observation)
		if u.await(a.caller) {
			return u, nil
		}
		v := u.verdict(a.leftovers)
		u.giveUp(server.ErrReleased)
		switch {
		case v.contended:
			a.contended, a.failing = true, time.Time{}
		case a.over() && time.Since(began) < server.SilenceTimeout: // too early to conclude anything from the missing answers
		default:
			a.contended, a.failing = false, cmp.Or(a.failing, began)
		}
		pause, err := a.pause(u, v, try)
		if err != nil {
			return nil, err
		}
		if a.over() || a.lock.spec.Keepers[0].Pause(a.untilClosed(), pause) != nil {
			return nil, a.ended(v)
		}
	}
}

// pause is how long to wait after an attempt that failed; it returns an error if another attempt is of no use.
func (a *acquisition) pause(u *Lease, v verdict, try int) (time.Duration, error) {
	retry := a.lock.spec.Keepers[0].Config.Retry
	switch {
	case a.over():
		return 0, nil
	case v.contended && !a.wait:
		return 0, a.fail(v.answers, server.ErrNotAcquired)
	case v.contended:
		a.repeats.Reset()
		return a.pollDelay(v), nil
	}
	if v.hopeless || !a.wait && try == server.MaxTries || a.wait && a.exhausted(time.Now()) {
		return 0, a.fail(v.answers, v.causes...)
	}
	a.leftovers = u.awaitCleanups(a.untilClosed(), a.leftovers)
	return retry.Next(&a.repeats), nil
}

// pollDelay is the pause while others hold the lock: random, and no longer than their leases.
func (a *acquisition) pollDelay(v verdict) time.Duration {
	delay := min(a.polls.Next(firstRetryDelay, a.lock.spec.MaxRetryDelay), v.retryAfter)
	if deadline, ok := a.caller.Deadline(); ok {
		if left := time.Until(deadline) - server.DeadlineLead; left > a.lock.spec.Keepers[0].Freshness() {
			delay = min(delay, left) // to know at the deadline whether the servers still answer
		}
	}
	return delay
}

// ended is the error of an acquisition whose context has ended; the verdict is that of the last attempt.
func (a *acquisition) ended(v verdict) error {
	switch {
	case a.caller.Err() == nil:
		return a.fail(v.answers, server.ErrClosed)
	case !a.contended:
		return a.fail(v.answers, v.causes...)
	}
	return a.fail(v.answers, server.WaitError(a.caller, a.lock.Outage(time.Now())))
}

func (a *acquisition) exhausted(now time.Time) bool {
	return a.lock.spec.Keepers[0].Config.Retry.Exhausted(a.failing, now) || a.lock.Exhausted(a.turn.Since, now) != nil
}

// Outage implements keeper.Judge. It allows an older answer than that of a keeper.Lock, because attempts are farther apart than heartbeats.
func (m *Majority) Outage(now time.Time) error {
	return m.judge(func(a transport.Answers) error {
		return server.Outage(a, 2*(m.spec.MaxRetryDelay+m.spec.ServerTimeout), now)
	})
}

// Exhausted implements keeper.Judge.
func (m *Majority) Exhausted(since, now time.Time) error {
	return m.judge(func(a transport.Answers) error {
		return server.Exhausted(a, m.spec.Keepers[0].Config.Retry, since, now)
	})
}

// judge returns an error if the function finds one for so many servers that the others are no majority.
func (m *Majority) judge(of func(transport.Answers) error) error {
	causes := []error{errNoQuorum}
	for _, at := range m.locks {
		if err := of(at.Answers()); err != nil {
			causes = append(causes, err)
		}
	}
	if len(causes)-1 <= len(m.locks)-m.need {
		return nil
	}
	return server.Chain(causes...)
}

// propose starts an attempt: it asks every server.
func (m *Majority) propose(note string, o *keeper.Observation) *Lease {
	u := m.newLease(m.newToken(note), o)
	u.register()
	for i := range u.members {
		u.ask(i)
	}
	return u
}

// await returns when an attempt is decided, when ctx ends, or when a keeper is closed, and reports whether the lease is held. It
// waits no longer than ServerTimeout for a majority to grant the lease, and as long again for the fence.
func (u *Lease) await(ctx context.Context) bool {
	limit := time.After(u.lock.spec.ServerTimeout)
	extended := false
	for {
		u.mu.Lock()
		now := time.Now()
		larger := u.settleFenceLocked(now)
		t := u.tallyLocked(now)
		granted := u.fence > 0
		over := ctx.Err() != nil || u.keeperClosed
		if !over && t.agreed >= u.lock.need {
			state, possible := u.state, u.state.hold()
			u.reportedDeadline = u.deadlineLocked()
			u.mu.Unlock()
			if !possible {
				u.logBug(state.String(), "hold")
			}
			return possible
		}
		u.mu.Unlock()
		if larger {
			u.raiseFences()
		}
		if t.failed(u.lock.need) || over {
			return false
		}
		if granted && !extended {
			extended = true
			limit = time.After(u.lock.spec.ServerTimeout)
		}
		select {
		case <-u.changed:
		case <-ctx.Done():
		case <-limit:
			return false
		}
	}
}

// awaitCleanups waits until the servers have released what this attempt and earlier ones have left there, for ServerTimeout at most. It returns
// the unfinished cleanups, by server.
func (u *Lease) awaitCleanups(ctx context.Context, earlier [][]*keeper.Cleanup) [][]*keeper.Cleanup {
	limit, cancel := context.WithTimeout(ctx, u.lock.spec.ServerTimeout)
	defer cancel()
	unfinished := make([][]*keeper.Cleanup, len(u.members))
	for i := range u.members {
		u.mu.Lock()
		asked := u.members[i].asked
		u.mu.Unlock()
		if asked != nil {
			server.WaitFor(limit, asked)
		}
		u.mu.Lock()
		s := u.members[i]
		u.mu.Unlock()
		var list []*keeper.Cleanup
		if earlier != nil {
			list = earlier[i]
		}
		if c := s.currentCleanup(); c != nil {
			list = append(list, c)
		}
		for _, c := range list {
			if !server.WaitFor(limit, c.Done()) {
				unfinished[i] = append(unfinished[i], c)
			}
		}
	}
	return unfinished
}
