package engine

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// MajoritySpec says what a lock on the majority of several servers is.
type MajoritySpec struct {
	Spec                        // of the lock at each server
	Engines       []*Engine     // one for each server
	ServerTimeout time.Duration // how long one server's answer is waited for; 0: the default
	MaxRetryDelay time.Duration // the longest pause between two attempts while others hold the lock
	MinUptime     time.Duration // how long a server must have run for to count; 0: it does not matter
	// Fail makes an error out of what each server has said, in the order of the engines, and what follows from it.
	// A server that agreed has nil.
	Fail func(answers []error, causes ...error) error
}

// Majority is a lock on one name that whoever has it at a majority of servers holds. It is immutable but for what it has
// learned of the servers' clocks, and safe for concurrent use.
type Majority struct {
	spec  MajoritySpec
	locks []*Lock
	need  int

	mu     sync.Mutex // guards what follows
	clocks []clockReading
}

// clockReading is what a server's clock has said.
type clockReading struct {
	ms   int64     // 0: nothing yet
	sent time.Time // when the request left that was answered with it
}

// The reasons for a failure of a majority, beside what the servers say.
var (
	errMinority       = errors.New("no majority of the servers")
	errNoQuorum       = Chain(ErrUnavailable, errMinority) // and to wait may help
	errCleanupPending = errors.New("what an attempt before has left there is not given back yet")
	errRecentRestart  = errors.New("the server has restarted lately and does not count yet")
)

const (
	// firstRetryDelay is about the first pause after an attempt that others were in the way of.
	firstRetryDelay = 10 * time.Millisecond
	// clockReadingTTL is how long a reading of a server's clock is reckoned with.
	clockReadingTTL = time.Minute
	// fenceLead is how far ahead of the servers' clocks a fence is asked for, so that none of them is past it when the
	// request arrives.
	fenceLead = 10 * time.Millisecond
	// maxExactInt is the largest that Lua holds exactly, with all below it.
	maxExactInt = 1 << 53
)

// NewMajority checks a spec and returns the lock.
func NewMajority(spec MajoritySpec) (*Majority, error) {
	n := len(spec.Engines)
	if n%2 == 0 {
		return nil, Invalid("%d keepers: an odd number is needed, for an even one survives the loss of no more servers", n)
	}
	m := &Majority{spec: spec, need: n/2 + 1, clocks: make([]clockReading, n)}
	for i, e := range spec.Engines {
		if e == nil {
			return nil, Invalid("keeper %d of %d is nil", i+1, n)
		}
		if k := slices.Index(spec.Engines, e); k < i {
			return nil, Invalid("keepers %d and %d of %d are the same: each server counts once", k+1, i+1, n)
		}
		if e.cfg.ReplicaAck.enabled() {
			return nil, Invalid("keeper %d of %d has ReplicaAck, but the servers of a majority have no replicas to wait for", i+1, n)
		}
		l, err := e.Lock(spec.Spec)
		if err != nil {
			return nil, err
		}
		m.locks = append(m.locks, l)
	}
	if m.spec.ServerTimeout == 0 {
		m.spec.ServerTimeout = max(min(spec.TTL/10, 500*time.Millisecond), time.Millisecond)
	}
	if m.spec.ServerTimeout < time.Millisecond || m.spec.ServerTimeout > spec.TTL/2 {
		return nil, Invalid("ServerTimeout %v is not between 1ms and half of TTL %v", m.spec.ServerTimeout, spec.TTL)
	}
	if m.spec.MaxRetryDelay < firstRetryDelay || m.spec.MaxRetryDelay > time.Hour {
		return nil, Invalid("MaxRetryDelay %v is not between %v and %v", m.spec.MaxRetryDelay, firstRetryDelay, time.Hour)
	}
	if m.spec.MinUptime != 0 && (m.spec.MinUptime < spec.TTL || m.spec.MinUptime > LongestTTL) {
		return nil, Invalid("MinUptime %v is not between TTL %v and %v (0 means none)", m.spec.MinUptime, spec.TTL, LongestTTL)
	}
	return m, nil
}

