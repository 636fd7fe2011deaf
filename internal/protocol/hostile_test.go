package protocol

import (
	"strings"
	"testing"
	"time"
)

// TestParsersTakeLinearTime: whatever text comes from the server, a parser takes time at most proportional to its length.
func TestParsersTakeLinearTime(t *testing.T) {
	parsers := map[string]func(string){
		"a token":       func(s string) { ParseToken(s) },
		"a message":     func(s string) { _, _ = ParseMessage(s) },
		"limits":        func(s string) { ParseLimits(s) },
		"a key":         func(s string) { ParseKey("lock:", s) },
		"a keeper's id": func(s string) { IsKeeperID(s) },
		"a holder": func(s string) {
			_ = IsRecord(s)
			_, _, _ = ParseHolders([]any{int64(1), int64(1), s, int64(1), int64(1), int64(1)})
		},
		"an excerpt":      func(s string) { Excerpt(s) },
		"a text to match": func(s string) { MatchGlob("*a*b*c", s) },
	}
	values := map[string]func(n int) string{
		"digits":  func(n int) string { return strings.Repeat("1", n) },
		"token":   func(n int) string { return "a:b:1." + strings.Repeat("1", n) + "!" },
		"letters": func(n int) string { return "a:b:1.1" + strings.Repeat("k", n) + "!" },
		"colons":  func(n int) string { return strings.Repeat(":", n) },
		"pairs":   func(n int) string { return strings.Repeat("a 1 ", n/4) },
		"limits":  func(n int) string { return "0:3:1000 " + strings.Repeat("0:", n/2) + " " + strings.Repeat("1", n) },
		"key":     func(n int) string { return "{lock:" + strings.Repeat("{x}:", n/4) + "}:fair:holders" },
		"escapes": func(n int) string { return strings.Repeat("\x1b", n) },
	}
	const short, long = 20_000, 200_000
	for what, parse := range parsers {
		for value, of := range values {
			took := func(text string) time.Duration {
				least := time.Hour
				for range 5 {
					began := time.Now()
					parse(text)
					least = min(least, time.Since(began))
				}
				return least
			}
			if small, large := took(of(short)), took(of(long)); large > long/short*3*small+5*time.Millisecond {
				t.Errorf("%s, %s: %v for %d bytes, %v for %d", what, value, small, short, large, long)
			}
		}
	}
	if _, ok := ParseToken("a:b:1.1" + strings.Repeat("k", MaxTokenLength)); ok {
		t.Error("a token that is too long is taken for one of ours")
	}
}

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
