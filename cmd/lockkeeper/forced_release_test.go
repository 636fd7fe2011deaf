package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// TestDocumentedForcedRelease checks the commands of docs/operations.md that end a lease by hand: another process can then
// acquire the lock at once, other holders keep their leases where the page says so, and the holder detects the loss at its next
// renewal.
func TestDocumentedForcedRelease(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	_, section, found := strings.Cut(string(text), "\n## Forced release\n")
	section, _, _ = strings.Cut(section, "\n## ")
	must.That(t, found, "docs/operations.md has no such section")
	rdb := redistest.Connect(redistest.Start(t))
	const ttl = 3 * time.Second
	const name = "orders:42"
	k := keeperOf(t, rdb, "")
	sem := func(limit int) lockkeeper.Locker {
		return must.Get(must.Get(semaphore.New(k, name, limit, &semaphore.Options{TTL: ttl}))(t).LockerN(1))(t)
	}
	write := must.Get(rwlock.New(k, name, &rwlock.Options{TTL: ttl}))(t)
	for row, l := range map[string]lockkeeper.Locker{
		"mutex":                 must.Get(mutex.New(k, name, &mutex.Options{TTL: ttl}))(t),
		"fair":                  must.Get(fair.New(k, name, &fair.Options{TTL: ttl}))(t),
		"rwlock, one holder":    write,
		"rwlock, all":           write,
		"semaphore, one holder": sem(2),
		"semaphore, all":        sem(1),
	} {
		t.Run(row, func(t *testing.T) {
			must.OK(t, rdb.FlushDB(ctx).Err())
			_, line, found := strings.Cut(section, "\n| "+row+" | `")
			command, _, _ := strings.Cut(line, "`")
			must.That(t, found, "there is no row %q", row)
			lease := must.Get(l.TryLock(ctx))(t)
			var other *lockkeeper.Lease // of a second holder, which keeps it
			if row == "semaphore, one holder" {
				other = must.Get(l.TryLock(ctx))(t)
			}
			if _, err := l.TryLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Fatalf("the lock is not held: %v", err)
			}
			var args []any
			for _, f := range strings.Fields(strings.ReplaceAll(command, "TOKEN", lease.Token())) {
				args = append(args, f)
			}
			must.OK(t, rdb.Do(ctx, args...).Err())
			next, err := l.TryLock(ctx)
			must.That(t, err == nil, "after %q: %v", command, err)
			defer func() { _ = next.Release(ctx) }()
			check.That(t, next.Fence() > lease.Fence(), "fence %d after %d", next.Fence(), lease.Fence())
			eventually(t, "the holder detects the loss", func() bool { return errors.Is(lease.Err(), lockkeeper.ErrLost) })
			if other != nil {
				time.Sleep(ttl / 2) // so that it has been renewed
				must.Report(t, other.Err())
				used := rdb.ZScore(ctx, "{lock:orders:42}:semaphore:holders", "used").Val()
				check.That(t, used == -2, "the sum of the permits is %v", used)
			}
		})
	}
}
