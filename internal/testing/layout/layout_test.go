// Package layout checks how the code of the library's core is divided: how long each package is, how many of its files all reach one
// another, how long the core is as a whole, and how many names the root package exports. The core is what is not a test in internal,
// without internal/testing and internal/cli.
package layout

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// The bounds. A package that exceeds one is divided where few names cross the cut, not into more files. The bound of the core keeps it from
// growing unnoticed: raise it only for what the library gains.
const (
	maxPackageLines = 2600
	maxKnot         = 6
	maxCoreLines    = 15_820
)

// pkg is one package, as go list describes it.
type pkg struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

const internal = "github.com/lockkeeper/lockkeeper/internal/"

// TestLayout checks the bounds, and logs the figures.
func TestLayout(t *testing.T) {
	core := corePackages(t)
	packages := list(t, core)
	total := 0
	for _, name := range core {
		p := packages[internal+name]
		lines, files := parse(t, p)
		knot := largestKnot(reach(t, p, files, packages))
		total += lines
		t.Logf("%-12s %5d lines, %2d files, %2d in a knot: %s", name, lines, len(p.GoFiles), len(knot), strings.Join(knot, " "))
		check.That(t, lines <= maxPackageLines, "%s has %d lines, more than %d", name, lines, maxPackageLines)
		check.That(t, len(knot) <= maxKnot,
			"%d files of %s all reach one another, more than %d: %s", len(knot), name, maxKnot, strings.Join(knot, " "))
	}
	t.Logf("%-12s %5d lines", "the core", total)
	check.That(t, total <= maxCoreLines, "the core has %d lines, more than %d", total, maxCoreLines)
}

func corePackages(t *testing.T) (names []string) {
	t.Helper()
	entries := must.Get(os.ReadDir("../.."))(t)
	for _, e := range entries {
		if e.IsDir() && e.Name() != "testing" && e.Name() != "cli" {
			names = append(names, e.Name())
		}
	}
	return names
}

// list returns packages of the core and all that they import, by import path.
func list(t *testing.T, core []string) map[string]*pkg {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}
	for _, name := range core {
		args = append(args, internal+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.Output())(t)
	packages := map[string]*pkg{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		p := &pkg{}
		if err := d.Decode(p); err == io.EOF {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}

var fset = token.NewFileSet()

func parse(t *testing.T, p *pkg) (lines int, files []*ast.File) {
	t.Helper()
	for _, name := range p.GoFiles {
		f := must.Get(parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution))(t)
		files = append(files, f)
		lines += fset.File(f.Pos()).LineCount()
	}
	return lines, files
}

// graph has, for each file, those of which it uses a function, method, type, variable or constant.
type graph map[string]map[string]bool

func reach(t *testing.T, p *pkg, files []*ast.File, packages map[string]*pkg) graph {
	t.Helper()
	lookup := func(path string) (io.ReadCloser, error) {
		if q := packages[path]; q != nil && q.Export != "" {
			return os.Open(q.Export)
		}
		return nil, fmt.Errorf("no export data of %s", path)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	checked := must.Get(cfg.Check(p.ImportPath, fset, files, info))(t)
	g := graph{}
	for _, name := range p.GoFiles {
		g[name] = map[string]bool{}
	}
	for id, obj := range info.Uses {
		if obj.Pkg() != checked || obj.Parent() != checked.Scope() && !isMethod(obj) {
			continue
		}
		from, to := fileOf(id.Pos()), fileOf(obj.Pos())
		if from != to {
			g[from][to] = true
		}
	}
	return g
}

func fileOf(at token.Pos) string { return filepath.Base(fset.Position(at).Filename) }

func isMethod(obj types.Object) bool {
	f, ok := obj.(*types.Func)
	return ok && f.Signature().Recv() != nil
}

// largestKnot returns the largest set of files that all reach one another.
func largestKnot(g graph) (largest []string) {
	all := map[string]map[string]bool{}
	for from := range g {
		all[from] = map[string]bool{from: true}
		for next := []string{from}; len(next) > 0; next = next[1:] {
			for to := range g[next[0]] {
				if !all[from][to] {
					all[from][to] = true
					next = append(next, to)
				}
			}
		}
	}
	for from := range g {
		var knot []string
		for to := range all[from] {
			if all[to][from] {
				knot = append(knot, to)
			}
		}
		if len(knot) > len(largest) {
			largest = knot
		}
	}
	slices.Sort(largest)
	return largest
}

func TestLargestKnot(t *testing.T) {
	g := graph{
		"a": {"b": true}, "b": {"c": true}, "c": {"a": true, "d": true},
		"d": {"e": true}, "e": {"d": true}, "f": {"a": true},
	}
	got := largestKnot(g)
	check.That(t, slices.Equal(got, []string{"a", "b", "c"}), "found %v", got)
}

// maxRootNames bounds what the root package exports. What only some users need has a package of its own, as operators have admin.
const maxRootNames = 30

// TestRootNames checks how many names the root package exports: each type, function, constant and variable counts, methods and fields
// do not.
func TestRootNames(t *testing.T) {
	paths, err := filepath.Glob("../../../*.go")
	must.That(t, err == nil && len(paths) != 0, "%d files, %v", len(paths), err)
	var names []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f := must.Get(parser.ParseFile(fset, path, nil, parser.SkipObjectResolution))(t)
		for _, decl := range f.Decls {
			names = append(names, declared(decl)...)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !ast.IsExported(name) })
	slices.Sort(names)
	t.Logf("%d names: %s", len(names), strings.Join(names, " "))
	check.That(t, len(names) <= maxRootNames,
		"the root package exports %d names, more than %d: %s", len(names), maxRootNames, strings.Join(names, " "))
}

func declared(decl ast.Decl) (names []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names = append(names, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, name := range s.Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}
