package output

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// BlockedBy says for each waiter of a lock what it waits for, in words.
func BlockedBy(i *admin.LockState) []string {
	texts := make([]string, len(i.Waiters))
	writersAhead := 0
	for n, w := range i.Waiters {
		texts[n] = blockers(i, n, writersAhead)
		if w.Writes {
			writersAhead++
		}
	}
	return texts
}

// blockers says what the waiter with the index n waits for.
func blockers(i *admin.LockState, n, writersAhead int) string {
	w := i.Waiters[n]
	ahead := ""
	if n > 0 {
		ahead = Count(n, "waiter") + " ahead"
	}
	switch {
	case i.Kind == rwlock.Kind && !w.Writes:
		for _, h := range i.Holders {
			if h.Writes {
				return "the writer that holds it"
			}
		}
		if writersAhead > 0 {
			return Count(writersAhead, "writer") + " ahead"
		}
	case i.Kind == rwlock.Kind && len(i.Holders) > 0:
		held := Count(len(i.Holders), "reader")
		if i.Holders[0].Writes {
			held = "the writer that holds it"
		}
		return and(held, ahead)
	case i.Limits != nil:
		return and(shortage(i.Limits, max(w.Permits, 1)), ahead)
	case len(i.Holders) == 1:
		return and("the holder", ahead)
	case len(i.Holders) > 1:
		return and(Count(len(i.Holders), "holder"), ahead)
	}
	return ahead
}

// shortage says which limit has no room for n permits; "" if all have.
func shortage(l *admin.Limits, n int) string {
	switch {
	case l.PausedFor > 0:
		return "the pause"
	case l.Limit-l.Used < n:
		return fmt.Sprintf("the limit: it needs %d, %d of %d free", n, max(l.Limit-l.Used, 0), l.Limit)
	case l.MaxConcurrent > 0 && l.MaxConcurrent-l.Held < n:
		return fmt.Sprintf("the concurrent permits: it needs %d, %d of %d free", n, max(l.MaxConcurrent-l.Held, 0), l.MaxConcurrent)
	}
	return ""
}

func and(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

// Count returns a number with a noun.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
