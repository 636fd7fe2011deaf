package lua

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// The header of every transition documents its arguments and replies. These tests compare it with the body of the script,
// with the call that internal/server/calls.go makes of it, and with the list of reply codes in Go.

var (
	headerKey = regexp.MustCompile(`^-- KEYS\[(\d)\] (\w+)`)
	headerArg = regexp.MustCompile(`^-- ARGV\[(\d)(\.\.)?\] (\w+)`)
	bodyArg   = regexp.MustCompile(`ARGV\[(\d+)\]`)
	bodyLocal = regexp.MustCompile(`local ([\w, ]+) = ((?:KEYS\[\d\], )*(?:tonumber\()?ARGV\[.*)\n`)
)

// headed is the files that have arguments, and so a header with them.
func headed(t *testing.T) []string {
	t.Helper()
	list := slices.DeleteFunc(allFiles(), func(path string) bool { return isPart(path) || path == "identity.lua" })
	must.That(t, len(list) >= 20, "only %v are scripts", list)
	return list
}

// header is what the header of a script says: its keys, its arguments, and the last of these if it is followed by any number of others.
type header struct {
	keys, args []string
	open       string
}

func headerOf(t *testing.T, path string) (h header) {
	t.Helper()
	text := read(t, path)
	name := strings.TrimSuffix(strings.TrimPrefix(path, "fast/"), ".lua")
	check.That(t, strings.HasPrefix(text, "-- "+name+": "), "%s: the header does not begin with its name", path)
	for line := range strings.Lines(text) {
		if m := headerKey.FindStringSubmatch(line); m != nil {
			h.keys = append(h.keys, m[2])
			check.That(t, m[1] == strconv.Itoa(len(h.keys)), "%s: KEYS[%s] comes as number %d", path, m[1], len(h.keys))
		}
		if m := headerArg.FindStringSubmatch(line); m != nil {
			if m[2] != "" {
				h.open = m[3]
				continue
			}
			h.args = append(h.args, m[3])
			check.That(t, m[1] == strconv.Itoa(len(h.args)), "%s: ARGV[%s] comes as number %d", path, m[1], len(h.args))
		}
	}
	for _, part := range []string{"-- returns ", "-- writes "} {
		check.That(t, strings.Contains(text, part), "%s: the header has no %q", path, part)
	}
	return h
}

// callOf is the call in calls.go of a script: "release", "fast_release" for all fast scripts that release, or "fast_hand_on".
func callOf(path string) string {
	name := strings.TrimSuffix(path, ".lua")
	if !isFast(path) {
		return name
	}
	_, transition, _ := strings.Cut(name, "_")
	return "fast_" + transition
}

func read(t *testing.T, name string) string {
	t.Helper()
	b := must.Get(files.ReadFile(name))(t)
	return string(b)
}

func TestHeadersMatchBodiesAndCallers(t *testing.T) {
	t.Parallel()
	calls := callsInGo(t)
	for _, path := range headed(t) {
		h, args := headerOf(t, path), []string(nil)
		for _, key := range h.keys {
			check.That(t, slices.Contains(keyNames, key), "%s: there is no key %s", path, key)
		}
		if want := keyNames[:len(h.keys)]; len(h.keys) == 0 || !isFast(path) && !slices.Equal(h.keys, want) {
			t.Errorf("%s: keys %v; the prelude names them %v", path, h.keys, want)
		}
		for _, arg := range calls[callOf(path)] { // of those that one fast script takes, another may take only some
			if !isFast(path) || slices.Contains(h.args, arg) {
				args = append(args, arg)
			}
		}
		if !slices.Equal(args, h.args) {
			t.Errorf("%s: the header has ARGV %v, calls.go sends %v", path, h.args, calls[callOf(path)])
		}

		body := regexp.MustCompile(`(?m)^\s*--.*$`).ReplaceAllString(read(t, path), "")
		used := map[int]bool{}
		for _, m := range bodyArg.FindAllStringSubmatch(body, -1) {
			n, _ := strconv.Atoi(m[1])
			used[n] = true
		}
		for i := range h.args {
			check.That(t, used[i+1], "%s: the body does not use ARGV[%d] %s", path, i+1, h.args[i])
		}
		for n := range used {
			check.That(t, n <= len(h.args), "%s: the body uses ARGV[%d], which the header does not have", path, n)
		}
		check.That(t, h.open == "" || strings.Contains(body, "#ARGV"), "%s: the header has ARGV[%s..], the body no #ARGV", path, h.open)
		for _, m := range bodyLocal.FindAllStringSubmatch(body, -1) {
			locals := strings.Split(m[1], ", ")
			locals = locals[strings.Count(m[2][:strings.Index(m[2], "ARGV")], ", "):]
			for i, a := range bodyArg.FindAllStringSubmatch(m[2], -1) {
				n, _ := strconv.Atoi(a[1])
				if n <= len(h.args) && i < len(locals) && locals[i] != h.args[n-1] {
					t.Errorf("%s: ARGV[%d] is %s in the header and %s in the body", path, n, h.args[n-1], locals[i])
				}
			}
		}
	}
}

// snake returns a Go name as a script has it: heartbeatTTL is heartbeat_ttl.
func snake(name string) string {
	return strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_${2}"))
}

