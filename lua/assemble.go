package lua

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// A file names at its top what it uses: "-- include: lib/queue" makes the functions and constants of that file known, and
// "-- include: policy/KIND" those of the primitive's policy, and of the one that it extends, where its own does not define them. A
// script is put together once, at start-up. A run creates each function of its script up to the place where it returns, at a third of
// the price of a call to Redis. So a script has what it uses and no more, and each function stands in front of the first
// statement of the script that needs it.

//go:embed *.lua fast/*.lua lib/*.lua policy/*.lua
var files embed.FS

// file is a Lua file, split at the statements that begin in column 0.
type file struct {
	path       string
	keys       []Key    // of its header
	includes   []string // as they stand there: "lib/queue", or "policy/KIND" for the files of the policy
	statements []statement
}

// statement is one of a file, without comments and indentation.
type statement struct {
	text    string
	defines []string // names, of "local function f" or "local a, b = 1, 2"
	uses    []string // names, in the order of their appearance
	path    string
}

// readFile parses a file.
func readFile(path string) *file {
	text, err := files.ReadFile(path)
	if err != nil {
		panic(fmt.Sprintf("bug: lua: %v", err))
	}
	f := &file{path: path}
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(line, "-- include: "); found {
			f.includes = append(f.includes, strings.TrimSpace(name))
			continue
		}
		if rest, found := strings.CutPrefix(line, "-- KEYS["); found {
			name := strings.Fields(rest)[1]
			f.keys = append(f.keys, Key(slices.Index(keyNames, name)))
		}
		code, names := scan(line)
		if code == "" {
			continue
		}
		if !continues(line) {
			f.statements = append(f.statements, statement{path: path, defines: defines(code)})
		}
		s := &f.statements[len(f.statements)-1]
		s.text += code + "\n"
		s.uses = append(s.uses, names...)
	}
	return f
}

// continues reports whether a line with code belongs to the statement before it.
func continues(line string) bool {
	if line[0] == ' ' {
		return true
	}
	word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	return slices.Contains([]string{"end", "else", "elseif", "until", "}", ")", "})"}, word)
}

// defines returns the names that a statement makes known to those behind it.
func defines(code string) []string {
	rest, found := strings.CutPrefix(code, "local ")
	if !found {
		return nil
	}
	if function, found := strings.CutPrefix(rest, "function "); found {
		name, _, _ := strings.Cut(function, "(")
		return []string{name}
	}
	list, _, _ := strings.Cut(rest, " =")
	return strings.Split(list, ", ")
}

// scan returns a line without its comment and indentation, and the names in it, without those of fields.
func scan(line string) (code string, names []string) {
	line = strings.TrimSpace(line)
	for i := 0; i < len(line); {
		switch c := line[i]; {
		case c == '\'':
			i += 2 + strings.IndexByte(line[i+1:], '\'')
		case strings.HasPrefix(line[i:], "--"):
			return strings.TrimSpace(line[:i]), names
		case isLetter(c):
			end := i
			for end < len(line) && (isLetter(line[end]) || line[end] >= '0' && line[end] <= '9') {
				end++
			}
			if field := i > 0 && line[i-1] == '.' && (i < 2 || line[i-2] != '.'); !field {
				names = append(names, line[i:end])
			}
			i = end
		case c >= '0' && c <= '9':
			for i < len(line) && (isLetter(line[i]) || line[i] >= '0' && line[i] <= '9') { // 1e12
				i++
			}
		default:
			i++
		}
	}
	return line, names
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }

// source is a script that is being put together.
type source struct {
	policies []string
	included map[string]int        // how many includes are between the script and the file, by path
	scope    map[string]*statement // what the included files define, by name
	placed   map[*statement]bool
	text     strings.Builder
	behind   []string // the files of which there is something in the script, with its own first
}

// parsed is the files that have been read.
var parsed = map[string]*file{}

func open(path string) *file {
	f := parsed[path]
	if f == nil {
		f = readFile(path)
		parsed[path] = f
	}
	return f
}

// assemble puts the script of a file together, for a primitive that has these policies: its own, and those that it extends.
func assemble(policies []string, path string) *source {
	s := &source{policies: policies, included: map[string]int{}, scope: map[string]*statement{}, placed: map[*statement]bool{}}
	script := open(path)
	s.include(script, 0)
	for i := range script.statements {
		for _, name := range script.statements[i].defines {
			delete(s.scope, name)
		}
	}
	s.behind = []string{path}
	for i := range script.statements {
		s.place(&script.statements[i])
	}
	return s
}

// include adds what the files define that a file includes.
func (s *source) include(f *file, depth int) {
	for _, name := range f.includes {
		for _, path := range s.paths(name) {
			if old, found := s.included[path]; found {
				s.included[path] = min(old, depth+1)
				continue
			}
			s.included[path] = depth + 1
			included := open(path)
			for i := range included.statements {
				for _, name := range included.statements[i].defines {
					if old := s.scope[name]; old == nil {
						s.scope[name] = &included.statements[i]
					} else if !strings.HasPrefix(old.path, "policy/") || !strings.HasPrefix(path, "policy/") {
						panic(fmt.Sprintf("bug: lua: %s and %s define %s", old.path, path, name))
					}
				}
			}
			s.include(included, depth+1)
		}
	}
}

// paths returns the files that an included name stands for.
func (s *source) paths(name string) (list []string) {
	if name != "policy/KIND" {
		return []string{name + ".lua"}
	}
	for _, policy := range s.policies {
		list = append(list, "policy/"+policy+".lua")
	}
	return list
}

// place appends a statement, and before it what it needs, if that has not been placed.
func (s *source) place(st *statement) {
	if s.placed[st] {
		return
	}
	s.placed[st] = true
	for _, name := range st.uses {
		if needed := s.scope[name]; needed != nil {
			s.place(needed)
		}
	}
	if !slices.Contains(s.behind, st.path) {
		s.behind = append(s.behind, st.path)
	}
	s.text.WriteString(st.text)
}

// allFiles returns the paths of all Lua files.
func allFiles() (list []string) {
	_ = fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	return list
}
