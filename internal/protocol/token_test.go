package protocol

import (
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestTokenRoundTrip(t *testing.T) {
	for text, want := range map[string]Token{
		"k:1a:30000.6000":          {"k", "1a", "", 30000, 6000, "", 0, ""},
		"k:1a:30000.6000r":         {"k", "1a", "", 30000, 6000, "r", 0, ""},
		"k:1a:30000.6000ws16":      {"k", "1a", "", 30000, 6000, "ws", 16, ""},
		"k:1a:10.10hc1000000":      {"k", "1a", "", 10, 10, "hc", 1000000, ""},
		"k:1a~am9iIDQy:10.10hc2":   {"k", "1a", "job 42", 10, 10, "hc", 2, ""},
		"k:z:1.1f9007199254740991": {"k", "z", "", 1, 1, "f", 1<<53 - 1, ""},
	} {
		got, ok := ParseToken(text)
		check.That(t, want.String() == text && ok && got == want, "%q is %+v, %v; want %+v, which is %q", text, got, ok, want, want.String())
	}
}

func TestParseTokenRejectsForeign(t *testing.T) {
	for _, text := range []string{
		"", "x", "k:1a", "k:1a:", ":1a:1.1", "k::1.1", "k:~eA:1.1", "k:1a:1", "k:1a:1.", "k:1a:.1", "k:1a:1.1R", "k:1a:1.1 ", "k:1a:1.1r2r",
		"k:1a:-1.1", "done:k:1a:1.1", "k:1a:1.1:x", "k:1a:99999999999999999999.1", "0f8fad5b-d9cb-469f-a165-70867728950e",
		"\x1b[2J:b:1.1", "a:\n:1.1", "\u202ea:b:1.1", "\xff:b:1.1", // which would be shown to people
		"a:b:1.1" + strings.Repeat("k", MaxTokenLength),
	} {
		got, ok := ParseToken(text)
		check.That(t, !ok && got == (Token{}), "%.100q is %+v", text, got)
	}
	for _, note := range []string{"", "!", "am9iIDR", "G1sySg", strings.Repeat("eHh4", 22)} { // no note that is shown
		got, ok := ParseToken("k:1a~" + note + ":30000.6000r1")
		want := Token{"k", "1a", "", 30000, 6000, "r", 1, ""}
		check.That(t, ok && got == want, "with note %q: %+v, %v", note, got, ok)
	}
	longest := Token{strings.Repeat("k", 25), strings.Repeat("s", SerialLength), strings.Repeat("n", maxNote), 1 << 42, 1 << 42, "ukcb", 1 << 53, ""}
	n := len(longest.String())
	check.That(t, n <= MaxTokenLength, "a token has %d bytes", n)
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

// TestAddressOfToken: the address is the second part of what scripts take for the keeper, and other versions have none.
func TestAddressOfToken(t *testing.T) {
	for i := range 10 {
		prefix, sharded := strings.Repeat("p", i*i), i%2 == 0
		id, address := NewKeeperID(), NewAddress(prefix, sharded)
		text := Token{Keeper: id, Address: address, Serial: "1a", TTL: 10, ClaimTTL: 10}.String()
		if got, ok := ParseToken(text); !ok || got.Keeper != id || got.Address != address || got.String() != text ||
			!strings.HasSuffix(address, WayOf(prefix, sharded)) || NewAddress(prefix, sharded) == address {
			t.Errorf("%q is %+v", text, got)
		}
	}
	for _, other := range []string{"k", strings.Repeat("k", 22), strings.Repeat("k", 19) + ".5", strings.Repeat("k", 21) + ".5"} {
		got, ok := ParseToken(other + ":1a:10.10")
		check.That(t, ok && got.Keeper == other && got.Address == "", "%q: %+v, %t", other, got, ok)
	}
}

func TestKeeperIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewKeeperID()
		check.That(t, IsKeeperID(id) && !seen[id], "id %q", id)
		seen[id] = true
	}
	for _, text := range []string{"", "x", "3qZaNx7zYpG", "3qZaNx7zYpGXg", "-qZaNx7zYpGX", "+qZaNx7zYpGX", "3qZ_Nx7zYpGX", "3qZ:Nx7zYpGX"} {
		check.That(t, !IsKeeperID(text), "%q is taken for an id", text)
	}
}

