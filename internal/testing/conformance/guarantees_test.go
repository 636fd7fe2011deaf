package conformance_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGuaranteesNameExistingTests: docs/guarantees.md lists the tests that show what it says. Each must be there, a
// function or the name of a case, in the directory that the page says, and be referred to.
func TestGuaranteesNameExistingTests(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	text, _, found := strings.Cut(string(page), "\n## The tests\n")
	if !found {
		t.Fatal("the page has no list of tests")
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| (\\d+) \\| `(\\S+)` \\| `(\\S+)` \\|$").FindAllStringSubmatch(string(page), -1) {
		number, name, dir := m[1], m[2], m[3]
		listed[number] = true
		if !strings.Contains(text, "["+number+"]") {
			t.Errorf("nothing refers to test %s, %s", number, name)
		}
		want := `"` + name + `"`
		if strings.HasPrefix(name, "Test") {
			want = "func " + name + "("
		}
		if !inSource(t, filepath.Join(root, dir), want) {
			t.Errorf("%s has no test %s", dir, name)
		}
	}
	for _, m := range regexp.MustCompile(`\[(\d+)\]`).FindAllStringSubmatch(text, -1) {
		if !listed[m[1]] {
			t.Errorf("test %s is not in the list", m[1])
		}
	}
	if len(listed) == 0 {
		t.Error("the list of tests is empty")
	}
}

// inSource says whether a Go file in the directory has the text.
func inSource(t *testing.T, dir, text string) bool {
	t.Helper()
	files, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), text) {
			return true
		}
	}
	return false
}
