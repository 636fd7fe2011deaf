package example

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// Main runs the tests, or the program itself in a process whose first argument is one of these roles: programs start
// processes of their own binary.
func Main(m *testing.M, program func(), roles ...string) {
	if len(os.Args) > 1 && slices.Contains(roles, os.Args[1]) {
		program()
		return
	}
	os.Exit(m.Run())
}

// Output returns what a program prints.
func Output(t *testing.T, program func(out io.Writer) error) string {
	t.Helper()
	var out strings.Builder
	err := program(&out)
	t.Logf("\n%s", out.String())
	must.Report(t, err)
	return out.String()
}

// Code returns the text of these files.
func Code(t *testing.T, files ...string) string {
	t.Helper()
	var code strings.Builder
	for _, file := range files {
		code.Write(must.Get(os.ReadFile(file))(t))
	}
	return code.String()
}

// RequireTested checks that each function in the Go code of a page of docs is in code.
func RequireTested(t *testing.T, page, code string) {
	t.Helper()
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(blocks) == 0 {
		t.Error("the page has no code")
	}
	for _, block := range blocks {
		for part := range strings.SplitSeq(block[1], "\n}\n") {
			if part = strings.TrimSpace(part); !strings.Contains(code, part) {
				t.Errorf("this code is not tested:\n%s", part)
			}
		}
	}
}
