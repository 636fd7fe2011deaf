package faults

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestTablesNameExistingTests checks the tables in README.md: each row has its number or its promise, and names tests that exist.
func TestTablesNameExistingTests(t *testing.T) {
	doc := must.Get(os.ReadFile("README.md"))(t)
	all := testSource(t)
	for _, c := range []struct {
		heading string
		columns int
		tests   int // the column that names them
		rows    int // 0: any number
	}{
		{heading: "| | scenario | promise | tests | result |\n|---|---|---|---|---|\n", columns: 5, tests: 3, rows: 60},
		{heading: "| promise | tests |\n|---|---|\n", columns: 2, tests: 1},
	} {
		_, table, found := strings.Cut(string(doc), c.heading)
		must.That(t, found, "no table %s", c.heading)
		n := 0
		for line := range strings.Lines(table) {
			cell := strings.Split(line, " | ")
			if len(cell) != c.columns {
				break
			}
			n++
			check.That(t, c.rows <= 0 || cell[0] == "| "+strconv.Itoa(n), "row %d is %s", n, line)
			names := regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(cell[c.tests], -1)
			check.That(t, len(names) != 0 || strings.HasPrefix(cell[c.tests], "none: "), "no test, and no reason: %s", line)
			for _, name := range names {
				last := name[1][strings.LastIndex(name[1], "/")+1:]
				check.That(t, strings.Contains(all, "func "+last+"(") || strings.Contains(all, `"`+last+`"`),
					"there is no test %s", name[1])
			}
		}
		check.That(t, (c.rows <= 0 || n == c.rows) && n != 0, "%d rows", n)
	}
}

// testSource returns the text of all tests, and of the suite that every primitive runs.
func testSource(t *testing.T) string {
	t.Helper()
	var source strings.Builder
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(path, "_test.go") || strings.Contains(path, "conform") && strings.HasSuffix(path, ".go")) {
			var text []byte
			text, err = os.ReadFile(path)
			source.Write(text)
		}
		return err
	})
	must.OK(t, err)
	return source.String()
}