// callsInGo returns the names of the arguments of each call in calls.go, such as r.set(call, r.fast.Renew, token, ttl), by script.
func callsInGo(t *testing.T) map[string][]string {
	t.Helper()
	f := must.Get(parser.ParseFile(token.NewFileSet(), "../internal/server/calls.go", nil, 0))(t)
	list := map[string][]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || nameOf(call.Fun) != "set" {
			return true
		}
		script := call.Args[1].(*ast.SelectorExpr)
		name := snake(script.Sel.Name)
		if nameOf(script.X) == "fast" {
			name = "fast_" + name
		}
		check.That(t, list[name] == nil, "calls.go calls %s twice", name)
		for _, arg := range call.Args[2:] {
			list[name] = append(list[name], snake(nameOf(arg)))
		}
		return true
	})
	return list
}

// nameOf returns the name of what an expression is: of r.args.ttl it is ttl, of int64(fence) fence.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Args[0])
	}
	return ""
}

// TestScriptsArePortable checks that scripts use nothing that behaves differently elsewhere, and that none reads a range from an offset: the
// server counts up to it, so that reading a whole list in pages would take time that grows with the square of its length. They go on by
// score or by rank.
func TestScriptsArePortable(t *testing.T) {
	t.Parallel()
	offset := regexp.MustCompile(`'LIMIT', *([^,]*),`)
	for _, set := range All {
		for _, s := range set.Scripts() {
			check.That(t, !strings.Contains(s.Text, "include:") && !strings.Contains(s.Text, "--"),
				"%s: a comment or an include is left", s.Name)
			for _, word := range []string{"#!lua", "cmsgpack", "struct.", "bit.", "tostring(", "goto "} {
				check.That(t, !strings.Contains(s.Text, word), "%s uses %s, which does not behave the same everywhere", s.Name, word)
			}
			n := strings.Count(s.Text, "'TIME'")
			check.That(t, n <= 1, "%s names TIME %d times", s.Name, n)
			for _, m := range offset.FindAllStringSubmatch(s.Text, -1) {
				check.That(t, m[1] == "0" || m[1] == "'0'", "%s: %s", s.Name, m[0])
			}
		}
	}
}

// TestFunctionsAreCreatedLate: functions that only the other paths need come after the place where the common path returns, since a
// run creates each at a third of the price of a call to Redis.
func TestFunctionsAreCreatedLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		script  *Script
		returns string
		late    []string
	}{
		{Mutex.Acquire, "rank < RETRIES and freed_in", []string{"ask", "admit", "next_fence", "frees_in"}},
		{RWLock.Acquire, "rank < RETRIES and freed_in", []string{"ask", "admit", "read_state", "frees_in"}},
		{Semaphore.Acquire, "rank < RETRIES and freed_in", []string{"ask", "admit", "sweep", "frees_in"}},
		{Semaphore.Acquire, "return {GRANTED, fence_or_ms, now, now + ttl, 0}", []string{"admit", "deliver", "next_in_line"}},
		{Mutex.Release, "outcome + RELEASE_QUEUE_EMPTY", []string{"admit", "save_metadata"}},
		{Semaphore.Heartbeat, "local reply", []string{"admit", "enqueue"}},
	} {
		path, rest, found := strings.Cut(c.script.Text, c.returns)
		check.That(t, found, "%s has no %q", c.script.Name, c.returns)
		for _, name := range c.late {
			check.That(t, !strings.Contains(path, "local function "+name+"(") && strings.Contains(rest, "local function "+name+"("),
				"%s has a function %s before %q, or has none", c.script.Name, name, c.returns)
		}
	}
}

// TestProtocolNamesEveryTransition: the table of transitions in docs/protocol.md has each general script. Its header has the rest.
func TestProtocolNamesEveryTransition(t *testing.T) {
	t.Parallel()
	doc := must.Get(os.ReadFile("../docs/protocol.md"))(t)
	_, rest, found := strings.Cut(string(doc), "\n| transition | does | sent |\n|---|---|---|\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	must.That(t, found, "docs/protocol.md has no table of transitions")
	named := map[string]bool{}
	for row := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		for _, name := range strings.Split(cell, ", ") {
			named[name] = true
			check.That(t, slices.Contains(allFiles(), name+".lua"),
				"docs/protocol.md has a transition %q, for which there is no script", name)
		}
	}
	for _, path := range allFiles() {
		if name := strings.TrimSuffix(path, ".lua"); !isPart(path) && !isFast(path) && !named[name] {
			t.Errorf("docs/protocol.md has no transition %q", name)
		}
	}
}

var (
	calls   = regexp.MustCompile(`\bp?call\(([^,)]*)`)
	command = regexp.MustCompile(`'([A-Z]+)'`)
)

// Without this test, a command that a script rarely calls would fail for users with the rights that docs/operations.md lists,
// and for no others.
func TestScriptCommandsInDocumentedACL(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../docs/operations.md"))(t)
	allowed := map[string]bool{}
	for _, word := range redistest.DocumentedUser(t, "../docs/operations.md") {
		name, _, _ := strings.Cut(word, "|") // of a subcommand, its command
		allowed[name] = true
	}
	seen := 0
	for _, name := range allFiles() {
		for _, call := range calls.FindAllStringSubmatch(read(t, name), -1) {
			for _, c := range command.FindAllStringSubmatch(call[1], -1) {
				seen++
				right := "+" + strings.ToLower(c[1])
				if !allowed[right] && !strings.Contains(string(text), "`"+right+"`") { // what an option takes stands below the rule
					t.Errorf("%s calls %s, which docs/operations.md does not allow", name, c[1])
				}
			}
		}
	}
	must.That(t, seen >= 50, "only %d calls were found", seen)
}
