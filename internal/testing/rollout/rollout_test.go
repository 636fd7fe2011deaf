// Package rollout tests that processes of an earlier commit and of this one share a server, as while a fleet is deployed anew: with the
// scripts of each, locks exclude, queues keep their order, and no more permits are taken than there are.
package rollout

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

var before = flag.String("before", "", "the commit whose processes run beside those of this checkout, see make rollout; without it all are of this checkout")

const module = "../../.." // of this checkout

func TestOldAndNewProcessesShareAServer(t *testing.T) {
	now, length := build(t, module), "1s"
	programs := []string{now, now}
	if *before != "" {
		programs[0], length = buildCommit(t, *before), "20s"
	}
	for name, clusters := range map[string][2]bool{ // whether processes have a ClusterClient: those of the earlier commit, and the others
		"clients of one kind": {false, false}, "a ClusterClient now": {false, true}, "a ClusterClient before": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var addr string
			if clusters == [2]bool{false, false} {
				addr = redistest.Start(t).Addr
			} else {
				addr = redistest.StartCluster(t, 1, 0).Primaries[0].Addr
			}
			var workers []*redistest.Child // every other one is of the earlier commit
			for i := range 4 {
				args := []string{addr}
				if clusters[i%2] {
					args = append(args, "cluster")
				}
				w := redistest.StartCommand(t, exec.Command(programs[i%2], args...))
				w.WaitForLine("ready")
				workers = append(workers, w)
			}
			// A process of the earlier commit passes over the waiters of keepers whose clients are of another kind.
			if *before == "" || clusters[0] == clusters[1] {
				t.Run("order", func(t *testing.T) { order(t, workers) })
			}
			t.Run("load", func(t *testing.T) { load(t, workers, length) })
		})
	}
}

// order queues requests of all processes in turn, and expects the lock to reach them in that order.
func order(t *testing.T, workers []*redistest.Child) {
	workers[0].WriteLine("queue 0")
	workers[0].WaitForLine("held 0")
	const n = 12
	for i := 1; i < n; i++ {
		w := workers[i%len(workers)]
		w.WriteLine(fmt.Sprint("queue ", i))
		w.WaitForLine(fmt.Sprint("queued ", i))
	}
	for i := 1; i < n; i++ {
		workers[(i-1)%len(workers)].WriteLine("release")
		workers[i%len(workers)].WaitForLine(fmt.Sprint("held ", i)) // others hold nothing meanwhile, or it would not
	}
	workers[(n-1)%len(workers)].WriteLine("release")
}

// allowed is when a rate limit has let a call pass, in µs: between these.
type allowed struct{ from, to int64 }

// load lets all processes take locks of every kind at once. They print what is wrong.
func load(t *testing.T, workers []*redistest.Child, length string) {
	for _, w := range workers {
		w.WriteLine("load " + length)
	}
	var list []allowed
	for i, w := range workers {
		of := []string{"before", "now"}[i%2]
		var done []string
		for line := range w.Lines {
			var a allowed
			if line == "end" {
				break
			}
			switch kind, rest, _ := strings.Cut(line, " "); kind {
			case "wrong":
				t.Errorf("a process of %s: %s", of, rest)
			case "allowed":
				_, _ = fmt.Sscan(rest, &a.from, &a.to)
				list = append(list, a)
			case "done":
				check.That(t, !strings.HasSuffix(line, " 0"), "a process of %s has nothing of %s", of, rest)
				done = append(done, rest)
			}
		}
		check.That(t, len(done) == 6, "a process of %s has ended early, with %v", of, done)
		slices.Sort(done)
		t.Logf("a process of %s: %s", of, strings.Join(done, ", "))
	}

	const limit, window = 40, 500_000 // of the worker
	slices.SortFunc(list, func(a, b allowed) int { return cmp.Compare(a.from, b.from) })
	for i, a := range list {
		n := 0
		for _, b := range list[i:] {
			if b.to <= a.from+window {
				n++
			}
		}
		must.That(t, n <= limit, "%d calls were allowed in a window, at most %d may be", n, limit)
	}
	check.That(t, len(list) >= limit, "only %d calls were allowed", len(list))
}

// buildCommit builds the worker with the sources of a commit of this repository.
func buildCommit(t *testing.T, commit string) (program string) {
	t.Helper()
	if out, err := exec.Command("git", "-C", module, "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("the history of this checkout has no commit %s, whose processes are to run beside those of now (%v: %s). Fetch the whole history, "+
			"as by git fetch --unshallow, or name another commit: make rollout BEFORE=...", commit, err, bytes.TrimSpace(out))
	}
	dir := t.TempDir()
	const script = `set -o pipefail; git archive "$0" | tar -x -C "$1" && mkdir -p "$1/internal/testing/rollout/worker" &&
		cp internal/testing/rollout/worker/main.go "$1/internal/testing/rollout/worker"`
	copyOf := exec.Command("bash", "-c", script, commit, dir)
	copyOf.Dir = module
	if out, err := copyOf.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return build(t, dir)
}

// build builds the worker of a copy of this module.
func build(t *testing.T, module string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "worker")
	cmd := exec.Command("go", "build", "-o", program, "./internal/testing/rollout/worker")
	cmd.Dir = module
	out, err := cmd.CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	return program
}
