package cli

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/cli/version"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestCommandsAreDocumented: docs/commands.md has a section for each command, and the helps have each field of the JSON that several
// commands share.
func TestCommandsAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile("../../docs/commands.md"))(t)
	page := string(text)
	n := 0
	for _, c := range newRoot().Commands() {
		if c.Hidden {
			continue
		}
		n++
		check.That(t, strings.Contains(page, "\n## "+c.Name()+"\n") && strings.Contains(page, "[`"+c.Name()+"`](#"+c.Name()+")"),
			"%s has no section or is not listed", c.Name())
		check.That(t, c.Flags().Lookup("json") == nil || strings.Contains(c.Long, "--json"),
			"the help of %s does not mention --json", c.Name())
		if c.Runnable() && !strings.Contains(c.Long, "Exit codes") && c.Name() != "version" && c.Name() != "demo" {
			t.Errorf("the help of %s has no exit codes", c.Name())
		}
		check.That(t, c.Example != "", "the help of %s has no examples", c.Name())
		for line := range strings.Lines(c.Long) { // as wide as a terminal
			n := len([]rune(strings.TrimRight(line, "\n")))
			check.That(t, n <= 92 || strings.Contains(line, "://"), "%s: %d columns: %s", c.Name(), n, line)
		}
	}
	check.That(t, n >= 10, "only %d commands", n)
	help := map[string]string{}
	for _, c := range newRoot().Commands() {
		help[c.Name()] = c.Long
	}
	for fields, command := range map[reflect.Type]string{
		reflect.TypeFor[output.Lock](): "show", reflect.TypeFor[output.Entry](): "ls", reflect.TypeFor[output.Holder](): "show",
		reflect.TypeFor[output.Waiter](): "show", reflect.TypeFor[output.Limits](): "show",
		reflect.TypeFor[output.Inspection](): "show", reflect.TypeFor[version.Build](): "version",
	} {
		for i := range fields.NumField() {
			name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			check.That(t, name == "" || regexp.MustCompile(`\b`+name+`\b`).MatchString(help[command]),
				"the help of %s does not document the field %s of %v", command, name, fields)
		}
	}
}
