// Package quorum is a lock on the majority of several independent servers. Package redlock is its front end, and package keeper is used for each
// server. In order:
//
//  1. Acquire makes attempts, each of which asks all servers for a lease under one token (attempt.go). Adopt asks them for one that they have.
//  2. Each server that grants the lease has a part of it: a keeper.Lease, which renews itself (member.go).
//  3. The fence of the Lease is the largest one of a majority. Servers that gave a smaller fence are asked to give only larger ones (fence.go).
//  4. When a majority has done both, Acquire returns the Lease. Otherwise the attempt is given up, and its verdict says whether another one may
//     succeed (verdict.go).
//  5. The Lease is lost when no majority is left (lease.go). Its parts are released when it ends.
//
// docs/protocol.md says why that is safe.
//
// Mutexes are taken in this order: Lease.mu, the mutex of the Lease's Lifecycle, the mutexes of package keeper. Nothing blocks under Lease.mu.
// LeaseEvent, KeeperClosed, and the functions passed on by ask and raiseFence take Lease.mu, so package keeper calls them without any of its
// mutexes held.
package quorum

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Spec describes a lock on the majority of several servers.
type Spec struct {
	keeper.Spec                    // of the lock at each server
	Keepers       []*keeper.Keeper // one for each server
	ServerTimeout time.Duration    // how long one server's answer is awaited, for each step; 0: the default
	MaxRetryDelay time.Duration    // the longest pause between two attempts while others hold the lock
	MinUptime     time.Duration    // how long a server must have run before it counts; 0: it counts at once
	// Fail makes an error of what each server answered last, in the order of the keepers, and of its causes. The answer of a
	// server that agreed is nil. No answers mean that no server was asked.
	Fail func(answers []error, causes ...error) error
}

// Majority is a lock on one name at the majority of several servers. Its settings are immutable. It is safe for concurrent use.
type Majority struct {
	spec  Spec
	locks []*keeper.Lock // one for each server. The first one's keeper has the observer, the retry policy and the local queue
	need  int            // how many servers are a majority

	released error // the error of leases that were released
}

// Causes of errors, besides those of package keeper and the servers' own.
var (
	errMinority       = server.NewLoss(server.LossNoMajority, "no majority of the servers")
	errNoQuorum       = server.Chain(server.ErrUnavailable, errMinority) // another attempt may succeed
	errCleanupPending = errors.New("a previous attempt is still being cleaned up there")
)

// firstRetryDelay is the average of the first pause after an attempt that others prevented.
const firstRetryDelay = 10 * time.Millisecond

// New checks a spec and returns the lock. It does no I/O. The error is ErrInvalid.
func New(spec Spec) (*Majority, error) {
	l, err := newLock(spec)
	if err != nil {
		return nil, server.OfLock(spec.Scripts.Kind, spec.Name, err)
	}
	return l, nil
}

func newLock(spec Spec) (*Majority, error) {
	n := len(spec.Keepers)
	if n%2 == 0 {
		return nil, server.Invalid("%d keepers: an odd number is needed; an even one tolerates no more failures", n)
	}
	l := &Majority{spec: spec, need: n/2 + 1}
	for i, e := range spec.Keepers {
		if e == nil {
			return nil, server.Invalid("keeper %d of %d is nil", i+1, n)
		}
		if k := slices.Index(spec.Keepers, e); k < i {
			return nil, server.Invalid("keepers %d and %d of %d are the same: each server counts once", k+1, i+1, n)
		}
		if e.AwaitsReplicas() {
			return nil, server.Invalid("keeper %d of %d has ReplicaAck, but the servers of a majority have no replicas to wait for", i+1, n)
		}
		at, err := e.Lock(spec.Spec)
		if err != nil {
			return nil, err
		}
		l.locks = append(l.locks, at)
	}
	if l.spec.ServerTimeout == 0 {
		l.spec.ServerTimeout = max(min(spec.TTL/10, 500*time.Millisecond), time.Millisecond)
	}
	if l.spec.ServerTimeout < time.Millisecond || l.spec.ServerTimeout > spec.TTL/2 {
		return nil, server.Invalid("ServerTimeout %v is not between 1ms and half of TTL %v", l.spec.ServerTimeout, spec.TTL)
	}
	if spec.MaxRetryDelay < firstRetryDelay || spec.MaxRetryDelay > time.Hour {
		return nil, server.Invalid("MaxRetryDelay %v is not between %v and %v", spec.MaxRetryDelay, firstRetryDelay, time.Hour)
	}
	if spec.MinUptime != 0 && (spec.MinUptime < spec.TTL || spec.MinUptime > server.LongestTTL) {
		return nil, server.Invalid("MinUptime %v is not between TTL %v and %v (0 means none)", spec.MinUptime, spec.TTL, server.LongestTTL)
	}
	l.released = l.fail(nil, server.ErrReleased)
	return l, nil
}

// Name returns what is locked.
func (m *Majority) Name() string { return m.spec.Name }

// Key returns the smallest of the lock's keys at the servers. They are equal, unless the prefixes differ.
func (m *Majority) Key() string {
	key := m.locks[0].Key()
	for _, at := range m.locks[1:] {
		key = min(key, at.Key())
	}
	return key
}

// fail makes an error of the lock. Causes that are nil do not count.
func (m *Majority) fail(answers []error, causes ...error) error {
	causes = slices.DeleteFunc(causes, func(err error) bool { return err == nil })
	return m.spec.Fail(answers, causes...)
}

// lost makes the error of a lease without a majority. Its causes include why parts are gone, so that a caller finds out about a break.
func (m *Majority) lost(answers []error) error {
	causes := []error{server.ErrLost, errMinority}
	for _, err := range answers {
		if errors.Is(err, server.ErrLost) && !errors.Is(err, server.ErrUnavailable) {
			causes = append(causes, err)
		}
	}
	return m.fail(answers, causes...)
}

func (m *Majority) closed() bool {
	return slices.ContainsFunc(m.spec.Keepers, func(e *keeper.Keeper) bool { return e.Closing().Err() != nil })
}

// untilClosed is a child of ctx that also ends when one of the keepers is closed.
func (m *Majority) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stops := make([]func() bool, 0, len(m.locks))
	for _, e := range m.spec.Keepers {
		stops = append(stops, context.AfterFunc(e.Closing(), cancel))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}
