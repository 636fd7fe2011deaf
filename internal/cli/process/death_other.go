//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

func terminateWithParent(*syscall.SysProcAttr) {}

func KillWithParent(*exec.Cmd) {}