// TestSerials: serials are drawn by many goroutines, are all different, and use all characters about equally often.
func TestSerials(t *testing.T) {
	const goroutines, each = 8, 2000
	drawn := make([][]string, goroutines)
	var wg sync.WaitGroup
	for g := range drawn {
		wg.Go(func() {
			for range each {
				s := NewSerial()
				drawn[g] = append(drawn[g], string(s[:]))
			}
		})
	}
	wg.Wait()
	seen, count := map[string]bool{}, map[rune]int{}
	for _, list := range drawn {
		for _, s := range list {
			must.That(t, !seen[s] && isSerial(s), "serial %q", s)
			seen[s] = true
			for _, c := range s {
				count[c]++
			}
		}
	}
	mean := float64(goroutines*each*SerialLength) / 62
	for c, n := range count {
		check.That(t, math.Abs(float64(n)-mean) <= 8*math.Sqrt(mean), "%c: %d times, the mean is %.0f", c, n, mean)
	}
	check.That(t, len(count) == 62, "%d characters", len(count))
}

// TestTokenIsShort: the server keeps a string of up to 44 bytes in one piece.
func TestTokenIsShort(t *testing.T) {
	serial := NewSerial()
	for _, flags := range []string{"", FlagRead} {
		text := Token{Keeper: NewKeeperID(), Address: NewAddress("lock:", false), Serial: string(serial[:]), TTL: 30_000, ClaimTTL: 6_000, Flags: flags}.String()
		check.That(t, len(text) <= 44, "%s has %d bytes", text, len(text))
	}
}

func TestParseLimits(t *testing.T) {
	for field, want := range map[string]Limits{
		"0:3:1000 0:5:1000":                    {0, 5, 1000, 0},
		"2:0:0 4:0:0":                          {4, 0, 0, 0},
		"0:3:1000 0:5:1000 1800000005000 5000": {0, 5, 1000, 1_800_000_005_000},
		"0:3:1000 0:5:1000 x 5000":             {},
		"0:3:1000 0:5:1000 -5 5000":            {},
		"":                                     {},
		"0:3:1000":                             {},
		"0:3:1000 x:5:1000":                    {},
		"0:3:1000 0:-5:1000":                   {},
	} {
		got, ok := ParseLimits(field)
		check.That(t, got == want && ok == (want != Limits{}), "%q: %+v, %t; want %+v", field, got, ok, want)
	}
}

// TestParsersTakeLinearTime: whatever text comes from the server, a parser takes time at most proportional to its length.
func TestParsersTakeLinearTime(t *testing.T) {
	parsers := map[string]func(string){
		"a token":       func(s string) { ParseToken(s) },
		"a message":     func(s string) { _, _ = ParseMessage(s) },
		"limits":        func(s string) { ParseLimits(s) },
		"a key":         func(s string) { ParseKey("lock:", s) },
		"a keeper's id": func(s string) { _ = IsKeeperID(s) },
		"a holder": func(s string) {
			_ = IsRecord(s)
			_, _, _ = ParseHolders([]any{int64(1), int64(1), s, int64(1), int64(1), int64(1), int64(0)})
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
			small, large := took(of(short)), took(of(long))
			check.That(t, large <= long/short*3*small+5*time.Millisecond,
				"%s, %s: %v for %d bytes, %v for %d", what, value, small, short, large, long)
		}
	}
}

// TestShownTextIsPrintableAndShort checks text of others in errors and logs, and that tokens of ours are left as they are.
func TestShownTextIsPrintableAndShort(t *testing.T) {
	for _, text := range []string{"", "k:1z:30000.6000", "another library's"} {
		got := Shown(text)
		check.That(t, got == text, "%q is shown as %q", text, got)
	}
	for _, text := range []string{
		"\x1b[2J", "a\nb", "\u202eabc", "\xff", strings.Repeat("x", 100_000), strings.Repeat("\x1b", 100_000), strings.Repeat("é", 100_000),
	} {
		for _, got := range []string{Shown(text), Excerpt(text)} {
			check.That(t, len(got) <= 4*maxExcerpt+30 && isPrintable(got) && strings.HasPrefix(got, `"`),
				"%.20q is shown as %.400q, %d bytes", text, got, len(got))
		}
	}
}
