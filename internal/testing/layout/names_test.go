package layout

import (
	"go/ast"
	"go/parser"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

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
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		must.OK(t, err)
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

// declared returns the names that a declaration adds to its package.
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
