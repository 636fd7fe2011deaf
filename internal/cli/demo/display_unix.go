//go:build unix

package demo

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalSize returns the size of a terminal, or that of most if it is not known.
func terminalSize(f *os.File) (columns, rows int) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}
