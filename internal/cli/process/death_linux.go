package process

import (
	"os/exec"
	"syscall"
)

// KillWithParent makes the system kill the process when lockkeeper ends, even if the process is suspended.
func KillWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// terminateWithParent makes the system send SIGTERM to the command when lockkeeper is killed, because the lock then expires.
func terminateWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
