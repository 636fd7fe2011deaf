package quorum

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestStatesMatchTable compares the states that README.md lists, and into which states each event leads, with the code: with the constants,
// and with the assignments of each function to a state.
func TestStatesMatchTable(t *testing.T) {
	states, assigned := statesInCode(t)
	rows, documented := statesInTable(t)
	check.That(t, slices.Equal(rows, states), "README.md has rows of %v, the code has %v", rows, states)
	for _, event := range slices.Sorted(maps.Keys(assigned)) {
		check.That(t, maps.Equal(documented[event], assigned[event]), "%s leads to %v, but in README.md to %v",
			event, slices.Sorted(maps.Keys(assigned[event])), slices.Sorted(maps.Keys(documented[event])))
	}
	for event := range documented {
		check.That(t, assigned[event] != nil, "README.md names the event %s, but no such function sets a state", event)
	}
}

// targets are the states into which an event leads, by the event.
type targets map[string]map[string]bool

func (x targets) add(event, state string) {
	if x[event] == nil {
		x[event] = map[string]bool{}
	}
	x[event][state] = true
}

var isState = regexp.MustCompile(`^(member|lease)[A-Z]`)

// statesInCode returns the constants of memberState and leaseState, in order, and what functions assign to a field named state.
func statesInCode(t *testing.T) (states []string, assigned targets) {
	t.Helper()
	assigned = targets{}
	files := must.Get(filepath.Glob("*.go"))(t)
	var lease []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, name := range constantsOf(d) {
					if strings.HasPrefix(name, "lease") {
						lease = append(lease, name)
					} else {
						states = append(states, name)
					}
				}
			case *ast.FuncDecl:
				ast.Inspect(d, func(n ast.Node) bool {
					if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
						for i, left := range a.Lhs {
							if field, ok := left.(*ast.SelectorExpr); ok && field.Sel.Name == "state" {
								assigned.add(d.Name.Name, a.Rhs[i].(*ast.Ident).Name)
							}
						}
					}
					return true
				})
			}
		}
	}
	return append(states, lease...), assigned
}

// constantsOf returns the states that a declaration of constants has.
func constantsOf(d *ast.GenDecl) (names []string) {
	for _, spec := range d.Specs {
		if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.CONST && isState.MatchString(v.Names[0].Name) {
			names = append(names, v.Names[0].Name)
		}
	}
	return names
}

// statesInTable returns the states of the rows of README.md, and where events lead. The last cell of a row lists "event → states",
// separated by semicolons.
func statesInTable(t *testing.T) (rows []string, documented targets) {
	t.Helper()
	documented = targets{}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\| (.*) \\|$")
	for _, m := range row.FindAllStringSubmatch(string(must.Get(os.ReadFile("README.md"))(t)), -1) {
		rows = append(rows, m[1])
		for _, entry := range strings.Split(m[2], "; ") {
			event, after, found := strings.Cut(entry, " → ")
			must.That(t, found || entry == "–", "%q is not event → states", entry)
			for _, state := range strings.Split(after, ", ") {
				if found {
					documented.add(event, state)
				}
			}
		}
	}
	return rows, documented
}
