package migration

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedCodeIsTested: the code in docs/migration.md is that of package after.
func TestDocumentedCodeIsTested(t *testing.T) {
	code, err := os.ReadFile("after/stock.go")
	must(t, err)
	page, err := os.ReadFile("../../docs/migration.md")
	must(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) == 0 {
		t.Error("no code was found")
	}
	for _, block := range blocks {
		if !strings.Contains(string(code), block[1]) {
			t.Errorf("not in package after:\n%s", block[1])
		}
	}
}
