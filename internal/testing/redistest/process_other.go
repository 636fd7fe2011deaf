//go:build !linux

package redistest

import (
	"os/exec"
	"time"
)

func start(cmd *exec.Cmd) error { return cmd.Start() }

// stopped waits, because there is no portable way to see whether SIGSTOP has taken effect.
func stopped(int) bool {
	time.Sleep(50 * time.Millisecond)
	return true
}
