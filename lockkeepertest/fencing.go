package lockkeepertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

// Store is the store of a user, or the part of it that one lock protects, as CheckFencing uses it.
type Store struct {
	// Write replaces the value under a fence. It returns an error if the store has seen a larger fence, and then changes
	// nothing.
	Write func(ctx context.Context, fence uint64, value string) error

	// Read returns the value under a fence, and makes the store refuse smaller fences from then on. It returns an error if the
	// store has seen a larger fence. Nil if holders of the lock do not read from the store before they write to it.
	Read func(ctx context.Context, fence uint64) (value string, err error)

	// Stale is what the error of a refused fence matches by errors.Is. Nil if any error will do.
	Stale error
}

// CheckFencing checks that a store refuses holders whose lock has been granted to somebody else since, as the
// [guarantees] require of it. Each check is a subtest with a store of its own, empty and without a fence, which open returns. Fences are
// those of an exclusive lock: mutex, fair, redlock, or rwlock if only writers use the store.
//
// A store may accept the same fence any number of times: it is that of one holder, who reads and writes several times. A
// smaller one must be refused after a read as well as after a write.
//
// It finds, for example, a store that ignores fences; that does not remember the fence of a read; that refuses the second
// write of a holder; that forgets the largest fence when it refuses a smaller one; that compares fences as texts or with 32
// bits; and in most runs one that compares and writes in two steps. It does not check that the fence is as durable as the
// value.
//
// [guarantees]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/guarantees.md#what-a-store-must-do
func CheckFencing(t *testing.T, open func(t *testing.T) Store) {
	t.Helper()
	for _, c := range fencingChecks {
		t.Run(c.name, func(t *testing.T) {
			if err := c.run(checkedStore{open(t), t.Context()}); err != nil {
				t.Error(err)
			}
		})
	}
}

// fencingCheck is a check of a new store.
type fencingCheck struct {
	name      string
	reads     bool // it needs Read
	otherwise string
	check     func(checkedStore) error
}

// run runs the check on a new store.
func (c fencingCheck) run(s checkedStore) error {
	if c.reads && s.Read == nil {
		return nil
	}
	if err := c.check(s); err != nil {
		return fmt.Errorf("%w. A store must not do this, or %s", err, c.otherwise)
	}
	return nil
}

// now is about a fence of today. Fences are at least the server's time in µs.
const now = uint64(1_800_000_000_000_000)

