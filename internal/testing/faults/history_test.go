package faults

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"golang.org/x/sys/unix"
)

// now returns the monotonic clock of the machine in ns, which is the same for all processes.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// span is one use of a lock, as its user observed it. Times are those of now.
type span struct {
	Name    string
	Weight  int  // its share of the name's capacity
	Shares  bool // it may have the fence of another, of the same lease (Linger) or block (Ahead)
	Fence   uint64
	Called  int64 // when it was requested
	Queued  int64 // when it was known to be in the queue; 0: it was not
	Granted int64 // when the call returned the lease
	Until   int64 // until when the user relied on it: the release was called, or the deadline passed
	Freed   int64 // when the release was confirmed; 0: it was not, and the lease may have ended at any later time
}

// ends records that the user no longer relies on the lease: it is about to release it, or the deadline has passed.
func (s *span) ends(lease *lockkeeper.Lease) {
	s.Until = now()
	if left := time.Until(lease.Deadline()); left < 0 {
		s.Until += int64(left)
	}
}

func (s *span) end(ctx context.Context, lease *lockkeeper.Lease) error {
	err := lease.Release(ctx)
	if err == nil {
		s.Freed = now()
	}
	return err
}

// history is the spans of names, each with a capacity: 1 for a lock, the limit of a semaphore; a writer takes all of
// a read-write lock and a reader one.
type history struct {
	capacity map[string]int
	ordered  map[string]bool // whether waiters are served in order

	mu    sync.Mutex // guards the fields below
	spans []span
}

func newHistory() *history { return &history{capacity: map[string]int{}, ordered: map[string]bool{}} }

func (h *history) add(s span) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spans = append(h.spans, s)
}

func (h *history) count(of func(span) bool) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.spans {
		if of(s) {
			n++
		}
	}
	return n
}

// check returns the violations in the history, at most a few of each kind.
func (h *history) check() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	by := map[string][]span{}
	for _, s := range h.spans {
		by[s.Name] = append(by[s.Name], s)
	}
	var wrong []string
	for name, spans := range by {
		wrong = append(wrong, checkCapacity(spans, h.capacity[name])...)
		wrong = append(wrong, checkRising(spans, "granted", func(s span) int64 { return s.Granted })...)
		if h.ordered[name] {
			wrong = append(wrong, checkRising(spans, "queued", func(s span) int64 { return s.Queued })...)
		}
	}
	return wrong
}

// checkCapacity checks that at no moment users rely on more than the capacity.
func checkCapacity(spans []span, capacity int) (wrong []string) {
	type edge struct {
		at, change int64
		s          span
	}
	var edges []edge
	for _, s := range spans {
		if s.Until > s.Granted {
			edges = append(edges, edge{s.Granted, int64(s.Weight), s}, edge{s.Until, -int64(s.Weight), s})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.change, b.change)) })
	held := map[span]bool{}
	sum := int64(0)
	for _, e := range edges {
		sum += e.change
		if e.change < 0 {
			delete(held, e.s)
			continue
		}
		held[e.s] = true
		if sum > int64(capacity) && len(wrong) < 3 {
			wrong = append(wrong, fmt.Sprintf("%s: %d of %d are held at %d: %+v", e.s.Name, sum, capacity, e.at, held))
		}
	}
	return wrong
}

// checkRising checks that a request made after another had come this far has a larger fence.
func checkRising(spans []span, what string, at func(span) int64) (wrong []string) {
	before := slices.Clone(spans)
	before = slices.DeleteFunc(before, func(s span) bool { return at(s) == 0 })
	slices.SortFunc(before, func(a, b span) int { return cmp.Compare(at(a), at(b)) })
	after := slices.Clone(spans)
	slices.SortFunc(after, func(a, b span) int { return cmp.Compare(a.Called, b.Called) })
	var last, lastAlone span // of all, and of those that do not share their fence
	for _, s := range after {
		for len(before) > 0 && at(before[0]) < s.Called {
			if before[0].Fence > last.Fence {
				last = before[0]
			}
			if !before[0].Shares && before[0].Fence > lastAlone.Fence {
				lastAlone = before[0]
			}
			before = before[1:]
		}
		last := last
		if s.Shares {
			last = lastAlone
		}
		if s.Fence <= last.Fence && len(wrong) < 3 {
			wrong = append(wrong, fmt.Sprintf("%s: one was %s before another asked, and has the larger fence: %+v, %+v", s.Name, what, last, s))
		}
	}
	return wrong
}

// step is an operation for porcupine: a grant, or with a negative weight a release.
type step struct {
	weight int
	fence  uint64
	shares bool
}

