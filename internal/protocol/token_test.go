package protocol

import (
	"strings"
	"testing"
)

func TestTokenRoundTrip(t *testing.T) {
	for text, want := range map[string]Token{
		"k:1a:30000.6000":          {"k", "1a", "", 30000, 6000, "", 0},
		"k:1a:30000.6000r":         {"k", "1a", "", 30000, 6000, "r", 0},
		"k:1a:30000.6000ws16":      {"k", "1a", "", 30000, 6000, "ws", 16},
		"k:1a:10.10hc1000000":      {"k", "1a", "", 10, 10, "hc", 1000000},
		"k:1a~am9iIDQy:10.10hc2":   {"k", "1a", "job 42", 10, 10, "hc", 2},
		"k:z:1.1f9007199254740991": {"k", "z", "", 1, 1, "f", 1<<53 - 1},
	} {
		if got := want.String(); got != text {
			t.Errorf("%+v is %q, want %q", want, got, text)
		}
		if got, ok := ParseToken(text); !ok || got != want {
			t.Errorf("%q is %+v, %v; want %+v", text, got, ok, want)
		}
	}
}

func TestParseTokenRejectsForeign(t *testing.T) {
	for _, text := range []string{
		"", "x", "k:1a", "k:1a:", ":1a:1.1", "k::1.1", "k:~eA:1.1", "k:1a:1", "k:1a:1.", "k:1a:.1", "k:1a:1.1R", "k:1a:1.1 ", "k:1a:1.1r2r",
		"k:1a:-1.1", "done:k:1a:1.1", "k:1a:1.1:x", "k:1a:99999999999999999999.1", "0f8fad5b-d9cb-469f-a165-70867728950e",
	} {
		if got, ok := ParseToken(text); ok || got != (Token{}) {
			t.Errorf("%q is %+v", text, got)
		}
	}
	for _, note := range []string{"", "!", "am9iIDR", "G1sySg", strings.Repeat("eHh4", 22)} { // no note that is shown
		got, ok := ParseToken("k:1a~" + note + ":30000.6000r1")
		if want := (Token{"k", "1a", "", 30000, 6000, "r", 1}); !ok || got != want {
			t.Errorf("with note %q: %+v, %v", note, got, ok)
		}
	}
	longest := Token{strings.Repeat("k", 22), strings.Repeat("s", SerialLength), strings.Repeat("n", maxNote), 1 << 42, 1 << 42, "ukcbs", 1 << 53}
	if n := len(longest.String()); n > MaxTokenLength {
		t.Errorf("a token has %d bytes", n)
	}
}

// FuzzParseToken: what is taken apart is put together again, but for leading zeros and a number 0.
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{"", "k:1a:30000.6000ws16", "a:b:01.1r0", "k:1:1.1f9", ":::", "a:b:1.1z99999999999999999999", "a:b~am9iIDQy:1.1", "a:b~!~:1.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, ok := ParseToken(text)
		if !ok {
			return
		}
		if token.Keeper == "" || token.Serial == "" || token.TTL < 0 || token.ClaimTTL < 0 || token.Number < 0 || strings.Trim(token.Flags, "abcdefghijklmnopqrstuvwxyz") != "" {
			t.Errorf("%q is %+v", text, token)
		}
		if again, ok := ParseToken(token.String()); !ok || again != token {
			t.Errorf("%q is %+v, and then %+v", text, token, again)
		}
	})
}

// TestTokenOfUnprintableTextIsForeign: the keeper of a token is shown to people.
func TestTokenOfUnprintableTextIsForeign(t *testing.T) {
	for _, text := range []string{"\x1b[2J:b:1.1", "a:\n:1.1", "\u202ea:b:1.1", "\xff:b:1.1"} {
		if got, ok := ParseToken(text); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
