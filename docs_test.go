package lockkeeper

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
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/views"
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
	for _, reason := range LossReasons() {
		check.That(t, strings.Contains(row, "`"+string(reason)+"`"), "docs/observability.md does not list %s in %q", reason, row)
		check.That(t, regexp.MustCompile(`(?m)^//\t`+string(reason)+` +\w`).MatchString(comment),
			"the comment of LossReason does not list %s", reason)
	}
}

// TestDefaultsMatchDocs checks that each default is in the comment of its option, of which docs/options.md is made, equals its constant,
// and applies with nil options.
func TestDefaultsMatchDocs(t *testing.T) {
	page := must.Get(os.ReadFile("docs/options.md"))(t)
	said := func(pattern string) string {
		m := regexp.MustCompile("(?m)^\\| `" + pattern).FindSubmatch(page)
		if m == nil {
			t.Errorf("docs/options.md has no %s", pattern)
			return ""
		}
		return strings.ReplaceAll(string(m[1]), " ", "")
	}
	o := must.Get((*Options)(nil).withDefaults())(t)
	if d := said("Prefix`.*Default \"([^\"]*)\""); o.Prefix != protocol.DefaultPrefix || d != protocol.DefaultPrefix {
		t.Errorf("Prefix: %q, %q, %q", o.Prefix, protocol.DefaultPrefix, d)
	}
	for pattern, x := range map[string]struct{ is, named time.Duration }{
		"HeartbeatInterval`.*Default (\\w+ \\w+)":              {o.HeartbeatInterval, protocol.DefaultHeartbeatInterval},
		"HeartbeatTimeout`.*Default (\\w+ \\w+)":               {o.HeartbeatTimeout, 3 * protocol.DefaultHeartbeatInterval},
		"MetadataTTL`.*Default (\\w+ \\w+)":                    {o.MetadataTTL, defaultMetadataTTL},
		"Retry.MinBackoff.*MinBackoff defaults to (\\w+ \\w+)": {o.Retry.MinBackoff, defaultMinBackoff},
		"Retry.MinBackoff.*; MaxBackoff to (\\w+ \\w+)":        {o.Retry.MaxBackoff, defaultMaxBackoff},
		"Retry.MaxElapsed`.*Default (\\w+ \\w+)":               {o.Retry.MaxElapsed, defaultMaxElapsed},
		"ReplicaAck.Timeout`.*Default (\\w+ \\w+)":             {o.ReplicaAck.Timeout, defaultReplicaAckTimeout},
		"TTL` \\| how long a lease.*Default (\\w+ \\w+)":       {DefaultTTL, DefaultTTL}, // what New does with it is in internal/testing/conformance
	} {
		d, err := time.ParseDuration(said(pattern))
		check.That(t, err == nil && x.is == d && x.named == d,
			"%s is %v, its constant %v, and docs/options.md says %v", pattern, x.is, x.named, d)
	}
	check.That(t, o.Logger != nil, "there is no logger")
}

// TestDerivedDefaults checks defaults that depend on other options.
func TestDerivedDefaults(t *testing.T) {
	type pair struct{ less, more time.Duration }
	heartbeat := func(interval, timeout time.Duration) pair {
		o := must.Get((&Options{HeartbeatInterval: interval, HeartbeatTimeout: timeout}).withDefaults())(t)
		return pair{o.HeartbeatInterval, o.HeartbeatTimeout}
	}
	backoff := func(least, most time.Duration) pair {
		o := must.Get((&Options{Retry: RetryPolicy{MinBackoff: least, MaxBackoff: most}}).withDefaults())(t)
		return pair{o.Retry.MinBackoff, o.Retry.MaxBackoff}
	}
	for want, got := range map[pair]pair{
		{time.Second, 3 * time.Second}:               heartbeat(time.Second, 0),
		{3 * time.Second, 9 * time.Second}:           heartbeat(0, 9*time.Second),
		{time.Minute, time.Minute}:                   backoff(time.Minute, 0),
		{5 * time.Millisecond, 5 * time.Millisecond}: backoff(0, 5*time.Millisecond),
	} {
		check.That(t, got == want, "%v, want %v", got, want)
	}
}

// TestInspectTokens checks what holders and waiters say of tokens of each kind.
func TestInspectTokens(t *testing.T) {
	for _, x := range []struct {
		token, keeper, note string
		permits             int
		writes              bool
		ahead               bool
	}{
		{token: "another library", keeper: ""},
		{token: "k:1:30000.6000", keeper: "k"},
		{token: "k:1:30000.6000r", keeper: "k"},
		{token: "k:1:30000.6000w10", keeper: "k", writes: true}, // the number is the longest streak
		{token: "k:1:30000.6000u", keeper: "k", writes: true},
		{token: "k:1:30000.6000d", keeper: "k"},
		{token: "k:1:30000.6000h3", keeper: "k", permits: 3},
		{token: "k:1:30000.6000c4", keeper: "k", permits: 4},
		{token: "k:1:30000.6000hc5", keeper: "k", permits: 5},
		{token: "k:1~am9iIDQy:30000.6000w", keeper: "k", writes: true, note: "job 42"},
		{token: "k:1~G1sySg:30000.6000w", keeper: "k", writes: true}, // a note that cannot be printed
		{token: "k:1:6000.6000cb40", keeper: "k", permits: 40, ahead: true},
		{token: "k:1:30000.6000f1790000000000000", keeper: "k"}, // the number is the least fence
	} {
		holders := newHolders([]views.Holder{{Token: x.token, Owner: "o", Fence: 7, ExpiresIn: time.Second, Unconfirmed: true}})
		if want := (Holder{x.token, x.keeper, "o", time.UnixMicro(7), 7, time.Second, x.permits, x.writes, true, x.note, x.ahead}); !slices.Equal(holders, []Holder{want}) {
			t.Errorf("holders %+v, want %+v", holders, want)
		}
		waiters := newWaiters([]views.Waiter{{Token: x.token, Owner: "o", WaitTime: time.Minute, HeartbeatLeft: 1, HeartbeatAge: 5}})
		if want := (Waiter{x.token, x.keeper, "o", time.Minute, true, 5, x.permits, x.writes, x.note}); !slices.Equal(waiters, []Waiter{want}) {
			t.Errorf("waiters %+v, want %+v", waiters, want)
		}
	}
	list := newWaiters([]views.Waiter{{HeartbeatLeft: 0}})
	check.That(t, !list[0].Alive, "a waiter whose heartbeat has expired is alive")
}
