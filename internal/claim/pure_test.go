package claim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// purePackages decide and do nothing, so that tables can test them and the search in internal/testing/explore can run them.
var purePackages = []string{"claim", "queue"}

// pureImports are what they may import.
var pureImports = []string{
	"cmp", "container/heap", "container/list", "errors", "iter", "maps", "math", "math/bits", "slices", "sort", "strconv", "strings", "time",
	"github.com/lockkeeper/lockkeeper/internal/claim", "github.com/lockkeeper/lockkeeper/internal/protocol",
}

// impureTime are the names of package time that read the clock or wait for it.
var impureTime = []string{
	"After", "AfterFunc", "Local", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Ticker", "Timer", "Until",
}

func TestPurePackagesDoNothing(t *testing.T) {
	for _, name := range purePackages {
		files := must.Get(filepath.Glob(filepath.Join("..", name, "*.go")))(t)
		if len(files) == 0 && name == "claim" {
			t.Error("no files")
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, x := range impurities(t, name+"/"+filepath.Base(path), must.Get(os.ReadFile(path))(t)) {
				t.Error(x)
			}
		}
	}
}

// impurities returns what a file uses that a pure package may not.
func impurities(t *testing.T, name string, text []byte) (list []string) {
	t.Helper()
	files := token.NewFileSet()
	file := must.Get(parser.ParseFile(files, name, text, parser.SkipObjectResolution))(t)
	report := func(at ast.Node, what string) { list = append(list, files.Position(at.Pos()).String()+": "+what) }
	timeName := ""
	for _, x := range file.Imports {
		path := must.Get(strconv.Unquote(x.Path.Value))(t)
		if !slices.Contains(pureImports, path) {
			report(x, path)
		}
		if path == "time" {
			if timeName = "time"; x.Name != nil {
				timeName = x.Name.Name
			}
			if timeName == "." {
				report(x, "names of package time without it")
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "go statement")
		case *ast.ChanType:
			report(n, "channel")
		case *ast.SelectStmt:
			report(n, "select statement")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == timeName && slices.Contains(impureTime, n.Sel.Name) {
				report(n, "time."+n.Sel.Name)
			}
		}
		return true
	})
	return list
}

func TestImpuritiesAreFound(t *testing.T) {
	const text = `package x

import (
	"sync"
	clock "time"
)

var mu sync.Mutex

func f(c chan int) {
	go f(c)
	select {}
	_ = clock.Now
	_ = clock.Second
}
`
	want := []string{"x.go:4:2: sync", "x.go:10:10: channel", "x.go:11:2: go statement", "x.go:12:2: select statement", "x.go:13:6: time.Now"}
	if got := impurities(t, "x.go", []byte(text)); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
