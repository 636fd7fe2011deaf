//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

// terminateWithParent does nothing: only Linux can signal a process when its parent ends.
func terminateWithParent(*syscall.SysProcAttr) {}

// KillWithParent does nothing here, as terminateWithParent.
func KillWithParent(*exec.Cmd) {}
