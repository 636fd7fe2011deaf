package top

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

func someView(n int) *view {
	v := &view{at: time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC), took: 40 * time.Millisecond, locks: n, holders: n, waiters: 2 * n}
	for i := range n {
		v.entries = append(v.entries, admin.LockSummary{Kind: "semaphore", Name: fmt.Sprintf("orders:日本\x1b:%d", i), Holders: 1, Waiters: 2, ExpiresIn: 25 * time.Second, LongestWait: 90 * time.Second})
	}
	return v
}

func TestFrameFitsTheWindow(t *testing.T) {
	for _, n := range []int{0, 1, 5, 100} {
		for _, width := range []int{1, 2, 20, 66, 67, 68, 69, 70, 80, 300} {
			for _, height := range []int{1, 2, 4, 5, 6, 24, 200} {
				for _, err := range []error{nil, errors.New("read: \x1b[31m" + strings.Repeat("x", 500))} {
					lines := someView(n).frame("redis://127.0.0.1:6379, prefix lock:", err, width, height)
					check.That(t, len(lines) <= height, "%d lines in a window of %d", len(lines), height)
					for _, line := range lines {
						check.That(t, output.Width(line) <= width && !strings.ContainsAny(line, "\x1b\n\r"),
							"%q in a window of %d columns", line, width)
					}
				}
			}
		}
	}
}

func TestPlainView(t *testing.T) {
	v := someView(1)
	v.locks = 3
	want := `title
01:02:03: 3 locks, 1 holder, 2 waiters

KIND       HOLDERS  WAITERS  EXPIRES IN  LONGEST WAIT  NAME
semaphore        1        2         25s         1m30s  "orders:日本\x1b:0"
and 2 more
`
	if got := v.text("title"); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
	if got := (&view{at: v.at}).text("title"); got != "title\n01:02:03: 0 locks, 0 holders, 0 waiters\n" {
		t.Errorf("%q", got)
	}
}
