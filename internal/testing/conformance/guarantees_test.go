package conformance_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestGuaranteesNameExistingTests: README.md lists the tests that show what docs/guarantees.md says. Each must exist, as
// a function or as the name of a case, in the directory that the list names, and the guarantees must refer to it.
func TestGuaranteesNameExistingTests(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	text := readPage(t, filepath.Join(root, "docs", "guarantees.md"))
	_, list, found := strings.Cut(readPage(t, "README.md"), "\n## The guarantees\n")
	must.That(t, found, "README.md has no list of tests")
	list, _, _ = strings.Cut(list, "\n## ")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| (\\d+) \\| `(\\S+)` \\| `(\\S+)` \\|$").FindAllStringSubmatch(list, -1) {
		number, name, dir := m[1], m[2], m[3]
		listed[number] = true
		check.That(t, strings.Contains(text, "["+number+"]"), "nothing refers to test %s, %s", number, name)
		want := `"` + name + `"`
		if strings.HasPrefix(name, "Test") {
			want = "func " + name + "("
		}
		check.That(t, inSource(t, filepath.Join(root, dir), want), "%s has no test %s", dir, name)
	}
	for _, m := range regexp.MustCompile(`\[(\d+)\]`).FindAllStringSubmatch(text, -1) {
		check.That(t, listed[m[1]], "test %s is not in the list", m[1])
	}
	check.That(t, len(listed) != 0, "the list of tests is empty")
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	page := must.Get(os.ReadFile(path))(t)
	return string(page)
}

func inSource(t *testing.T, dir, text string) bool {
	t.Helper()
	for _, path := range must.Get(filepath.Glob(filepath.Join(dir, "*.go")))(t) {
		if strings.Contains(readPage(t, path), text) {
			return true
		}
	}
	return false
}
