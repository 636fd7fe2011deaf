package main

import (
	"os/exec"
	"syscall"
)

// dieAtOnce lets the process be killed when lockkeeper ends, frozen or not.
func dieAtOnce(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// dieTogether lets the command get SIGTERM when lockkeeper is killed: it must not outlive the lock unnoticed.
func dieTogether(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
