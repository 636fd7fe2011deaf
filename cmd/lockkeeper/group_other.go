//go:build unix && !linux

package main

import "syscall"

func dieTogether(*syscall.SysProcAttr) {}
