package lua

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	glua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// The tests in this file keep the scripts readable: few files behind each, no macros, no names from nowhere.

// A script has at most so many files behind it, itself included, and so many includes between it and each.
const (
	maxFiles, maxBehindFast, maxBehindGeneral, maxDepth = 70, 3, 20, 2
	maxFastLines                                        = 65
)

func TestFewFilesBehindEachScript(t *testing.T) {
	t.Parallel()
	if n := len(allFiles()); n > maxFiles {
		t.Errorf("there are %d Lua files, at most %d are wanted", n, maxFiles)
	}
	for _, set := range All {
		for _, s := range set.Scripts() {
			path := set.path(s)
			behind, most := assemble(set.policies, path), maxBehindGeneral
			if isFast(path) {
				most = maxBehindFast
			}
			n := 1 + len(behind.included)
			check.That(t, n <= most, "%s has %d files behind it, at most %d are wanted: %v", s.Name, n, most, behind.included)
			for file, depth := range behind.included {
				check.That(t, depth <= maxDepth, "%s includes %s at depth %d, at most %d is wanted", s.Name, file, depth, maxDepth)
			}
		}
	}
}

// path is the file of a script of the set.
func (s *Set) path(script *Script) string {
	kind, transition, _ := strings.Cut(script.Name, "_")
	name, fast := strings.CutPrefix(transition, "fast_")
	if !fast {
		return transition + ".lua"
	}
	for _, of := range []string{kind + "_", "mutex_", "leases_", ""} {
		if path := "fast/" + of + name + ".lua"; slices.Contains(allFiles(), path) && open(path).text(s.policies) == script.Text {
			return path
		}
	}
	panic(script.Name + " has no file")
}

// text is the script of a file.
func (f *file) text(policies []string) string { return assemble(policies, f.path).text.String() }

func isFast(path string) bool { return strings.HasPrefix(path, "fast/") }

// isPart reports whether other files include it.
func isPart(path string) bool {
	return strings.HasPrefix(path, "lib/") || strings.HasPrefix(path, "policy/")
}

// TestIncludesLeadTheFile: an include stands in column 0, before all code, so it is in no block.
func TestIncludesLeadTheFile(t *testing.T) {
	t.Parallel()
	for _, path := range allFiles() {
		code := false
		for line := range strings.Lines(read(t, path)) {
			text, _ := scan(line)
			code = code || text != ""
			if strings.Contains(line, "include:") && (code || !strings.HasPrefix(line, "-- include: ")) {
				t.Errorf("%s: an include is not in column 0 before all code: %s", path, line)
			}
		}
	}
}

var (
	functionHead = regexp.MustCompile(`^local function (\w+)\(([\w, .]*)\)`)
	constants    = regexp.MustCompile(`^local [A-Z_, ]+ = (('[^']*'|-?\d[\de.]*|true|false)(, )?)+\n$`)
	alias        = regexp.MustCompile(`^local (\w+) = (\w+)\n$`)
)

// TestPartsAreFunctionsAndConstants: what other files include defines functions and constants, and does nothing else when it is
// included; so it cannot return from the script, or depend on where it stands. Only the prelude computes something, the time.
func TestPartsAreFunctionsAndConstants(t *testing.T) {
	t.Parallel()
	for _, path := range allFiles() {
		for _, s := range open(path).statements {
			switch {
			case !isPart(path) || path == "lib/prelude.lua" && strings.HasPrefix(s.text, "local "):
			case path == "lib/constants.lua" && !constants.MatchString(s.text):
				t.Errorf("%s has something that is no line of constants: %s", path, s.text)
			case !functionHead.MatchString(s.text) && !constants.MatchString(s.text) && !alias.MatchString(s.text):
				t.Errorf("%s has something that is neither a function nor a constant: %s", path, s.text)
			}
		}
	}
}

