package redistest

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

// start starts a process that is killed when this one ends, however it ends. The kernel sends that signal when the
// starting thread ends, not the process (prctl(2), PR_SET_PDEATHSIG), so one permanent thread starts them all.
func start(cmd *exec.Cmd) error {
	starter.once.Do(func() { go startAll() })
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done := make(chan error)
	starter.queue <- func() { done <- cmd.Start() }
	return <-done
}

var starter = struct {
	once  sync.Once
	queue chan func()
}{queue: make(chan func())}

func startAll() {
	runtime.LockOSThread()
	for f := range starter.queue {
		f()
	}
}

// stopped reports whether SIGSTOP has taken effect.
func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	i := bytes.LastIndexByte(stat, ')')
	return err == nil && i > 0 && len(stat) > i+2 && stat[i+2] == 'T'
}
