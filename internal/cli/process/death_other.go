//go:build unix && !linux

package process

import (
	"os"
	"os/exec"
	"syscall"
)

// terminateWithParent does nothing: only Linux can signal a process when its parent ends.
func terminateWithParent(*syscall.SysProcAttr) {}

// adoptsOrphans reports whether processes whose parents have ended become children of lockkeeper, as those of process 1.
func adoptsOrphans() bool { return os.Getpid() == 1 }

// KillWithParent does nothing here, as terminateWithParent.
func KillWithParent(*exec.Cmd) {}
