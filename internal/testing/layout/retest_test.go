package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestRetestListsWhatFailedAtFirst runs tools/retest with a go command that fails at first, and checks what it lists and runs once more.
func TestRetestListsWhatFailedAtFirst(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("it takes bash")
	}
	const flaky = `ok  	example.com/m/first	0.1s
--- FAIL: TestTop (1.20s)
    --- FAIL: TestTop/real (1.00s)
        --- FAIL: TestTop/real/frozen_holder (0.90s)
            x_test.go:1: message: --- FAIL: TestQuoted (1s)
    --- FAIL: TestTop/virtual (0.20s)
--- FAIL: TestOther (0.01s)
FAIL
FAIL	example.com/m/second	2.345s
--- FAIL: ExampleLock (0.00s)
FAIL
FAIL	example.com/m/third	0.345s
FAIL
`
	want := `example.com/m/second TestTop/real/frozen_holder
example.com/m/second TestTop/virtual
example.com/m/second TestOther
example.com/m/third ExampleLock
`
	for _, c := range []struct {
		name, output, env string
		list              string
		passes            bool
		again             []string // that is run once more
	}{
		{"passes_alone", flaky, "RETEST=1", want, true, []string{
			`-race -count=1 -p 1 -run ^TestTop$/^real$/^frozen_holder$|^TestTop$/^virtual$|^TestOther$ example.com/m/second -args -x=1`,
			`-race -count=1 -p 1 -run ^ExampleLock$ example.com/m/third -args -x=1`,
		}},
		{"no_test_named", "FAIL\texample.com/m/second\t0.1s\nFAIL\n", "RETEST=1", "example.com/m/second (no test named)\n", true, []string{
			`-race -count=1 -p 1 example.com/m/second -args -x=1`,
		}},
		{"no_second_attempt", flaky, "RETEST=0", want, false, nil},
		{"panic", "panic: oh\n\ngoroutine 1\nFAIL\texample.com/m/second\t0.1s\nFAIL\n", "RETEST=1", "example.com/m/second (panic: oh)\n", false, nil},
		{"does_not_build", "FAIL\texample.com/m/second [build failed]\nFAIL\n", "RETEST=1", "example.com/m/second [build failed]\n", false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			script := "#!/bin/sh\ncase \"$*\" in *-p?1*) echo \"again: $*\"; exit 0 ;; esac\ncat \"$RETEST_OUTPUT\"\nexit 1\n"
			for name, text := range map[string]string{"go": script, "output": c.output} {
				must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
			}
			list := filepath.Join(dir, "list")
			cmd := exec.Command("tools/retest", "-race", "./...", "-args", "-x=1")
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "RETEST_OUTPUT="+filepath.Join(dir, "output"), "RETEST_LIST="+list, c.env)
			out, err := cmd.CombinedOutput()
			check.That(t, (err == nil) == c.passes, "%v\n%s", err, out)
			got, err := os.ReadFile(list)
			check.That(t, err == nil && string(got) == c.list, "listed, error %v:\n%s\nwant:\n%s", err, got, c.list)
			check.That(t, strings.Count(string(out), "again: ") == len(c.again), "runs once more, of which %d are wanted:\n%s", len(c.again), out)
			for _, args := range c.again {
				check.That(t, strings.Contains(string(out), "again: test "+args+"\n"), "not run once more: %s\n%s", args, out)
			}
			check.That(t, strings.Contains(string(out), c.output), "the failure is not in the output:\n%s", out)
		})
	}
}
