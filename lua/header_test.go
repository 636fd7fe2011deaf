package lua

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The header of every transition documents its arguments and replies. These tests compare it with the body of the script,
// with the function in internal/protocol/args.go that puts ARGV together, and with the list of reply codes in Go.

var (
	headerKey = regexp.MustCompile(`^-- KEYS\[(\d)\] (\w+)`)
	headerArg = regexp.MustCompile(`^-- ARGV\[(\d)(\.\.)?\] (\w+)`)
	bodyArg   = regexp.MustCompile(`ARGV\[(\d+)\]`)
	bodyLocal = regexp.MustCompile(`(?s)local ([\w, ]+) = ((?:tonumber\()?ARGV\[.*?)\n`)
)

func transitions(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(files, "*.lua")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, n := range names {
		if strings.Contains(read(t, n), "\n-- ARGV[1]") {
			list = append(list, strings.TrimSuffix(n, ".lua"))
		}
	}
	if len(list) < 4 {
		t.Fatalf("only %v look like transitions", list)
	}
	return list
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHeadersMatchBodiesAndCallers(t *testing.T) {
	t.Parallel()
	builders := builders(t)
	for _, name := range transitions(t) {
		text := read(t, name+".lua")
		if !strings.HasPrefix(text, "-- "+name+": ") {
			t.Errorf("%s: the header does not begin with its name", name)
		}
		var keys, args []string
		open := ""
		for line := range strings.Lines(text) {
			if m := headerKey.FindStringSubmatch(line); m != nil {
				keys = append(keys, m[2])
				if m[1] != strconv.Itoa(len(keys)) {
					t.Errorf("%s: KEYS[%s] comes as number %d", name, m[1], len(keys))
				}
			}
			if m := headerArg.FindStringSubmatch(line); m != nil {
				if m[2] != "" {
					open = m[1]
					continue
				}
				args = append(args, m[3])
				if m[1] != strconv.Itoa(len(args)) {
					t.Errorf("%s: ARGV[%s] comes as number %d", name, m[1], len(args))
				}
			}
		}
		for _, part := range []string{"-- returns ", "-- writes "} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: the header has no %q", name, part)
			}
		}
		if want := []string{"lock", "meta", "queue", "tombstones"}; !slices.Equal(keys, want[:len(keys)]) || len(keys) == 0 {
			t.Errorf("%s: keys %v; the prelude names them %v", name, keys, want)
		}
		if got := builders[name]; !slices.Equal(got, args) {
			t.Errorf("%s: the header has ARGV %v, args.go puts together %v", name, args, got)
		}

		body := regexp.MustCompile(`(?m)^\s*--.*$`).ReplaceAllString(text, "")
		used := map[int]bool{}
		for _, m := range bodyArg.FindAllStringSubmatch(body, -1) {
			n, _ := strconv.Atoi(m[1])
			used[n] = true
		}
		for i := range args {
			if !used[i+1] {
				t.Errorf("%s: the body does not use ARGV[%d] %s", name, i+1, args[i])
			}
		}
		for n := range used {
			if n > len(args) {
				t.Errorf("%s: the body uses ARGV[%d], which the header does not have", name, n)
			}
		}
		if open != "" && !strings.Contains(body, "#ARGV") {
			t.Errorf("%s: the header has ARGV[%s..], the body no #ARGV", name, open)
		}
		for _, m := range bodyLocal.FindAllStringSubmatch(body, -1) {
			locals := strings.Split(m[1], ", ")
			for i, a := range bodyArg.FindAllStringSubmatch(m[2], -1) {
				n, _ := strconv.Atoi(a[1])
				if n <= len(args) && i < len(locals) && locals[i] != args[n-1] {
					t.Errorf("%s: ARGV[%d] is %s in the header and %s in the body", name, n, args[n-1], locals[i])
				}
			}
		}
	}
}

// snake returns a Go name as a script has it: heartbeatTTL is heartbeat_ttl.
func snake(name string) string {
	return strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_${2}"))
}

// builders returns the parameters of each function in args.go, by transition, without the slice that it appends to.
func builders(t *testing.T) map[string][]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../internal/protocol/args.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	list := map[string][]string{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		var names []string
		for _, p := range fn.Type.Params.List {
			for _, n := range p.Names {
				names = append(names, snake(n.Name))
			}
		}
		list[snake(strings.TrimSuffix(fn.Name.Name, "Args"))] = names[1:]
	}
	return list
}

