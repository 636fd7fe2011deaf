package run

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// lock acquires a lock, or takes permits that are not held. With try it does not wait for other holders.
type lock func(ctx context.Context, try bool) (*held, error)

// leased returns what acquires a lock.
func leased(l lockkeeper.Locker, err error) (lock, error) {
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, try bool) (*held, error) {
		acquire := l.Lock
		if try {
			acquire = l.TryLock
		}
		lease, err := acquire(ctx)
		if err != nil {
			return nil, err
		}
		return &held{lease.Name(), lease.Token(), lease.Fence(), lease.Done(), lease.Err, lease.Release}, nil
	}, nil
}

// taken returns what takes n permits of a rate limit, which are not held.
func taken(l *ratelimit.Limiter, n int) lock {
	return func(ctx context.Context, try bool) (*held, error) {
		h := &held{name: l.Name()}
		if !try {
			err := l.DoN(ctx, n, func(_ context.Context, fence uint64) error {
				h.fence = fence
				return nil
			})
			if err != nil {
				return nil, err
			}
			return h, nil
		}
		result, err := l.AllowN(ctx, n)
		switch {
		case err != nil:
			return nil, err
		case result.Allowed:
			h.fence = result.Fence
			return h, nil
		case result.RetryAfter == 0:
			return nil, fmt.Errorf("lockkeeper: ratelimit %q: %w", l.Name(), lockkeeper.ErrNotAcquired)
		}
		return nil, fmt.Errorf("lockkeeper: ratelimit %q: %w: not before %v from now", l.Name(), lockkeeper.ErrNotAcquired, result.RetryAfter)
	}
}

// newLock creates the lock of the kind that the flags name.
func (o *options) newLock(ks []*lockkeeper.Keeper, name string) (lock, error) {
	k := ks[0]
	switch o.kind {
	case "redlock":
		return leased(redlock.New(ks, name, &redlock.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime}))
	case "mutex":
		return leased(mutex.New(k, name, &mutex.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime}))
	case "fair":
		return leased(fair.New(k, name, &fair.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime}))
	case "read", "write":
		l, err := rwlock.New(k, name, &rwlock.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime})
		if err == nil && o.kind == "read" {
			return leased(l.RLocker(), nil)
		}
		return leased(l, err)
	case "semaphore":
		return o.newLimit(k, name)
	}
	panic("bug: run: validateKind accepts a kind that newLock does not create")
}

// newLimit creates a semaphore, or a rate limit if there is a window.
func (o *options) newLimit(k *lockkeeper.Keeper, name string) (lock, error) {
	switch {
	case o.per == 0:
		s, err := semaphore.New(k, name, o.limit, &semaphore.Options{TTL: o.ttl, MaxLifetime: o.maxLifetime})
		if err != nil {
			return nil, err
		}
		return leased(s.LockerN(o.permits))
	case o.atOnce == 0:
		l, err := ratelimit.New(k, name, o.limit, o.per, nil)
		if err != nil {
			return nil, err
		}
		return taken(l, o.permits), nil
	}
	l, err := ratelimit.NewConcurrent(k, name, o.limit, o.per, o.atOnce, &ratelimit.ConcurrentOptions{TTL: o.ttl, MaxLifetime: o.maxLifetime})
	if err != nil {
		return nil, err
	}
	return leased(l.LockerN(o.permits))
}

// called says how a kind of other commands is requested here.
var called = map[string]string{
	"ratelimit": "; a rate limit is --kind semaphore with --per",
	"rwlock":    "; its two sides are read and write",
	"once":      "; a job is run by --once-per",
}

// validateKind rejects a kind that does not exist, and flags that have no meaning for the kind of the lock.
func (o *options) validateKind(isSet func(flag string) bool) error {
	var names []string
	for _, k := range kinds {
		name, _, _ := strings.Cut(k, "\t")
		names = append(names, name)
	}
	if !slices.Contains(names, o.kind) {
		return exit.Usagef("--kind %q is not one of: %s%s", o.kind, strings.Join(names, ", "), called[o.kind])
	}
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

// firstHolder returns what reads the first holder of the lock.
func (o *options) firstHolder(ks []*lockkeeper.Keeper, name string) (firstHolder, error) {
	kind := o.kind
	switch {
	case kind == "redlock": // no single server says whether it is held
		l, err := redlock.New(ks, name, nil)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) ([]lockkeeper.Holder, int, error) {
			h, held, err := l.Holder(ctx)
			if err != nil || !held {
				return nil, 0, err
			}
			return []lockkeeper.Holder{h}, 1, nil
		}, nil
	case kind == "read", kind == "write":
		kind = "rwlock"
	case kind == "semaphore" && o.per > 0:
		kind = "ratelimit"
	}
	lock, err := views.LockOf(access.ServerOf(ks[0]), kind, name)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]lockkeeper.Holder, int, error) {
		found, total, err := views.FirstHolders(ctx, lock, 1)
		list, err := access.Holders[lockkeeper.Holder](found, err)
		return list, total, err
	}, nil
}
