package protocol

import (
	"strings"
	"testing"
)

// TestShownTextIsPrintableAndShort checks text of others in errors and logs, and that tokens of ours are left as they are.
func TestShownTextIsPrintableAndShort(t *testing.T) {
	for _, text := range []string{"", "k:1z:30000.6000", "another library's"} {
		if got := Shown(text); got != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
	for _, text := range []string{
		"\x1b[2J", "a\nb", "\u202eabc", "\xff", strings.Repeat("x", 100_000), strings.Repeat("\x1b", 100_000), strings.Repeat("é", 100_000),
	} {
		for _, got := range []string{Shown(text), Excerpt(text)} {
			if len(got) > 4*maxExcerpt+30 || !isPrintable(got) || !strings.HasPrefix(got, `"`) {
				t.Errorf("%.20q is shown as %.400q, %d bytes", text, got, len(got))
			}
		}
	}
}
