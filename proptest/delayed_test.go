package proptest

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/mutation"
)

// This file runs the simulation with another order of what a lease's driver does. In virtual time nothing else happens between two effects
// of one step, because they take no time. In these builds a pause of some microseconds precedes each of them, and one of milliseconds
// divides the steps of Close: replies, messages, timers, calls and other processes come in between.

// delays are the pauses: in a function of a file, before each of these texts.
var delays = []struct {
	file, from, to string
	before         []string
	pause          string
}{
	{"internal/keeper/effects.go", "func (a *actions) delivered(", "// observeEnd reports", []string{"\tif a.", "\tswitch {\n\tcase !a.AskBreaker", "\th.Mu.Lock()"}, "time.Duration(time.Now().UnixNano()/7%8) * time.Microsecond"},
	{"internal/keeper/keeper.go", "func (k *Keeper) Close(", "k.WaitShutdown()", []string{"\twaiters := ", "\tfor _, "}, "3 * time.Millisecond"},
}

// delayed returns the files with these pauses, and with the bug, if there is one.
func delayed(t *testing.T, root string, bug *mutation.Mutant) map[string][]byte {
	t.Helper()
	texts := map[string][]byte{}
	if bug != nil {
		path, text := bug.Source(t, root)
		texts[path] = text
	}
	for _, d := range delays {
		path := filepath.Join(root, d.file)
		text := texts[path]
		if text == nil {
			var err error
			if text, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
		from := bytes.Index(text, []byte(d.from))
		to := from + bytes.Index(text[max(from, 0):], []byte(d.to))
		if from < 0 || to < from {
			t.Fatalf("%s has no %q before %q", d.file, d.from, d.to)
		}
		part := text[from:to]
		for _, before := range d.before {
			old := []byte("\n" + before)
			if !bytes.Contains(part, old) {
				t.Fatalf("%s has no %q after %q", d.file, before, d.from)
			}
			part = bytes.ReplaceAll(part, old, []byte("\n\ttime.Sleep("+d.pause+")\n"+before))
		}
		texts[path] = bytes.Join([][]byte{text[:from], part, text[to:]}, nil)
	}
	return texts
}

// TestDelayedEffects runs the simulation of each primitive in such a build, for a quarter of the schedules that were asked for. Without a
// number it checks that the pauses can be put in.
func TestDelayedEffects(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	texts := delayed(t, root, nil)
	if !checksSet {
		return
	}
	n, _ := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	binary := mutation.BuildWith(t, ".", texts)
	for _, p := range primitives {
		t.Run(p.name, func(t *testing.T) {
			out, err := exec.Command(binary, "-delayed-effects", "-test.run=^TestSimulation$/^"+p.name+"$", "-rapid.nofailfile",
				"-rapid.checks="+strconv.Itoa(max(n/4, 1)), "-rapid.seed="+flag.Lookup("rapid.seed").Value.String()).CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}
