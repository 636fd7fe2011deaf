package output

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/taken"
)

// Table formats rows in columns, the first row as the header. Columns that are empty in all rows but the first are left out.
func Table(rows [][]string) string {
	widths, used := make([]int, len(rows[0])), make([]bool, len(rows[0]))
	for n, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], Width(cell))
			used[i] = used[i] || n > 0 && cell != ""
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			if used[i] {
				line += Pad(cell, widths[i]) + "  "
			}
		}
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
	}
	return b.String()
}

// HolderTable formats the holders of a lock; "" if there are none. Permits that return by the clock are added up by owner.
func HolderTable(i *admin.LockState) string {
	list := i.Holders
	switch {
	case len(list) == 0:
		return ""
	case i.Limits.ByClock():
		return takenTable(list)
	}
	rows := [][]string{{"HOLDER", "NOTE", "MODE", "PERMITS", "SINCE", "EXPIRES IN", "FENCE", "TOKEN"}}
	for _, h := range list {
		since, fence := "", ""
		if !h.Since.IsZero() {
			since = h.Since.UTC().Format("2006-01-02 15:04:05Z")
		}
		if h.Fence != 0 {
			fence = fmt.Sprint(h.Fence)
		}
		rows = append(rows, []string{Who(h.Owner, h.Keeper), h.Note, Mode(i.Kind, h.Writes), Permits(h.Permits), since, Expiry(h.ExpiresIn), fence, Name(h.Token)})
	}
	return "\n" + Table(rows)
}

// takenTable formats permits that return by the clock.
func takenTable(list []lockkeeper.Holder) string {
	rows := [][]string{{"TAKEN BY", "PERMITS", "AHEAD", "REQUESTS", "FIRST RETURN", "LAST RETURN"}}
	for _, t := range taken.ByOwner(list) {
		rows = append(rows, []string{Who(t.Owner, t.Keeper), fmt.Sprint(t.Permits), Permits(t.Ahead), fmt.Sprint(t.Requests), Expiry(t.First), Expiry(t.Last)})
	}
	return "\n" + Table(rows)
}

// WaiterTable formats the waiters for a lock; "" if there are none.
func WaiterTable(i *admin.LockState) string {
	if len(i.Waiters) == 0 {
		return ""
	}
	rows := [][]string{{"WAITER", "NOTE", "MODE", "PERMITS", "WAITS", "ALIVE", "HEARTBEAT", "BLOCKED BY", "TOKEN"}}
	blocked := BlockedBy(i)
	for n, w := range i.Waiters {
		alive := "yes"
		if !w.Alive {
			alive = "no"
		}
		rows = append(rows, []string{Who(w.Owner, w.Keeper), w.Note, Mode(i.Kind, w.Writes), Permits(w.Permits), Duration(w.WaitTime), alive, Duration(w.HeartbeatAge) + " ago", blocked[n], Name(w.Token)})
	}
	return "\n" + Table(rows)
}

// Permits formats a number of permits; "" if it does not apply.
func Permits(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
