package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
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
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Forced release\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("docs/operations.md has no such section")
	}
	s := redistest.Start(t)
	rdb := s.Client()
	const ttl = 3 * time.Second
	type lock struct {
		take   func(k *lockkeeper.Keeper) (*lockkeeper.Lease, error)
		second bool // there is a second holder, which keeps its lease
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	limit := 2
	sem := func(k *lockkeeper.Keeper) (*lockkeeper.Lease, error) {
		l, err := semaphore.New(k, "orders:42", limit, &semaphore.Options{TTL: ttl})
		must(err)
		return l.TryAcquire(ctx)
	}
	write := func(k *lockkeeper.Keeper) (*lockkeeper.Lease, error) {
		l, err := rwlock.New(k, "orders:42", &rwlock.Options{TTL: ttl})
		must(err)
		return l.TryLock(ctx)
	}
	for row, c := range map[string]lock{
		"mutex": {take: func(k *lockkeeper.Keeper) (*lockkeeper.Lease, error) {
			l, err := mutex.New(k, "orders:42", &mutex.Options{TTL: ttl})
			must(err)
			return l.TryLock(ctx)
		}},
		"fair": {take: func(k *lockkeeper.Keeper) (*lockkeeper.Lease, error) {
			l, err := fair.New(k, "orders:42", &fair.Options{TTL: ttl})
			must(err)
			return l.TryLock(ctx)
		}},
		"rwlock, one holder":    {take: write},
		"rwlock, all":           {take: write},
		"semaphore, one holder": {take: sem, second: true},
		"semaphore, all":        {take: sem},
	} {
		t.Run(row, func(t *testing.T) {
			must(rdb.FlushDB(ctx).Err())
			limit = 1
			if c.second {
				limit = 2
			}
			_, line, found := strings.Cut(section, "\n| "+row+" | `")
			command, _, _ := strings.Cut(line, "`")
			if !found {
				t.Fatalf("there is no row %q", row)
			}
			k, err := lockkeeper.New(rdb, nil)
			must(err)
			defer func() { _ = k.Close() }()
			lease, err := c.take(k)
			must(err)
			var other *lockkeeper.Lease
			if c.second {
				other, err = c.take(k)
				must(err)
			}
			if _, err := c.take(k); !errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Fatalf("the lock is not held: %v", err)
			}
			var args []any
			for _, f := range strings.Fields(strings.ReplaceAll(command, "TOKEN", lease.Token())) {
				args = append(args, f)
			}
			must(rdb.Do(ctx, args...).Err())
			next, err := c.take(k)
			if err != nil {
				t.Fatalf("after %q: %v", command, err)
			}
			if next.Fence() <= lease.Fence() {
				t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
			}
			select {
			case <-lease.Done():
			case <-time.After(ttl + 5*time.Second): // a third of the TTL, and time for a slow machine
				t.Error("the holder did not detect the loss")
			}
			if !errors.Is(lease.Err(), lockkeeper.ErrLost) {
				t.Error(lease.Err())
			}
			if c.second {
				time.Sleep(ttl / 2) // so that it has been renewed
				if err := other.Err(); err != nil {
					t.Errorf("the other holder: %v", err)
				}
				if used := rdb.ZScore(ctx, "{lock:orders:42}:semaphore:holders", "used").Val(); used != -2 {
					t.Errorf("the sum of the permits is %v", used)
				}
			}
		})
	}
}