var fencingChecks = []fencingCheck{
	{"larger_fence_is_accepted", false, "the lock stays useless after its second holder", func(s checkedStore) error {
		return cmp.Or(s.writes(1, "a"), s.writes(2, "b"), s.has(2, "b"), s.writes(now, "c"), s.writes(now+1, "d"), s.has(now+1, "d"))
	}},
	{"same_fence_is_accepted", false, "a holder can write only once", func(s checkedStore) error {
		return cmp.Or(s.writes(now, "a"), s.has(now, "a"), s.writes(now, "b"), s.writes(now, "c"), s.has(now, "c"))
	}},
	{"smaller_fence_is_refused_after_write", false, "a late writer overwrites what the present holder has written", func(s checkedStore) error {
		return cmp.Or(s.writes(now+1, "new"), s.refuses(now, "late"), s.has(now+1, "new"))
	}},
	{"smaller_fence_is_refused_after_read", true, "a late writer writes between the read and the write of the present holder, which then overwrites that", func(s checkedStore) error {
		return cmp.Or(s.writes(now, "a"), s.has(now+1, "a"), s.refuses(now, "late"), s.has(now+1, "a"), s.writes(now+1, "b"), s.has(now+1, "b"))
	}},
	{"smaller_fence_cannot_read", true, "a late holder works with what it must not write back", func(s checkedStore) error {
		return cmp.Or(s.writes(now+1, "new"), s.cannotRead(now), s.has(now+1, "new"))
	}},
	{"first_access_may_be_a_read", true, "a late writer creates the value that the present holder has not found", func(s checkedStore) error {
		_, err := s.Read(s.ctx, now+1)
		if err != nil && s.Stale != nil && errors.Is(err, s.Stale) {
			return fmt.Errorf("a new store refused to be read with fence %d: %w", now+1, err)
		}
		return cmp.Or(s.refuses(now, "late"), s.writes(now+1, "new"), s.has(now+1, "new"))
	}},
	{"refusal_keeps_largest_fence", false, "a second late writer, or the same one when it retries, gets in", func(s checkedStore) error {
		return cmp.Or(s.writes(now+5, "new"), s.refuses(now, "late"), s.refuses(now, "late"), s.refuses(now+4, "late"), s.has(now+5, "new"))
	}},
	{"neighboring_fences_are_distinguished", false, "late writers get in whose fence the store cannot tell from that of the present holder; use a 64-bit integer", func(s checkedStore) error {
		var errs []error
		for _, fence := range []uint64{1 << 31, 1 << 32, now} {
			errs = append(errs, s.writes(fence+1, "new"), s.refuses(fence, "late"), s.has(fence+1, "new"))
		}
		return cmp.Or(errs...)
	}},
	{"fences_are_compared_as_numbers", false, "a fence with one digit more is taken for a smaller one", func(s checkedStore) error {
		return cmp.Or(s.writes(9, "a"), s.writes(10, "b"), s.refuses(9, "late"), s.has(10, "b"), s.writes(100, "c"), s.refuses(99, "late"), s.has(100, "c"))
	}},
	{"concurrent_writes", false, "a late writer gets in between the comparison and the write; make them one step", func(s checkedStore) error {
		const writers, rounds = 8, 20
		for round := range uint64(rounds) {
			first := now + round*writers
			errs := make([]error, writers)
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() { errs[i] = s.Write(s.ctx, first+uint64(i), fmt.Sprint(i)) })
			}
			wg.Wait()
			last := first + writers - 1
			if err := errs[writers-1]; err != nil {
				return fmt.Errorf("of %d concurrent writes, the one with the largest fence %d failed: %w", writers, last, err)
			}
			for i, err := range errs {
				if err != nil && s.Stale != nil && !errors.Is(err, s.Stale) {
					return fmt.Errorf("of %d concurrent writes, the one with fence %d failed: %w", writers, first+uint64(i), err)
				}
			}
			if err := s.has(last, fmt.Sprint(writers-1)); err != nil {
				return fmt.Errorf("after %d concurrent writes: %w", writers, err)
			}
			if err := s.refuses(last-1, "late"); err != nil {
				return fmt.Errorf("after %d concurrent writes: %w", writers, err)
			}
		}
		return nil
	}},
}

// checkedStore is a store with what is required of it.
type checkedStore struct {
	Store
	ctx context.Context
}

func (s checkedStore) writes(fence uint64, value string) error {
	if err := s.Write(s.ctx, fence, value); err != nil {
		return fmt.Errorf("a write with fence %d, as large as any before, failed: %w", fence, err)
	}
	return nil
}

func (s checkedStore) refuses(fence uint64, value string) error {
	return s.checkRefusal("write", fence, s.Write(s.ctx, fence, value))
}

func (s checkedStore) cannotRead(fence uint64) error {
	_, err := s.Read(s.ctx, fence)
	return s.checkRefusal("read", fence, err)
}

func (s checkedStore) checkRefusal(what string, fence uint64, err error) error {
	switch {
	case err == nil:
		return fmt.Errorf("a late %s with fence %d was accepted after a larger one", what, fence)
	case s.Stale != nil && !errors.Is(err, s.Stale):
		return fmt.Errorf("a late %s with fence %d failed, but not with %q: %w", what, fence, s.Stale, err)
	}
	return nil
}

// has checks the value, if the store can be read.
func (s checkedStore) has(fence uint64, value string) error {
	if s.Read == nil {
		return nil
	}
	got, err := s.Read(s.ctx, fence)
	if err != nil {
		return fmt.Errorf("a read with fence %d, as large as any before, failed: %w", fence, err)
	}
	if got != value {
		return fmt.Errorf("the value is %q and not %q", got, value)
	}
	return nil
}