func TestReplyCodesMatchGo(t *testing.T) {
	t.Parallel()
	codes := map[string]int{
		"REFUSED": Refused, "GRANTED": Granted, "WAITING": Waiting, "TOMBSTONED": Tombstoned, "UNKNOWN": Unknown, "LEFT": Left, "HELD": Held,
		"CONFLICT": Conflict, "ABOVE_LIMIT": AboveLimit,
	}
	m := regexp.MustCompile(`local ([A-Z_, ]+) = ([\d, ]+)\n`).FindStringSubmatch(read(t, "lib/prelude.lua"))
	names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
	if len(names) != len(codes) || len(values) != len(codes) {
		t.Fatalf("lib/prelude.lua has %v = %v", names, values)
	}
	for i, n := range names {
		if got, want := fmt.Sprint(codes[n]), values[i]; got != want {
			t.Errorf("%s is %s in Go and %s in Lua", n, got, want)
		}
	}
}

func TestScriptsArePortable(t *testing.T) {
	t.Parallel()
	for _, set := range All {
		for _, s := range set.Scripts() {
			if strings.Contains(s.Text, "include:") || strings.Contains(s.Text, "--") {
				t.Errorf("%s: a comment or an include is left", s.Name)
			}
			for _, word := range []string{"#!lua", "cmsgpack", "struct.", "bit.", "tostring(", "goto "} {
				if strings.Contains(s.Text, word) {
					t.Errorf("%s uses %s, which does not behave the same everywhere", s.Name, word)
				}
			}
			if n := strings.Count(s.Text, "'TIME'"); n > 1 || n == 0 && regexp.MustCompile(`\bnow\b`).MatchString(strings.Replace(s.Text, "local now, now_us", "", 1)) {
				t.Errorf("%s names TIME %d times", s.Name, n)
			}
		}
	}
}

func TestScriptsDefineOnlyUsedFunctions(t *testing.T) {
	t.Parallel()
	for _, set := range All {
		for _, s := range set.Scripts() {
			for _, m := range regexp.MustCompile(`(?m)^local function (\w+)`).FindAllStringSubmatch(s.Text, -1) {
				if n := len(regexp.MustCompile(`\b`+m[1]+`\b`).FindAllString(s.Text, -1)); n < 2 {
					t.Errorf("%s has a function %s that nothing calls", s.Name, m[1])
				}
			}
		}
	}
	// Parts that only the other paths need come after the last place where the common path returns.
	for _, c := range []struct {
		script       *Script
		returns      string
		needed, late []string
	}{
		{Mutex.Acquire, "return drawn", nil, []string{"next_fence", "save_metadata", "enqueue", "admit", "frees_in"}},
		{Mutex.Release, "return type_error or outcome + 32", nil, []string{"admit", "save_metadata"}},
		{Fair.Acquire, "return drawn", nil, []string{"next_fence", "save_metadata", "enqueue", "admit", "frees_in"}},
		{RWLock.Acquire, "return drawn", nil, []string{"purpose_of", "read_state", "replace", "waiting_upgrade", "admit"}},
		{Semaphore.Acquire, "return drawn", nil, []string{"terms_of", "enter", "sweep", "remove", "enqueue", "admit", "frees_in"}},
		{Semaphore.Release, "return type_error or outcome + 32", []string{"remove", "drop"}, []string{"terms_of", "enter", "sweep", "next_fence"}},
		{Mutex.Renew, "return {GRANTED, 0}", nil, []string{"confirm", "save_metadata", "admit"}},
		{Semaphore.Renew, "return {GRANTED, 0}", []string{"ends_at"}, []string{"confirm", "save_metadata", "admit"}},
	} {
		path, rest, found := strings.Cut(c.script.Text, c.returns)
		if !found {
			t.Errorf("%s has no %q", c.script.Name, c.returns)
		}
		for _, name := range c.needed {
			if !strings.Contains(path, "local function "+name+"(") {
				t.Errorf("%s has no function %s before %q", c.script.Name, name, c.returns)
			}
		}
		for _, name := range c.late {
			if strings.Contains(path, "local function "+name+"(") || !strings.Contains(rest, "local function "+name+"(") {
				t.Errorf("%s has a function %s before %q, or has none", c.script.Name, name, c.returns)
			}
		}
	}
}

// TestScriptsSkipNothing checks that no script reads a range from an offset: the server counts up to it, so that reading a whole list
// in pages would take time that grows with the square of its length. They go on by score or by rank.
func TestScriptsSkipNothing(t *testing.T) {
	t.Parallel()
	offset := regexp.MustCompile(`'LIMIT', *([^,]*),`)
	for _, set := range All {
		for _, s := range set.Scripts() {
			for _, m := range offset.FindAllStringSubmatch(s.Text, -1) {
				if m[1] != "0" && m[1] != "'0'" {
					t.Errorf("%s: %s", s.Name, m[0])
				}
			}
		}
	}
}
