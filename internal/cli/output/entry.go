package output

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/admin"
)

// EntryHeader is the header of the lines of EntryLine.
const EntryHeader = "KIND       HOLDERS  WAITERS  EXPIRES IN  LONGEST WAIT  NAME"

// EntryLine formats an entry. Its columns have fixed widths, so that it can be printed before others are known.
func EntryLine(e admin.LockSummary) string {
	expires, wait := "-", "-"
	if e.Holders > 0 {
		expires = Expiry(e.ExpiresIn)
	}
	if e.Waiters > 0 {
		wait = Duration(e.LongestWait)
	}
	return fmt.Sprintf("%-9s  %7d  %7d  %10s  %12s  %s", e.Kind, e.Holders, e.Waiters, expires, wait, Name(e.Name))
}