// TestFastScriptsAreFlat: each includes nothing but constants, creates no function, and can be read in one window.
func TestFastScriptsAreFlat(t *testing.T) {
	t.Parallel()
	n := 0
	for _, path := range allFiles() {
		if !isFast(path) {
			continue
		}
		n++
		f, text := open(path), read(t, path)
		check.That(t, slices.Equal(f.includes, []string{"lib/constants"}), "%s includes %v", path, f.includes)
		for _, s := range f.statements {
			check.That(t, !slices.Contains(s.uses, "function"), "%s creates a function: %s", path, s.text)
		}
		lines := strings.Count(text, "\n")
		check.That(t, lines <= maxFastLines, "%s has %d lines, at most %d are wanted", path, lines, maxFastLines)
	}
	check.That(t, n >= 10, "there are only %d fast scripts", n)
}

// TestFastScriptsWriteNothingUndecided: a script that has written does not reply UNDECIDED, unless it could not write.
func TestFastScriptsWriteNothingUndecided(t *testing.T) {
	t.Parallel()
	write := regexp.MustCompile(`call\('(SET|DEL|HSET|HDEL|ZADD|ZREM|ZREMRANGEBYSCORE|PEXPIRE)'`)
	for _, path := range allFiles() {
		if !isFast(path) {
			continue
		}
		written := ""
		for _, s := range open(path).statements {
			for line := range strings.Lines(s.text) {
				check.That(t, !strings.Contains(line, "return UNDECIDED") || written == "",
					"%s replies UNDECIDED after %s", path, written)
				m := write.FindString(line)
				checked := strings.Contains(line, "return UNDECIDED") // if nothing was added
				if m != "" && !checked && !strings.Contains(s.text, "return -left") && !returnsAtOnce(s.text) {
					written = line
				}
			}
		}
	}
}

// returnsAtOnce reports whether a statement returns after what it writes.
func returnsAtOnce(text string) bool {
	return strings.HasPrefix(text, "if ") && regexp.MustCompile(`return [^U].*\nend\n$`).MatchString(text)
}

// TestNoAmbientInput: a function gets what it needs as arguments. It may use the names of the prelude, constants, and functions.
func TestNoAmbientInput(t *testing.T) {
	t.Parallel()
	for _, set := range All {
		var names []string
		for _, path := range allFiles() {
			policy, isPolicy := strings.CutPrefix(path, "policy/")
			if !strings.HasPrefix(path, "lib/") && (!isPolicy || !set.extends(strings.TrimSuffix(policy, ".lua"))) {
				continue
			}
			for _, s := range open(path).statements {
				names = append(names, s.defines...)
			}
		}
		slices.Sort(names)
		names = slices.Compact(names)
		for _, path := range allFiles() {
			policy, isPolicy := strings.CutPrefix(path, "policy/")
			if !isPart(path) || path == "lib/prelude.lua" || isPolicy && !set.extends(strings.TrimSuffix(policy, ".lua")) {
				continue
			}
			for _, s := range open(path).statements {
				text := ""
				for _, name := range names {
					if slices.Contains(s.uses, name) && !slices.Contains(s.defines, name) {
						text += "local " + name + "\n"
					}
				}
				for _, name := range globals(compile(t, path, text+s.text)) {
					check.That(t, slices.Contains(ofTheServer, name) && name != "KEYS" && name != "ARGV" && name != "redis",
						"%s: %v takes %s from where it is included", path, s.defines, name)
				}
			}
		}
	}
}

// TestNothingIsUnused: every file and every name of it is in some script; and a file that is used once is not a file.
func TestNothingIsUnused(t *testing.T) {
	t.Parallel()
	placed, users := map[string]bool{}, map[string]map[string]bool{}
	for _, set := range All {
		for _, s := range set.Scripts() {
			path := set.path(s)
			script := assemble(set.policies, path)
			for st := range script.placed {
				for _, name := range st.defines {
					placed[st.path+" "+name] = true
				}
			}
			for _, file := range script.behind {
				if users[file] == nil {
					users[file] = map[string]bool{}
				}
				users[file][path] = true
			}
		}
	}
	for _, path := range allFiles() {
		check.That(t, len(users[path]) != 0, "%s is in no script", path)
		if !isPart(path) {
			continue
		}
		check.That(t, !strings.HasPrefix(path, "lib/") || len(users[path]) != 1, "%s is in one script only", path)
		for _, s := range open(path).statements {
			check.That(t, slices.ContainsFunc(s.defines, func(name string) bool { return placed[path+" "+name] }),
				"%s: no script has %v", path, s.defines)
		}
	}
}

