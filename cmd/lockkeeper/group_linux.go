package main

import "syscall"

// dieTogether lets the command get SIGTERM when lockkeeper is killed: it must not outlive the lock unnoticed.
func dieTogether(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
