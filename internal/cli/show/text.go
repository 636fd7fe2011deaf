package show

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// text formats the state of a lock for people.
func text(i *admin.LockState) string {
	var b strings.Builder
	noun := "holder"
	if i.Limits.ByClock() {
		noun = "request" // in the window
	}
	fmt.Fprintf(&b, "%s %s: %s, %s", i.Kind, output.Name(i.Name), output.Count(len(i.Holders), noun), output.Count(len(i.Waiters), "waiter"))
	if i.Fence != 0 {
		fmt.Fprintf(&b, ", last fence %d", i.Fence)
	}
	b.WriteString("\n")
	if l := i.Limits; l != nil {
		fmt.Fprintf(&b, "permits: %d of %d used", l.Used, l.Limit)
		if l.Window > 0 {
			fmt.Fprintf(&b, " in %s", output.Duration(l.Window))
		}
		if l.MaxConcurrent > 0 {
			fmt.Fprintf(&b, ", %d of %d held", l.Held, l.MaxConcurrent)
		}
		if l.PausedFor > 0 {
			fmt.Fprintf(&b, ", paused for another %s", output.Duration(l.PausedFor))
		}
		b.WriteString("\n")
	}
	if i.RunAgainIn < 0 {
		b.WriteString("the job has succeeded; the record of that never expires\n")
	} else if i.RunAgainIn > 0 {
		fmt.Fprintf(&b, "the job has succeeded; it may be run again in %s\n", output.Duration(i.RunAgainIn))
	}
	holders, waiters := output.HolderTable(i), output.WaiterTable(i)
	if i.Limits.ByClock() { // who waits matters more than whose permits return by themselves
		holders, waiters = waiters, holders
	}
	b.WriteString(holders + waiters)
	return b.String()
}
