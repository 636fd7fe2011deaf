// Package listing has what ls and top share: which locks they list, and in which order.
package listing

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/lookup"
	"github.com/spf13/cobra"
)

// Filter is the flags and the argument that choose locks.
type Filter struct {
	Match         string
	kinds         []string
	waitingLonger time.Duration
}

// Register adds the flags to a command.
func (f *Filter) Register(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.kinds, "kind", nil, "only locks of this `kind`, may be repeated: "+strings.Join(lookup.Kinds(), ", "))
	c.Flags().DurationVar(&f.waitingLonger, "waiting-longer", 0, "only locks with a waiter that has waited for longer, such as 30s")
	lookup.CompleteKinds(c)
}

// Options returns the options of List, or a usage error.
func (f *Filter) Options() (*admin.ListOptions, error) {
	var kinds []lockkeeper.Kind
	for _, kind := range f.kinds {
		if err := lookup.CheckKind(kind); err != nil {
			return nil, err
		}
		kinds = append(kinds, lockkeeper.Kind(kind))
	}
	if f.waitingLonger < 0 {
		return nil, exit.Usagef("--waiting-longer %v is negative", f.waitingLonger)
	}
	return &admin.ListOptions{Kinds: kinds, Match: f.Match, WaitingLonger: f.waitingLonger}, nil
}

// Args accepts at most one pattern.
func Args(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return exit.Usagef("%d patterns, want one at most; quote a pattern, or the shell expands it; usage: %s", len(args), c.UseLine())
	}
	return nil
}

// Order compares entries.
type Order func(a, b admin.LockSummary) int

// Orders are the values of --sort. Entries that are equal are sorted by name and kind.
var Orders = map[string]Order{
	"name":    func(a, b admin.LockSummary) int { return 0 },
	"kind":    func(a, b admin.LockSummary) int { return cmp.Compare(a.Kind, b.Kind) },
	"holders": func(a, b admin.LockSummary) int { return cmp.Compare(b.Holders, a.Holders) },
	"waiters": func(a, b admin.LockSummary) int {
		return cmp.Or(cmp.Compare(b.Waiters, a.Waiters), cmp.Compare(b.LongestWait, a.LongestWait), cmp.Compare(b.Holders, a.Holders))
	},
	"expiry": func(a, b admin.LockSummary) int { return cmp.Compare(expiry(a), expiry(b)) },
	"wait":   func(a, b admin.LockSummary) int { return cmp.Compare(b.LongestWait, a.LongestWait) },
}

// expiry orders what expires soonest first, then what never expires, then what is not held.
func expiry(e admin.LockSummary) time.Duration {
	const never = 1<<63 - 2
	switch {
	case e.Holders == 0:
		return never + 1
	case e.ExpiresIn < 0:
		return never
	}
	return e.ExpiresIn
}

// Sorts are the names of Orders.
func Sorts() []string {
	var all []string
	for name := range Orders {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// First keeps the first entries in an order, with memory for twice as many.
type First struct {
	order   Order
	n       int
	entries []admin.LockSummary
	dropped bool
}

// NewFirst returns a First for n entries.
func NewFirst(order Order, n int) *First { return &First{order: order, n: n} }

// Add adds an entry.
func (f *First) Add(e admin.LockSummary) {
	f.entries = append(f.entries, e)
	if len(f.entries) >= 2*f.n {
		f.cut()
	}
}

// Entries returns the first entries in order, and whether there were more.
func (f *First) Entries() (entries []admin.LockSummary, more bool) {
	f.cut()
	return f.entries, f.dropped
}

func (f *First) cut() {
	slices.SortFunc(f.entries, func(a, b admin.LockSummary) int {
		return cmp.Or(f.order(a, b), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	if len(f.entries) > f.n {
		f.entries, f.dropped = f.entries[:f.n], true
	}
}