// TestNumbersHaveNames: what is added to a code, or made of bits, has a name.
func TestNumbersHaveNames(t *testing.T) {
	t.Parallel()
	packed := regexp.MustCompile(`(return|notes|mode)\b[^\n]*([-+*%] \d\d|\+ [2-9]\b|\* [2-9]\b)|byte\(`)
	for _, path := range allFiles() {
		for _, s := range open(path).statements {
			for line := range strings.Lines(s.text) {
				check.That(t, !packed.MatchString(line) || strings.Contains(line, "1000"), "%s: a number without a name: %s", path, line)
			}
		}
	}
}

// contract returns the functions that policy/README.md lists, with their parameters, and the constants, with none.
func contract(t *testing.T) map[string][]string {
	t.Helper()
	text := must.Get(os.ReadFile("policy/README.md"))(t)
	list := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)(\\(([\\w, ]*)\\))?` \\|").FindAllStringSubmatch(string(text), -1) {
		list[m[1]] = strings.Split(m[3], ", ")
	}
	must.That(t, len(list) == 18, "the contract has %d names: %v", len(list), list)
	return list
}

func TestPoliciesFulfilTheContract(t *testing.T) {
	t.Parallel()
	names := contract(t)
	for _, set := range All {
		_, err := os.Stat("../" + set.Kind)
		check.That(t, err == nil, "%s has no package: %v", set.Kind, err)
		defined := map[string]string{} // name -> statement
		for _, policy := range set.policies {
			for _, s := range open("policy/" + policy + ".lua").statements {
				for _, name := range s.defines {
					if defined[name] == "" {
						defined[name] = s.text
					}
				}
			}
		}
		for name, params := range names {
			text := defined[name]
			if m := alias.FindStringSubmatch(text); m != nil && defined[m[2]] != "" {
				text = defined[m[2]]
			}
			m := functionHead.FindStringSubmatch(text)
			check.That(t, text != "" && (m == nil) == (params[0] == ""), "%s does not define %s", set.Kind, name)
			if m == nil || m[2] == "" {
				continue
			}
			for i, got := range strings.Split(m[2], ", ") {
				if i >= len(params) || got != params[i] && got != "_" {
					t.Errorf("%s: %s(%s), the contract has the parameters %v", set.Kind, name, m[2], params)
					break
				}
			}
		}
	}
}

// ofTheServer is the globals that scripts may use on all servers.
var ofTheServer = []string{"ARGV", "KEYS", "error", "ipairs", "math", "next", "pairs", "redis", "select", "string", "table", "tonumber", "type", "unpack"}

// Redis scripts have no globals of their own. A name that nothing defines would fail only when the script gets there.
func TestScriptsUseNoUnknownGlobals(t *testing.T) {
	t.Parallel()
	for _, set := range All {
		for _, s := range set.Scripts() {
			for _, name := range globals(compile(t, s.Name, s.Text)) {
				check.That(t, slices.Contains(ofTheServer, name), "%s uses the global %s", s.Name, name)
			}
		}
	}
}

func compile(t *testing.T, name, text string) *glua.FunctionProto {
	t.Helper()
	chunk := must.Get(parse.Parse(strings.NewReader(text), name))(t)
	return must.Get(glua.Compile(chunk, name))(t)
}

// globals returns the names of the globals that a function and its inner functions read or write.
func globals(f *glua.FunctionProto) []string {
	var list []string
	for _, code := range f.Code {
		if op := int(code >> 26); op == glua.OP_GETGLOBAL || op == glua.OP_SETGLOBAL {
			list = append(list, f.Constants[code&0x3ffff].String())
		}
	}
	for _, inner := range f.FunctionPrototypes {
		list = append(list, globals(inner)...)
	}
	return list
}
