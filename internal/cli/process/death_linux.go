package process

import (
	"os/exec"
	"syscall"
)

// KillWithParent lets the process be killed when lockkeeper ends, frozen or not.
func KillWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// terminateWithParent lets the command get SIGTERM when lockkeeper is killed: it must not outlive the lock unnoticed.
func terminateWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
