package lua

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

var (
	calls   = regexp.MustCompile(`\bp?call\(([^,)]*)`)
	command = regexp.MustCompile(`'([A-Z]+)'`)
)

// Without this test, a command that a script rarely calls would fail for users with the rights that docs/operations.md lists,
// and for no others.
func TestScriptCommandsInDocumentedACL(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../docs/operations.md"))(t)
	allowed := map[string]bool{}
	for _, word := range redistest.DocumentedUser(t, "../docs/operations.md") {
		name, _, _ := strings.Cut(word, "|") // of a subcommand, its command
		allowed[name] = true
	}
	seen := 0
	for _, name := range allFiles() {
		for _, call := range calls.FindAllStringSubmatch(read(t, name), -1) {
			for _, c := range command.FindAllStringSubmatch(call[1], -1) {
				seen++
				right := "+" + strings.ToLower(c[1])
				if !allowed[right] && !strings.Contains(string(text), "`"+right+"`") { // what an option takes stands below the rule
					t.Errorf("%s calls %s, which docs/operations.md does not allow", name, c[1])
				}
			}
		}
	}
	if seen < 50 {
		t.Fatalf("only %d calls were found", seen)
	}
}
