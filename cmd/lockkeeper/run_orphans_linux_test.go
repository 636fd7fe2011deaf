package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of orphans, as process 1 of a container is.
func adoptOrphans() {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(fmt.Sprintf("prctl: %v", err))
	}
}

// children returns how many children the process has, zombies included.
func (c *testCommand) children() (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // the process may have ended
		_, rest, _ := bytes.Cut(text, []byte(") "))
		if fields := bytes.Fields(rest); len(fields) > 1 && string(fields[1]) == strconv.Itoa(c.Process.Pid) {
			n++
		}
	}
	return n
}

// TestReapsOrphans: processes that the command leaves behind become children of lockkeeper, which reaps them, and still learns of the end of
// the command.
func TestReapsOrphans(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	c := runner(t, url)("x", "--", "sh", "-c", "for i in 1 2 3 4 5; do ( (while ! [ -e go ]; do sleep 0.02; done) & ); done; : >ready; while ! [ -e end ]; do sleep 0.02; done; exit 7")
	c.Dir = t.TempDir()
	c.Env = append(c.Env, "LOCKKEEPER_TEST_ADOPTS=1")
	c.starts().creates("ready")
	eventually(t, "the orphans are its children", func() bool { return c.children() == 6 })
	c.finds("go")
	eventually(t, "the orphans are reaped", func() bool { return c.children() == 1 })
	c.finds("end")
	c.waits(7)
	isFree(t, rdb, "lock:x")
}

// TestReapsOrphansOfLostLock: the process group counts as ended when all that remains of it are zombies.
func TestReapsOrphansOfLostLock(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	c := runner(t, url)("--ttl", "1500ms", "--grace", "1h", "x", "--", "sh", "-c", "(sh -c 'trap \"sleep 0.5; exit\" TERM; : >ready; while :; do sleep 0.02; done' &); exec sleep 1000")
	c.Dir = t.TempDir()
	c.Env = append(c.Env, "LOCKKEEPER_TEST_ADOPTS=1")
	c.starts().creates("ready")
	rdb.Del(ctx, "lock:x")
	c.waits(76)
}
