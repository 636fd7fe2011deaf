package layout

import (
	"fmt"
	"go/format"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestDocLinksResolve: relative links in the documentation lead to files, directories and headings that exist.
func TestDocLinksResolve(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			} else if anchor != "" && !anchors(read(t, target))[anchor] {
				t.Errorf("%s: %s leads to no heading", page, m[1])
			}
		}
	}
}

// TestContributingNamesExistingCode: a file that CONTRIBUTING.md names exists, and contains the names that follow it.
func TestContributingNamesExistingCode(t *testing.T) {
	n := 0
	for line := range strings.Lines(read(t, "CONTRIBUTING.md")) {
		file := ""
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
			switch ext := filepath.Ext(m[1]); {
			case strings.Contains(m[1], "NAME"):
			case strings.Contains(m[1], "/") && (ext == ".go" || ext == ".lua"):
				file = m[1]
				read(t, file)
				n++
			case file != "" && regexp.MustCompile(`^\w+$`).MatchString(m[1]):
				check.That(t, regexp.MustCompile(`\b`+m[1]+`\b`).MatchString(read(t, file)), "%s has no %s", file, m[1])
				n++
			}
		}
	}
	check.That(t, n >= 40, "only %d names were found", n)
	_, path, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## From `fair.Lock`")
	path, _, _ = strings.Cut(path, "\n## ")
	files := map[string]bool{}
	for _, file := range regexp.MustCompile(`[\w/]+\.go\b`).FindAllString(path, -1) {
		files[file] = true
	}
	if len(files) != 15 {
		t.Errorf("an acquisition passes %d files: %v", len(files), slices.Sorted(maps.Keys(files)))
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	list := must.Get(filepath.Glob("docs/*.md"))(t)
	more := must.Get(filepath.Glob("contrib/*/README.md"))(t)
	return append(append(list, more...), "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md", "contrib/README.md",
		"examples/README.md", "internal/testing/faults/README.md", "internal/claim/README.md", "internal/quorum/README.md",
		"internal/testing/README.md", "internal/testing/conformance/README.md", "internal/keeper/README.md", "lua/policy/README.md")
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.Report(t, err)
	return string(text)
}

// anchors are the ids that GitHub gives to the headings of a page.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		id := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(id, " ", "-")] = true
	}
	return all
}

// TestREADMEProgramBuilds checks that the first code of the README is a whole program that compiles with the imports it names.
func TestREADMEProgramBuilds(t *testing.T) {
	page := read(t, "README.md")
	_, rest, _ := strings.Cut(page, "```go\n")
	program, _, _ := strings.Cut(rest, "```")
	formatted, err := format.Source([]byte(program))
	check.That(t, err == nil && string(formatted) == program, "not formatted: %v", err)
	file := filepath.Join(t.TempDir(), "main.go")
	must.OK(t, os.WriteFile(file, []byte(program), 0o644))
	if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil || !strings.HasPrefix(program, "package main\n") {
		t.Errorf("%v\n%s\n%s", err, out, program)
	}
	n := strings.Count(page, "\n")
	check.That(t, n <= 135, "the README has %d lines", n)
}

// TestVetReportsCopies: go vet reports that a value of these types is copied, which shares half of its state with the original.
func TestVetReportsCopies(t *testing.T) {
	types := []string{
		"lockkeeper.Keeper", "lockkeeper.Lease", "lockkeeper.Leases", "mutex.Mutex", "fair.Lock", "rwlock.Lock", "semaphore.Semaphore",
		"ratelimit.Limiter", "ratelimit.ConcurrentLimiter", "redlock.Lock", "once.Once", "election.Election", "joblimit.Limiter",
	}
	program := "package main\n\nimport (\n\t\"github.com/lockkeeper/lockkeeper\"\n"
	functions := ""
	for i, name := range types {
		pkg, _, _ := strings.Cut(name, ".")
		if line := "\t\"github.com/lockkeeper/lockkeeper/" + pkg + "\"\n"; pkg != "lockkeeper" && !strings.Contains(program, line) {
			program += line
		}
		functions += fmt.Sprintf("func copy%d(x *%s) any { y := *x; return &y }\n", i, name)
	}
	file := filepath.Join(t.TempDir(), "main.go")
	must.OK(t, os.WriteFile(file, []byte(program+")\n\nfunc main() {}\n"+functions), 0o644))
	out, err := exec.Command("go", "vet", file).CombinedOutput()
	must.That(t, err != nil, "go vet reports nothing")
	for i, name := range types {
		check.That(t, strings.Contains(string(out), name+" contains"), "a copy of %s in copy%d is not reported:\n%s", name, i, out)
	}
}

// TestKindsAreDocumented: metrics have the kind of every primitive.
func TestKindsAreDocumented(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `lockkeeper.kind` \\|.*").FindString(read(t, "docs/observability.md"))
	for _, set := range lua.All {
		check.That(t, strings.Contains(row, "`"+set.Kind+"`"), "docs/observability.md does not list %s in %q", set.Kind, row)
	}
}

// TestLossReasonsAreDocumented: the comment of LossReason and the table of attributes have every reason.
func TestLossReasonsAreDocumented(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `lockkeeper.reason` \\|.*").FindString(read(t, "docs/observability.md"))
	comment := read(t, "hooks.go")
	for _, reason := range lockkeeper.LossReasons() {
		check.That(t, strings.Contains(row, "`"+string(reason)+"`"), "docs/observability.md does not list %s in %q", reason, row)
		check.That(t, regexp.MustCompile(`(?m)^//\t`+string(reason)+` +\w`).MatchString(comment),
			"the comment of LossReason does not list %s", reason)
	}
}

// TestGuaranteesNameExistingTests: the numbers in docs/guarantees.md are links to the files of the tests that show what it says, with the name
// of a test function or case behind #. Each must exist, and be referred to.
func TestGuaranteesNameExistingTests(t *testing.T) {
	text := read(t, "docs/guarantees.md")
	linked := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\[(\d+)\]:\.\./(\S+)#(\S+)$`).FindAllStringSubmatch(text, -1) {
		number, path, name := m[1], m[2], m[3]
		check.That(t, !linked[number], "[%s] is linked twice", number)
		linked[number] = true
		check.That(t, strings.Count(text, "["+number+"]") > 1, "nothing refers to test %s, %s", number, name)
		want := `"` + name + `"`
		if strings.HasPrefix(name, "Test") {
			want = "func " + name + "("
		}
		check.That(t, strings.Contains(read(t, path), want), "%s has no test %s", path, name)
	}
	for _, m := range regexp.MustCompile(`\[(\d+)\]`).FindAllStringSubmatch(text, -1) {
		check.That(t, linked[m[1]], "[%s] is linked to no test", m[1])
	}
	check.That(t, len(linked) != 0, "there is no link to a test")
}
