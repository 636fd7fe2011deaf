package tested

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedCodeIsTested: the code in docs/testing-your-code.md is that of this package.
func TestDocumentedCodeIsTested(t *testing.T) {
	var code string
	for _, file := range []string{"export.go", "export_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code += string(text)
	}
	page, err := os.ReadFile("../../docs/testing-your-code.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 3 {
		t.Errorf("%d blocks of code were found", len(blocks))
	}
	for _, block := range blocks {
		if !strings.Contains(code, block[1]) {
			t.Errorf("not in this package:\n%s", block[1])
		}
	}
}
