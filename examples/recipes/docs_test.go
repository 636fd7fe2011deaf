package recipes

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestDocumentedCodeIsTested: the code in docs/recipes.md is that of this package, and the examples run all of it.
func TestDocumentedCodeIsTested(t *testing.T) {
	files := slices.DeleteFunc(must.Get(filepath.Glob("*.go"))(t), func(file string) bool { return strings.HasSuffix(file, "_test.go") })
	files = append(files, "../payments/ledger.go") // a module of its own, whose tests run it
	page := example.Code(t, "../../docs/recipes.md")
	example.RequireTested(t, page, example.Code(t, files...))
	tests := example.Code(t, "recipes_test.go")
	for _, m := range regexp.MustCompile(`(?m)^func (\w+)\(`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(tests, m[1]+"(") && m[1] != "fenced" {
			t.Errorf("no example runs %s", m[1])
		}
	}
}
