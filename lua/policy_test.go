package lua

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	glua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// contract returns the functions and constants that policy/README.md lists for each part; none for statements.
func contract(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("policy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	parts, part := map[string][]string{}, ""
	row := regexp.MustCompile("^\\| (?:`(\\w+)`)? ?\\| (?:(\\w+)|`(\\w+)`) \\|")
	for line := range strings.Lines(string(text)) {
		m := row.FindStringSubmatch(line)
		if m == nil || m[1] == "" && m[3] == "" {
			continue
		}
		if m[1] != "" {
			part = m[1]
			parts[part] = nil
		}
		if m[3] != "" {
			parts[part] = append(parts[part], m[3])
		}
	}
	if len(parts) != 14 || len(parts["admit"]) != 7 {
		t.Fatalf("the contract has %d parts: %v", len(parts), parts)
	}
	return parts
}

func TestPoliciesFulfilTheContract(t *testing.T) {
	t.Parallel()
	parts := contract(t)
	for _, set := range All {
		if _, err := os.Stat("../" + set.Kind); err != nil {
			t.Errorf("%s has no package: %v", set.Kind, err)
		}
		for part, names := range parts {
			s := &source{policies: set.policies, included: map[string]bool{}}
			s.include("policy/KIND/" + part)
			for _, name := range names {
				if !regexp.MustCompile(`(?m)^(local )?function ` + name + `\(|^local (\w+, )*` + name + `\b`).MatchString(s.text.String()) {
					t.Errorf("%s: the part %s does not define %s", set.Kind, part, name)
				}
			}
		}
	}
	for _, name := range allFiles(t) {
		for _, m := range regexp.MustCompile(`-- include: policy/KIND/(\w+)`).FindAllStringSubmatch(read(t, name), -1) {
			if _, ok := parts[m[1]]; !ok {
				t.Errorf("%s includes the part %s, which policy/README.md does not have", name, m[1])
			}
		}
	}
}

// allFiles returns the paths of all Lua files.
func allFiles(t *testing.T) []string {
	t.Helper()
	var list []string
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestEveryFileIsIncluded: a file that no script includes is dead; so is one whose policy includes another in its place.
func TestEveryFileIsIncluded(t *testing.T) {
	t.Parallel()
	included := map[string]bool{}
	for _, set := range All {
		for _, s := range set.Scripts() {
			_, transition, _ := strings.Cut(s.Name, "_")
			for path := range assemble(set.policies, transition).included {
				included[path] = true
			}
		}
	}
	for _, name := range allFiles(t) {
		if !included[name] {
			t.Errorf("%s is in no script", name)
		}
	}
}

// Redis scripts have no globals of their own. A part that is included after its use, or in a block before it, would make a name
// global, and the script would fail only when it gets there.
func TestScriptsUseNoUnknownGlobals(t *testing.T) {
	t.Parallel()
	known := []string{"ARGV", "KEYS", "ipairs", "math", "next", "pairs", "redis", "select", "string", "table", "tonumber", "type", "unpack"}
	for _, set := range All {
		for _, s := range set.Scripts() {
			chunk, err := parse.Parse(strings.NewReader(s.Text), s.Name)
			if err != nil {
				t.Fatal(err)
			}
			proto, err := glua.Compile(chunk, s.Name)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range globals(proto) {
				if !slices.Contains(known, name) {
					t.Errorf("%s uses the global %s", s.Name, name)
				}
			}
		}
	}
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