// Acquire waits for a lease until ctx ends.
func (m *Majority) Acquire(ctx context.Context) (*MajorityLease, error) { return m.obtain(ctx, true) }

// Try asks for a lease and never waits for another holder.
func (m *Majority) Try(ctx context.Context) (*MajorityLease, error) { return m.obtain(ctx, false) }

// obtain tells the first keeper's observer of a request.
func (m *Majority) obtain(ctx context.Context, wait bool) (*MajorityLease, error) {
	first := m.locks[0]
	if first.e.cfg.Observe == nil {
		return m.request(ctx, wait)
	}
	began := time.Now()
	first.e.observe(first.event(AcquireStart))
	u, err := m.request(ctx, wait)
	ev := first.event(AcquireDone)
	ev.Duration, ev.Err = time.Since(began), err
	if u != nil {
		ev.Token, ev.Fence = u.token, u.Fence()
	}
	first.e.observe(ev)
	return u, err
}

func (m *Majority) fail(answers []error, causes ...error) error {
	causes = slices.DeleteFunc(causes, func(err error) bool { return err == nil })
	return m.spec.Fail(answers, causes...)
}

// closed says whether one of the keepers is closed.
func (m *Majority) closed() bool {
	return slices.ContainsFunc(m.locks, func(l *Lock) bool { return l.e.closing.Err() != nil })
}

// untilClosed is a child of ctx that also ends when one of the keepers is closed.
func (m *Majority) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stops := make([]func() bool, 0, len(m.locks))
	for _, l := range m.locks {
		stops = append(stops, context.AfterFunc(l.e.closing, cancel))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// request makes attempts until one succeeds, or it is clear that none will.
func (m *Majority) request(caller context.Context, wait bool) (*MajorityLease, error) {
	// Whose context has ended is told so, whatever else has happened.
	fail := func(answers []error, causes ...error) error {
		end := caller.Err()
		if end != nil && !slices.ContainsFunc(causes, func(err error) bool { return errors.Is(err, end) }) {
			causes = append(causes, end)
		}
		return m.fail(answers, causes...)
	}
	if caller.Err() != nil {
		return nil, fail(nil) // nothing was asked, so nothing is known
	}
	if m.closed() {
		return nil, fail(nil, ErrClosed)
	}
	if err := m.checkServers(caller); err != nil {
		return nil, err
	}
	first := m.locks[0]
	maxAge := 2 * (m.spec.MaxRetryDelay + m.spec.ServerTimeout)
	c := &ServerHealth{maxAge: maxAge}
	if wait {
		shared, leave, err := first.e.waitLocally(caller, first.key(keyQueue), maxAge)
		if err != nil {
			return nil, fail(nil, err)
		}
		defer leave()
		c = shared
	}
	ctx, cancel := m.untilClosed(caller)
	defer cancel()

	var polls, repeats *backoff.ExponentialBackOff
	var failing time.Time // since when no majority has answered; zero: one has
	// What attempts before have left at each server, and which may be in the way.
	var residue [][]*Cleanup
	for try := 1; ; try++ {
		began := time.Now()
		c.Sent(began)
		u := m.propose()
		if u.await(ctx) {
			c.Answered(began)
			return u, nil
		}
		v := u.verdict(residue)
		u.giveUp(ErrReleased)
		var pause time.Duration
		switch {
		case v.contended:
			c.Answered(began)
		case ctx.Err() != nil && time.Since(began) < SilenceTimeout: // the answers that are missing say nothing
			c.Dropped(began)
		default:
			c.Failed(began, Chain(v.causes...))
		}
		switch {
		case ctx.Err() != nil:
		case v.contended && !wait:
			return nil, fail(v.answers, ErrNotAcquired)
		case v.contended:
			if polls == nil {
				polls = backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstRetryDelay),
					backoff.WithMaxInterval(m.spec.MaxRetryDelay), backoff.WithMaxElapsedTime(0))
			}
			failing, repeats = time.Time{}, nil
			pause = min(polls.NextBackOff(), v.retryAfter)
			if deadline, ok := ctx.Deadline(); ok {
				if left := time.Until(deadline) - DeadlineLead; left > first.e.Freshness() {
					pause = min(pause, left) // so as to know at its end whether the servers answer
				}
			}
		default:
			if repeats == nil {
				failing, repeats = began, first.e.cfg.Retry.NewBackoff()
			}
			if v.hopeless || !wait && try == MaxTries || wait && first.e.cfg.Retry.Exhausted(failing, time.Now()) {
				return nil, fail(v.answers, v.causes...)
			}
			residue = u.settle(ctx, residue)
			pause = repeats.NextBackOff()
		}
		if ctx.Err() == nil {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
				timer.Stop()
			}
		}
		switch {
		case caller.Err() == nil:
			return nil, fail(v.answers, ErrClosed)
		case c.Outage(time.Now()) == nil:
			return nil, fail(v.answers, ErrNotAcquired)
		}
		return nil, fail(v.answers, v.causes...)
	}
}

