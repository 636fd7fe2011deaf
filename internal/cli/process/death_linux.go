package process

import (
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adoptsOrphans reports whether processes whose parents have ended become children of lockkeeper: it is process 1, as in a container, or a
// subreaper.
func adoptsOrphans() bool {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	return os.Getpid() == 1 || err == nil && subreaper != 0
}

// KillWithParent makes the system kill the process when lockkeeper ends, even if the process is suspended.
func KillWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// terminateWithParent makes the system send SIGTERM to the command when lockkeeper is killed, because the lock then expires.
func terminateWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
