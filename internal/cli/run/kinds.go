package run

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/spf13/cobra"
)

// kinds are the values of --kind, with descriptions for shell completion.
var kinds = []cobra.Completion{
	"mutex\tone command at a time",
	"fair\tone command at a time, in the order of the requests",
	"read\tany number of commands at a time, but none together with write",
	"write\tone command at a time, and none together with read",
	"semaphore\tas many commands as --limit permits",
	"redlock\tone command at a time, on a majority of several servers",
}

// locker is what run needs of a lock.
type locker interface {
	Lock(ctx context.Context) (*lockkeeper.Lease, error)
	TryLock(ctx context.Context) (*lockkeeper.Lease, error)
}

// permits is a semaphore from which run takes n permits.
type permits struct {
	semaphore *semaphore.Semaphore
	n         int
}

func (p permits) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return p.semaphore.AcquireN(ctx, p.n)
}

func (p permits) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return p.semaphore.TryAcquireN(ctx, p.n)
}

// rate is a rate limit from which run takes n permits. Lock and TryLock are for one that has MaxConcurrent.
type rate struct {
	name    string
	limiter *ratelimit.Limiter
	n       int
}

func (r rate) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return r.limiter.AcquireN(ctx, r.n)
}

func (r rate) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return r.limiter.TryAcquireN(ctx, r.n)
}

// take waits for permits that are not held, or tries to take them, and returns the number of the grant.
func (r rate) take(ctx context.Context, try bool) (fence uint64, err error) {
	if !try {
		err = r.limiter.DoN(ctx, r.n, func(_ context.Context, granted uint64) error {
			fence = granted
			return nil
		})
		return fence, err
	}
	result, err := r.limiter.AllowN(ctx, r.n)
	switch {
	case err != nil || result.Allowed:
		return result.Fence, err
	case result.RetryAfter == 0:
		return 0, fmt.Errorf("lockkeeper: ratelimit %q: %w", r.name, lockkeeper.ErrNotAcquired)
	}
	return 0, fmt.Errorf("lockkeeper: ratelimit %q: %w: not before %v from now", r.name, lockkeeper.ErrNotAcquired, result.RetryAfter)
}

// readSide is the read side of a read-write lock.
type readSide struct{ lock *rwlock.Lock }

func (r readSide) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return r.lock.RLock(ctx) }

func (r readSide) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return r.lock.TryRLock(ctx)
}

// newLock creates the lock of the kind that the flags name.
func (o *options) newLock(ks []*lockkeeper.Keeper, name string) (locker, error) {
	k := ks[0]
	switch o.kind {
	case "redlock":
		return redlock.New(ks, name, &redlock.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime})
	case "mutex":
		return mutex.New(k, name, &mutex.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime})
	case "fair":
		return fair.New(k, name, &fair.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime})
	case "read", "write":
		l, err := rwlock.New(k, name, &rwlock.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime})
		if o.kind == "read" {
			return readSide{l}, err
		}
		return l, err
	case "semaphore":
		if o.per == 0 {
			s, err := semaphore.New(k, name, o.limit, &semaphore.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime})
			return permits{s, o.permits}, err
		}
		ro := &ratelimit.Options{MaxConcurrent: o.atOnce, TTL: o.ttl, MaxLifetime: o.maxLifetime}
		if o.atOnce == 0 {
			ro.TTL = 0 // no lease
		}
		l, err := ratelimit.New(k, name, o.limit, o.per, ro)
		return rate{name, l, o.permits}, err
	}
	return nil, exit.Usagef("--kind %q is not one of: mutex, fair, read, write, semaphore, redlock", o.kind)
}

// validateKind rejects flags that have no meaning for the kind of the lock.
func (o *options) validateKind(isSet func(flag string) bool) error {
	if o.kind != "semaphore" {
		for _, flag := range []string{"limit", "per", "at-once", "permits"} {
			if isSet(flag) {
				return exit.Usagef("--%s is for --kind semaphore, not for --kind %s", flag, o.kind)
			}
		}
		return nil
	}
	switch { // semaphore.New and ratelimit.New validate the rest
	case !isSet("limit"):
		return exit.Usagef("--kind semaphore needs --limit")
	case isSet("per") && o.per == 0:
		return exit.Usagef("--per 0s: the window must be positive")
	case isSet("at-once") && !isSet("per"):
		return exit.Usagef("--at-once is for a limit with --per; without it, --limit is the number of permits at a time")
	case isSet("at-once") && o.atOnce == 0:
		return exit.Usagef("--at-once 0: no command could run")
	case o.permits < 1:
		return exit.Usagef("--permits %d: a command takes at least one permit", o.permits)
	case o.limit > 0 && o.permits > o.limit:
		return exit.Usagef("--permits %d is more than --limit %d", o.permits, o.limit)
	case o.atOnce > 0 && o.permits > o.atOnce:
		return exit.Usagef("--permits %d is more than --at-once %d", o.permits, o.atOnce)
	case isSet("per") && !isSet("at-once"):
		for _, flag := range []string{"ttl", "grace", "max-lifetime"} {
			if isSet(flag) {
				return exit.Usagef("--%s cannot be used with --per unless --at-once is given: nothing is held", flag)
			}
		}
	}
	return nil
}

// firstHolder reads one of the holders of a lock, or none, and how many there are.
type firstHolder func(ctx context.Context) (list []lockkeeper.Holder, total int, err error)

// firstHolder returns what reads the first holder of the lock; of a redlock, at the first server.
func (o *options) firstHolder(k *lockkeeper.Keeper, name string) (firstHolder, error) {
	kind := o.kind
	switch {
	case kind == "read", kind == "write":
		kind = "rwlock"
	case kind == "semaphore" && o.per > 0:
		kind = "ratelimit"
	}
	lock, err := views.LockOf(access.ServerOf(k), kind, name)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]lockkeeper.Holder, int, error) {
		found, total, err := views.FirstHolders(ctx, lock, 1)
		list, err := access.Holders[lockkeeper.Holder](found, err)
		return list, total, err
	}, nil
}
