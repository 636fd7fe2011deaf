package recipes

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedCodeIsTested: the code in docs/recipes.md is that of this package, which the examples run, and every example
// runs code of that page.
func TestDocumentedCodeIsTested(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../payments/ledger.go") // a module of its own, whose tests run it
	code := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code[file] = string(text)
	}
	page, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	contained := func(block string) bool {
		for file, text := range code {
			if !strings.HasSuffix(file, "_test.go") && strings.Contains(text, block) {
				return true
			}
		}
		return false
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	for _, block := range blocks {
		for part := range strings.SplitSeq(block[1], "\n}\n") { // functions, which may be of several files
			if part = strings.TrimSpace(part); part != "" && !contained(part) {
				t.Errorf("not in this package:\n%s", part)
			}
		}
	}
	examples := regexp.MustCompile(`func Example_(\w+)\(\)`).FindAllStringSubmatch(code["recipes_test.go"], -1)
	if len(blocks) < 16 || len(examples) < 16 {
		t.Errorf("%d blocks of code and %d examples were found", len(blocks), len(examples))
	}
	for _, example := range examples {
		if !regexp.MustCompile(`(?m)^(func|type) ` + example[1] + `\b`).Match(page) {
			t.Errorf("docs/recipes.md has no %s", example[1])
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^func (\w+)\(`).FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(code["recipes_test.go"], m[1]+"(") && m[1] != "fenced" {
			t.Errorf("no example runs %s", m[1])
		}
	}
}

// TestCloseReleasesLeaseThatIsToBeAdopted: what docs/recipes.md says about a lock that another process is to release.
func TestCloseReleasesLeaseThatIsToBeAdopted(t *testing.T) {
	first := newKeeper("first")
	token, err := begin(ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := newMutex(k, "upload:7").Adopt(ctx, token); err == nil {
		t.Error("it was adopted")
	}
}
