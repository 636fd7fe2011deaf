package protocol

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/lua"
)

func TestParseKey(t *testing.T) {
	const id = "3qZaNx7zYpGXgfi8dCj6uj"
	for _, c := range []struct {
		prefix, key, kind, name string
		part                    KeyPart
	}{
		{"lock:", "lock:orders:42", "mutex", "orders:42", KeyLock},
		{"lock:", "{lock:orders:42}:mutex:meta", "mutex", "orders:42", KeyMeta},
		{"lock:", "{lock:orders:42}:fair:holders", "fair", "orders:42", KeyLock},
		{"lock:", "{lock:orders:42}:ratelimit:queue", "ratelimit", "orders:42", KeyQueue},
		{"lock:", "lock:{user}:1:rwlock:tombstones", "rwlock", "{user}:1", KeyTombstones},
		{"lock:", "lock:x:rwlock:queue", "mutex", "x:rwlock:queue", KeyLock}, // no hash tag, so it is a name
		{"lock:", "{lock:x}:mutex:holders", "", "", 0},
		{"lock:", "{lock:x}:other:queue", "", "", 0},
		{"lock:", "lock:", "", "", 0},
		{"lock:", "{lock:}:mutex:queue", "", "", 0},
		{"lock:", "session:1", "", "", 0},
		{"lock:", "{lock:}:owner:" + id, "", "", 0},
		{"{a}:", "{a}::owner:" + id, "", "", 0},
		{"", "{lockkeeper}:owner:" + id, "", "", 0},
		{"", "{x}:once:holders", "once", "x", KeyLock},
		{"", "x", "mutex", "x", KeyLock},
		{"", "{x}", "", "", 0},
		{"", "", "", "", 0},
		{"", "{}:mutex:queue", "", "", 0},
		{"", ":mutex:queue", "mutex", ":mutex:queue", KeyLock},
		{"l*[", "{l*[a\xff}:semaphore:holders", "semaphore", "a\xff", KeyLock},
	} {
		p, ok := ParseKey(c.prefix, c.key)
		if ok != (c.kind != "") || ok && (p.Set.Kind != c.kind || p.Name != c.name || p.Part != c.part) {
			t.Errorf("%q %q: %v %q %d, %t", c.prefix, c.key, p.Set, p.Name, p.Part, ok)
		}
	}
}

// FuzzParseKey: every key that KeysOf derives is taken apart into what it was derived from, and every key that ParseKey accepts
// is derived again from what it says.
func FuzzParseKey(f *testing.F) {
	for _, s := range [][2]string{
		{"lock:", "orders:42"}, {"", "x"}, {"lock:", "{user}:1"}, {"lock:", "a{b"}, {"{t}", "x"}, {"{", "x"}, {"", "{t}:fair:queue:mutex:meta"},
		{"lock:", "{user}:mutex:queue"}, {"\x00", "\xff\xfe\r\n"}, {"", "{x}:owner:3qZaNx7zYpGXgfi8dCj6uj"},
		{"a:", strings.Repeat("n", MaxLength)}, {"", "{lock:x}:rwlock:queue"}, {"{{", "}"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, prefix, name string) {
		if CheckPrefix(prefix) != nil {
			return
		}
		if p, ok := ParseKey(prefix, name); ok { // of a key that may be anything
			keys, err := KeysOf(prefix, p.Name, p.Set.KeyKind, p.Set.PlainKey)
			if err != nil || keys.All()[p.Part] != name {
				t.Errorf("%q %q is parsed as %+v, which has %v, %v", prefix, name, p, keys, err)
			}
		}
		for _, set := range lua.All {
			keys, err := KeysOf(prefix, name, set.KeyKind, set.PlainKey)
			if err != nil || set.PlainKey && isOwnerKey(keys.Lock) {
				continue
			}
			for part, key := range keys.All() {
				p, ok := ParseKey(prefix, key)
				if !ok || p.Set.KeyKind != set.KeyKind || p.Name != name || p.Part != KeyPart(part) {
					t.Errorf("%s %q + %q: key %q is parsed as %v, %t", set.Kind, prefix, name, key, p, ok)
				}
			}
		}
	})
}

func TestMatchGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "a:b", true}, {"a*", "ba", false}, {"*a", "ba", true},
		{"a*b*c", "aXbYbZc", true}, {"a*b*c", "acb", false}, {"h?llo", "hello", true}, {"h?llo", "hllo", false}, {"**", "x", true},
		{"h[ae]llo", "hallo", true}, {"h[ae]llo", "hillo", false}, {"h[^e]llo", "hello", false}, {"h[^e]llo", "hallo", true},
		{"[a-c]x", "bx", true}, {"[c-a]x", "bx", true}, {"[a-c]x", "dx", false}, {`\*`, "*", true}, {`\*`, "x", false},
		{`[\]]`, "]", true}, {"[ab", "a", true}, {"[", "a", false}, {`a\`, `a\`, true}, {"?", "\xff", true},
		{"*b*", "abc", true}, {"??", "x", false}, {"[]", "]", false}, {"x", "", false}, {"**x", "yyx", true}, {"*\xff*", "a\xffb", true},
		{strings.Repeat("a*", 200) + "b", strings.Repeat("a", 1000), false},
	} {
		if got := MatchGlob(c.pattern, c.text); got != c.want {
			t.Errorf("%q matches %q: %t", c.pattern, c.text, got)
		}
	}
}

// FuzzQuoteGlob: a quoted text matches itself, and not another one.
func FuzzQuoteGlob(f *testing.F) {
	for _, s := range [][2]string{{"lock:", "lock;"}, {"a*", "ab"}, {`\`, ""}, {"[^a-z]?", "x?"}, {"\xff*", "\xff"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		if !MatchGlob(QuoteGlob(text), text) {
			t.Errorf("%q does not match itself", text)
		}
		if MatchGlob(QuoteGlob(text), other) != (text == other) {
			t.Errorf("%q matches %q", text, other)
		}
		MatchGlob(text, other) // ends
	})
}
