package listing

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

func TestFirstKeepsTheFirstInOrder(t *testing.T) {
	for _, n := range []int{1, 2, 7, 100} {
		f := NewFirst(Orders["waiters"], n)
		const all = 50
		for _, i := range rand.Perm(all) {
			f.Add(admin.LockSummary{Name: fmt.Sprintf("n%02d", i), Waiters: i / 2})
			must.That(t, len(f.entries) < 2*n, "%d entries are kept for %d", len(f.entries), n)
		}
		entries, more := f.Entries()
		check.That(t, len(entries) == min(n, all) && more == (n < all), "%d of %d entries, more: %v", len(entries), n, more)
		for i, e := range entries {
			want := fmt.Sprintf("n%02d", all-1-(i^1))
			check.That(t, e.Name == want, "entry %d of %d is %s, want %s", i, n, e.Name, want) // of two with as many waiters, by name
		}
	}
}

func TestOrders(t *testing.T) {
	a := admin.LockSummary{Kind: "fair", Name: "a", Holders: 1, Waiters: 5, ExpiresIn: time.Hour, LongestWait: time.Second}
	b := admin.LockSummary{Kind: "mutex", Name: "b", Holders: 2, Waiters: 1, ExpiresIn: -1, LongestWait: time.Minute}
	c := admin.LockSummary{Kind: "rwlock", Name: "c", Waiters: 2}
	for sort, want := range map[string]string{"name": "abc", "kind": "abc", "holders": "bac", "waiters": "acb", "expiry": "abc", "wait": "bac"} {
		f := NewFirst(Orders[sort], 3)
		for _, e := range []admin.LockSummary{c, b, a} {
			f.Add(e)
		}
		got := ""
		entries, _ := f.Entries()
		for _, e := range entries {
			got += e.Name
		}
		check.That(t, got == want, "--sort %s: %s, want %s", sort, got, want)
	}
	check.That(t, len(Orders) == 6, "an order is not tested")
}
