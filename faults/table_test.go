package faults

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestFaultTableNamesExistingTests: in README.md each of the 60 scenarios has its row, and every test that a row names exists.
func TestFaultTableNamesExistingTests(t *testing.T) {
	doc, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(doc), "| | scenario | promise | tests | result |\n|---|---|---|---|---|\n")
	if !found {
		t.Fatal("no table")
	}
	all := testSource(t)
	n := 0
	for line := range strings.Lines(table) {
		cell := strings.Split(line, " | ")
		if len(cell) != 5 {
			break
		}
		n++
		if cell[0] != "| "+strconv.Itoa(n) {
			t.Errorf("row %d is %s", n, line)
		}
		names := regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(cell[3], -1)
		if len(names) == 0 && !strings.HasPrefix(cell[3], "none: ") {
			t.Errorf("row %d names no test, and no reason", n)
		}
		for _, name := range names {
			last := name[1][strings.LastIndex(name[1], "/")+1:]
			if !strings.Contains(all, "func "+last+"(") && !strings.Contains(all, `"`+last+`"`) {
				t.Errorf("row %d: there is no test %s", n, name[1])
			}
		}
	}
	if n != 60 {
		t.Errorf("%d rows", n)
	}
}

// TestPromiseTableNamesExistingTests checks that every test in the table of smaller promises in README.md exists.
func TestPromiseTableNamesExistingTests(t *testing.T) {
	doc, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(doc), "| promise | tests |\n|---|---|\n")
	if !found {
		t.Fatal("no table")
	}
	all := testSource(t)
	for line := range strings.Lines(table) {
		cell := strings.Split(line, " | ")
		if len(cell) != 2 {
			break
		}
		names := regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(cell[1], -1)
		if len(names) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, name := range names {
			if !strings.Contains(all, "func "+name[1]+"(") && !strings.Contains(all, `"`+name[1]+`"`) {
				t.Errorf("there is no test %s", name[1])
			}
		}
	}
}

// testSource returns the text of all tests, and of the suite that every primitive runs.
func testSource(t *testing.T) string {
	t.Helper()
	var source strings.Builder
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(path, "_test.go") || strings.Contains(path, "conform") && strings.HasSuffix(path, ".go")) {
			var text []byte
			text, err = os.ReadFile(path)
			source.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return source.String()
}