// verdict is what the servers' answers to an attempt that has failed come to.
type verdict struct {
	answers    []error
	contended  bool          // a majority has answered, and only others were in the way
	hopeless   bool          // it will not be otherwise until somebody mends something
	retryAfter time.Duration // if contended: after which the leases in the way may be over
	causes     []error       // if not contended
}

// verdict is that of an attempt. Of a server at which an attempt before may have left something, a refusal says nothing.
func (u *MajorityLease) verdict(residue [][]*Cleanup) verdict {
	u.mu.Lock()
	defer u.mu.Unlock()
	v := verdict{answers: u.answersLocked()}
	granted, refused := 0, 0
	var broken, others []error // answers that stay the same until somebody mends something, and other ones
	var ends []time.Duration
	for i, err := range v.answers {
		switch {
		case errors.Is(err, ErrLost): // before there was a majority
			err = ErrTooLate
		case residue != nil && len(residue[i]) > 0 && errors.Is(err, ErrNotAcquired):
			err = errCleanupPending
		}
		v.answers[i] = err
		switch {
		case err == nil:
			granted++
		case errors.Is(err, ErrNotAcquired):
			refused++
			left := u.members[i].retryAfter
			if left == 0 { // it is not known
				left = LongestTTL
			}
			ends = append(ends, left)
		case !transport.Retryable(err):
			broken = append(broken, err)
		default:
			others = append(others, err)
		}
	}
	v.contended = refused > 0 && granted+refused >= u.m.need
	if v.hopeless = len(broken) > len(u.members)-u.m.need; v.hopeless {
		v.causes = append([]error{errMinority}, broken...)
	} else {
		v.causes = append(append([]error{errNoQuorum}, broken...), others...)
	}
	if v.contended {
		slices.Sort(ends)
		v.retryAfter = ends[max(u.m.need-granted, 1)-1] + time.Millisecond // leases end within the millisecond that was named
	}
	return v
}

// noteClock notes what a server's clock has said.
func (m *Majority) noteClock(i int, ms int64, sent time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ms > 0 && sent.After(m.clocks[i].sent) {
		m.clocks[i] = clockReading{ms, sent}
	}
}

// leastFence is a fence, in µs, that no server's clock will have passed when a request that leaves now arrives; 0 if the clocks are
// not known. A guess that is wrong costs a round trip and nothing else.
func (m *Majority) leastFence() int64 {
	if m.need == 1 {
		return 0 // there is nobody to agree with
	}
	now := time.Now()
	var least int64
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.clocks {
		if since := now.Sub(c.sent); c.ms > 0 && c.ms < maxExactInt/1000 && since < clockReadingTTL {
			least = max(least, c.ms*1000+(time.Millisecond+since+fenceLead).Microseconds())
		}
	}
	if least >= maxExactInt {
		return 0
	}
	return least
}

// newToken names one attempt, the same at all servers; lua/policy/redlock reads its least fence.
func (m *Majority) newToken() string {
	first := m.locks[0]
	token := first.token(first.e.nextSerial(), Terms{})
	if least := m.leastFence(); least > 0 {
		token += "f" + strconv.FormatInt(least, 10)
	}
	return token
}
