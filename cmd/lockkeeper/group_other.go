//go:build unix && !linux

package main

import (
	"os/exec"
	"syscall"
)

func dieTogether(*syscall.SysProcAttr) {}

func dieAtOnce(*exec.Cmd) {}