// linearizable reports whether there is an order of all grants and releases of each name, each at some moment
// between its beginning and its end, in which fences rise and the capacity is never exceeded. Refused tries are left
// out: waiters may cause them.
func (h *history) linearizable(within time.Duration) porcupine.CheckResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	by := map[string][]porcupine.Operation{}
	for i, s := range h.spans {
		freed := s.Freed
		if freed == 0 {
			freed = math.MaxInt64
		}
		by[s.Name] = append(by[s.Name],
			porcupine.Operation{ClientId: i, Input: step{s.Weight, s.Fence, s.Shares}, Call: s.Called, Return: s.Granted},
			porcupine.Operation{ClientId: i, Input: step{weight: -s.Weight}, Call: s.Until, Return: freed})
	}
	for name, list := range by {
		type state struct {
			held            int
			last, lastAlone uint64 // the largest fence of all, and of those that do not share it
		}
		model := porcupine.Model{
			Init: func() any { return state{} },
			Step: func(before, input, _ any) (bool, any) {
				s, x := before.(state), input.(step)
				s.held += x.weight
				if x.weight < 0 {
					return s.held >= 0, s
				}
				ok := s.held <= h.capacity[name]
				if x.shares {
					ok = ok && x.fence > s.lastAlone
				} else {
					ok = ok && x.fence > s.last
					s.lastAlone = x.fence
				}
				s.last = max(s.last, x.fence)
				return ok, s
			},
		}
		if got := porcupine.CheckOperationsTimeout(model, list, within); got != porcupine.Ok {
			return got
		}
	}
	return porcupine.Ok
}

// mustBeValid fails the test if a checker finds a violation.
func (h *history) mustBeValid(t *testing.T) {
	t.Helper()
	for _, s := range h.check() {
		t.Error(s)
	}
	got := h.linearizable(30 * time.Second)
	check.That(t, got == porcupine.Ok, "linearizable: %v", got)
}

// TestCheckersDetectBrokenLocks runs the checkers on histories of locks that break a promise each, and on one of reads that share a
// fence, which may be smaller than that of an earlier read, but not than that of an earlier write.
func TestCheckersDetectBrokenLocks(t *testing.T) {
	// hold is a use from a request to the release.
	hold := func(fence uint64, weight int, called, until int64) span {
		return span{Name: "x", Weight: weight, Fence: fence, Called: called, Granted: called + 1, Until: until, Freed: until + 1}
	}
	write := func(fence uint64, called int64) span { return hold(fence, readers, called, called+2) }
	read := func(fence uint64, called int64) span {
		s := hold(fence, 1, called, called+2)
		s.Shares = true
		return s
	}
	overtaken := hold(3, 1, 2, 30)
	overtaken.Queued, overtaken.Granted = 3, 20
	for _, c := range []struct {
		what     string
		capacity int
		ordered  bool
		spans    []span
		valid    bool // nothing is wrong
		linear   bool // fences rise and exclusion holds: only the order is wrong, or nothing
	}{
		{
			what: "mutex_release_without_token_check", capacity: 1,
			// The lease of the first has expired, and its release deletes that of the second.
			spans: []span{hold(1, 1, 0, 30), hold(2, 1, 35, 90), hold(3, 1, 50, 60)},
		},
		{what: "mutex_lease_valid_for_too_long", capacity: 1, spans: []span{hold(1, 1, 0, 90), hold(2, 1, 30, 40)}},
		{what: "fair_fences_per_process", capacity: 1, ordered: true, spans: []span{hold(1, 1, 0, 5), hold(2, 1, 10, 15), hold(1, 1, 20, 25)}},
		{
			what: "fair_newcomer_overtakes_waiter", capacity: 1, ordered: true, linear: true,
			spans: []span{hold(1, 1, 0, 5), hold(2, 1, 10, 15), overtaken},
		},
		{what: "rwlock_reader_ignores_writer", capacity: readers, spans: []span{hold(1, readers, 0, 20), hold(2, 1, 5, 10)}},
		{
			what: "semaphore_permit_released_twice", capacity: 2,
			spans: []span{hold(1, 1, 0, 10), hold(2, 1, 2, 40), hold(3, 1, 15, 30), hold(4, 1, 16, 30)},
		},
		{what: "shared_reads", capacity: readers, spans: []span{write(1, 10), read(2, 20), read(3, 30), read(2, 40), write(4, 50)}, valid: true, linear: true},
		{what: "shared_read_after_write", capacity: readers, spans: []span{read(2, 20), write(3, 30), read(2, 40)}},
		{what: "write_after_shared_read", capacity: readers, spans: []span{read(2, 20), read(3, 30), write(3, 40)}},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := newHistory()
			h.capacity["x"], h.ordered["x"], h.spans = c.capacity, c.ordered, c.spans
			wrong := h.check()
			check.That(t, (len(wrong) == 0) == c.valid, "the sweep found %q", wrong)
			got := h.linearizable(10 * time.Second)
			check.That(t, (got == porcupine.Ok) == c.linear, "linearizable: %v", got)
		})
	}
}
