package demo

import "os"

// terminalSize returns the size of most terminals.
func terminalSize(*os.File) (columns, rows int) { return 80, 24 }
