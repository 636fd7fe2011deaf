package redistest

import (
	"os"
	"strings"
)

// DocumentedUser returns what docs/operations.md, at this path, tells to give to ACL SETUSER: the name of the user and its rules.
func DocumentedUser(t TB, path string) (fields []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	_, rest, found := strings.Cut(string(text), "```\nACL SETUSER ")
	rule, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatalf("no ACL SETUSER in %s", path)
	}
	return strings.Fields(rule)
}
