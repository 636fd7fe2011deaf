// Package layout checks what is in the repository: the size of the library's core, the names that the root package exports, what pages say of
// files, tests and programs, and tools/retest. Its tests run in the root of the module.
//
// The core is what is not a test in internal, without internal/testing and internal/cli.
package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// The bounds of the core keep it from growing unnoticed: lower them with each step that makes it smaller, and raise them only for what the
// library gains.
const (
	maxCoreLines = 15_443
	maxNamesakes = 4 // types called Lock or Lease
)

// TestCore checks the bounds, and logs the figures.
func TestCore(t *testing.T) {
	lines := 0
	var namesakes []string
	dirs := must.Get(filepath.Glob("internal/*"))(t)
	must.That(t, len(dirs) > 10, "found %v", dirs)
	for _, dir := range dirs {
		if base := filepath.Base(dir); base == "testing" || base == "cli" {
			continue
		}
		before := lines
		for _, path := range must.Get(filepath.Glob(filepath.Join(dir, "*.go")))(t) {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f := must.Get(parser.ParseFile(fset, path, nil, parser.SkipObjectResolution))(t)
			lines += fset.File(f.Pos()).LineCount()
			if filepath.Base(dir) != "client" {
				ast.Inspect(f, func(n ast.Node) bool {
					if s, is := n.(*ast.SelectorExpr); is && slowToSee.MatchString(s.Sel.Name) {
						x, is := s.X.(*ast.Ident)
						check.That(t, !is || x.Name != "redis", "%s names redis.%s: see package client", path, s.Sel.Name)
					}
					return true
				})
			}
			for _, decl := range f.Decls {
				if d, is := decl.(*ast.GenDecl); is && d.Tok == token.TYPE {
					for _, name := range declared(decl) {
						if name == "Lock" || name == "Lease" {
							namesakes = append(namesakes, filepath.Base(dir)+"."+name)
						}
					}
				}
			}
		}
		t.Logf("%-12s %5d lines", filepath.Base(dir), lines-before)
	}
	t.Logf("%-12s %5d lines; %v", "the core", lines, namesakes)
	check.That(t, lines <= maxCoreLines, "the core has %d lines, more than %d", lines, maxCoreLines)
	check.That(t, len(namesakes) <= maxNamesakes, "%d types have one of two names, more than %d: %v", len(namesakes), maxNamesakes, namesakes)
}

// slowToSee are the types of go-redis that lead to its Client.
var slowToSee = regexp.MustCompile(`^(Universal|Cluster)?Client$|^(Conn|PubSub|Tx|Ring|AutoPipeliner|\w*Options)$`)

var fset = token.NewFileSet()

// maxRootNames bounds what the root package exports. What only some users need has a package of its own, as operators have admin.
const maxRootNames = 30

// TestRootNames checks how many names the root package exports: each type, function, constant and variable counts, methods and fields
// do not.
func TestRootNames(t *testing.T) {
	paths, err := filepath.Glob("*.go")
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
