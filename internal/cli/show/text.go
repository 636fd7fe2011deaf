package show

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// text formats the state of a lock for people.
func text(i *lockkeeper.Inspection) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %s, %s", i.Kind, output.Name(i.Name), output.Count(len(i.Holders), "holder"), output.Count(len(i.Waiters), "waiter"))
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
	if i.RunAgainIn > 0 {
		fmt.Fprintf(&b, "the job has succeeded; it may be run again in %s\n", output.Duration(i.RunAgainIn))
	}
	b.WriteString(output.HolderTable(i.Kind, i.Holders))
	b.WriteString(output.WaiterTable(i))
	return b.String()
}
