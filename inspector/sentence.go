package inspector

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// sentence says what a lock is doing, and what its first waiter waits for.
func sentence(i *admin.LockState) string {
	switch {
	case i.RunAgainIn < 0:
		return "The job has succeeded. The record of that never expires."
	case i.RunAgainIn > 0:
		return fmt.Sprintf("The job has succeeded. It may be run again in %s.", duration(i.RunAgainIn))
	case len(i.Holders)+len(i.Waiters) == 0 && (i.Limits == nil || i.Limits.Used == 0):
		return "Nobody holds it, and nobody waits."
	case len(i.Waiters) == 0:
		return "Nobody waits."
	case i.Limits != nil:
		return limitSentence(i)
	case len(i.Holders) == 0:
		return "Nobody holds it. The first waiter that responds is about to be granted it."
	case i.Kind == rwlock.Kind:
		return rwSentence(i)
	case len(i.Waiters) == 1:
		return "One waits for the holder."
	}
	return fmt.Sprintf("%s wait for the holder.", number(len(i.Waiters)))
}

func rwSentence(i *admin.LockState) string {
	writers := 0
	for _, w := range i.Waiters {
		if w.Writes {
			writers++
		}
	}
	waiting := count(writers, "writer", "writers")
	switch readers := len(i.Waiters) - writers; {
	case writers == 0:
		waiting = count(readers, "reader", "readers")
	case readers > 0:
		waiting += " and " + count(readers, "reader", "readers")
	}
	by := count(len(i.Holders), "read lease", "read leases")
	if i.Holders[0].Writes {
		by = "a write lease"
	}
	if len(i.Waiters) == 1 {
		return fmt.Sprintf("%s is blocked by %s.", waiting, by)
	}
	text := fmt.Sprintf("%s are blocked by %s", waiting, by)
	if !i.Holders[0].Writes && writers > 0 && len(i.Waiters) > writers {
		text += "; readers wait because a writer does"
	}
	return text + "."
}

func limitSentence(i *admin.LockState) string {
	first, l := i.Waiters[0], i.Limits
	if l.PausedFor > 0 {
		return fmt.Sprintf("%s for the end of the pause, in %s.", count(len(i.Waiters), "call waits", "calls wait"), duration(l.PausedFor))
	}
	wants := count(max(1, first.Permits), "permit", "permits")
	free := number(max(0, l.Limit-l.Used))
	text := fmt.Sprintf("%s: the first wants %s, and %s of %s are free.", count(len(i.Waiters), "waiter", "waiters"), wants, free, number(l.Limit))
	if l.MaxConcurrent > 0 && l.Held >= l.MaxConcurrent {
		text += fmt.Sprintf(" All %s concurrent calls are in use.", number(l.MaxConcurrent))
	}
	return text
}
