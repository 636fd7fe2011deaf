package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// view is what one look has found.
type view struct {
	at                      time.Time
	took                    time.Duration
	locks, holders, waiters int
	entries                 []admin.LockSummary // the first ones, in order
	oneNode                 bool                // the locks are those of one node of a Cluster
}

// object is the output of --json. The help of the command documents the field names.
type object struct {
	Time    time.Time      `json:"time"`
	TookMS  int64          `json:"took_ms"`
	Locks   int            `json:"locks"`
	Holders int            `json:"holders"`
	Waiters int            `json:"waiters"`
	Top     []output.Entry `json:"top"`
}

func (v *view) json() object {
	o := object{v.at.UTC(), v.took.Milliseconds(), v.locks, v.holders, v.waiters, []output.Entry{}}
	for _, e := range v.entries {
		o.Top = append(o.Top, output.NewEntry(e))
	}
	return o
}

func (v *view) summary() string {
	text := fmt.Sprintf("%s: %s, %s, %s", v.at.Format("15:04:05"), output.Count(v.locks, "lock"), output.Count(v.holders, "holder"), output.Count(v.waiters, "waiter"))
	if v.oneNode {
		text += "; " + connect.OneNode
	}
	return text
}

// text formats the view as plain text.
func (v *view) text(title string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", title, v.summary())
	if len(v.entries) > 0 {
		b.WriteString("\n" + output.EntryHeader + "\n")
	}
	for _, e := range v.entries {
		b.WriteString(output.EntryLine(e) + "\n")
	}
	if hidden := v.locks - len(v.entries); hidden > 0 {
		fmt.Fprintf(&b, "and %d more\n", hidden)
	}
	return b.String()
}

// frame formats the view for a terminal: at most height lines, none wider than width. An error of the last look is shown
// instead of the time.
func (v *view) frame(title string, err error, width, height int) []string {
	summary := v.summary()
	if err != nil {
		summary = fmt.Sprintf("no answer since %s: %s", v.at.Format("15:04:05"), output.Text(err.Error()))
	}
	lines := []string{title, summary, "", output.EntryHeader}
	const footer = 1
	rows := max(min(len(v.entries), height-len(lines)-footer), 0)
	for _, e := range v.entries[:rows] {
		lines = append(lines, output.EntryLine(e))
	}
	end := "q quits"
	if hidden := v.locks - rows; hidden > 0 {
		end = fmt.Sprintf("and %d more; %s", hidden, end)
	}
	lines = append(lines, end)
	for i, line := range lines {
		lines[i] = output.Cut(line, width)
	}
	return lines[:min(len(lines), height)]
}
