package protocol

import (
	"errors"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/lua"
	"pgregory.net/rapid"
)

func TestKeysOfName(t *testing.T) {
	for _, c := range []struct {
		prefix, name string
		bare         bool
		lock, meta   string
	}{
		{"lock:", "orders:42", true, "lock:orders:42", "{lock:orders:42}:mutex:meta"},
		{"lock:", "orders:42", false, "{lock:orders:42}:mutex:holders", "{lock:orders:42}:mutex:meta"},
		{"lock:", "{user}:1", true, "lock:{user}:1", "lock:{user}:1:mutex:meta"},
		{"lock:", "a{b", true, "lock:a{b", "{lock:a{b}:mutex:meta"},
		{"", "x", true, "x", "{x}:mutex:meta"},
	} {
		k, err := KeysOf(c.prefix, c.name, "mutex", c.bare)
		check.That(t, err == nil && k.Lock == c.lock && k.Meta == c.meta,
			"%q + %q: %q, %q, %v", c.prefix, c.name, k.Lock, k.Meta, err)
	}
}

func TestInvalidNamesRejected(t *testing.T) {
	for _, name := range []string{"", "}", "a}{b", "a{}b", "{t}:fair:queue", strings.Repeat("x", MaxLength+1)} {
		check.Is(t, check.ErrorOf(KeysOf("", name, "mutex", true)), ErrBadName, "%q", name)
	}
	for _, c := range [][2]string{{"", "{x}"}, {"{", "x}"}, {"{", "{x}"}} { // these would share keys with x or {x
		for _, bare := range []bool{true, false} {
			check.Is(t, check.ErrorOf(KeysOf(c[0], c[1], "fair", bare)), ErrBadName, "%q + %q", c[0], c[1])
		}
	}
	check.Is(t, check.ErrorOf(KeysOf("lock:", "{x}", "mutex", true)), nil, "with a prefix no key is shared")
	check.Is(t, check.ErrorOf(KeysOf("", "t:fair:queue", "mutex", true)), nil, "a name without a hash tag is no key of another name")
	check.Is(t, CheckPrefix("}"), ErrBadName, "a prefix")
}

// TestKeysOfNames draws what FuzzNames checks from the characters that matter.
func TestKeysOfNames(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab:{}mutexqu")), 0, 12, -1)
	rapid.Check(t, func(t *rapid.T) {
		checkNames(t, text.Draw(t, "prefix"), text.Draw(t, "name"), text.Draw(t, "other"))
	})
}

// hashed returns the part of a key that a cluster hashes, by its specification.
func hashed(key string) string {
	_, rest, found := strings.Cut(key, "{")
	if tag, _, ends := strings.Cut(rest, "}"); found && ends && tag != "" {
		return tag
	}
	return key
}

// FuzzNames checks that every prefix and name is rejected as ErrBadName, or its keys are in one slot of a cluster,
// distinct, and not shared with another name.
func FuzzNames(f *testing.F) {
	for _, s := range [][3]string{
		{"lock:", "orders:42", "orders:4"}, {"", "x", "{x}"}, {"lock:", "{user}:1", "user"}, {"lock:", "a{b", "a"},
		{"", "}", "{"}, {"{t}", "", "x"}, {"lock:", "a}{b", "a{}b"}, {"\x00", "\xff\xfe\r\n", " "}, {"a{", "b}", "b"},
		{"", "{t}:fair:queue", "{t}"}, {"{", "}", "x}"}, {"lock:", strings.Repeat("n", MaxLength+1), "n"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, prefix, name, other string) { checkNames(t, prefix, name, other) })
}

func checkNames(t interface{ Errorf(string, ...any) }, prefix, name, other string) {
	if err := CheckPrefix(prefix); err != nil {
		if !errors.Is(err, ErrBadName) {
			t.Errorf("%v", err)
		}
		return
	}
	for _, bare := range []bool{true, false} {
		k, err := KeysOf(prefix, name, "mutex", bare)
		if err != nil {
			if !errors.Is(err, ErrBadName) || k != (Keys{}) {
				t.Errorf("%q + %q: %+v, %v", prefix, name, k, err)
			}
			continue
		}
		if name == "" || len(name) > MaxLength {
			t.Errorf("%q was accepted", name)
		}
		seen := map[string]bool{}
		for _, key := range append(k.All(), ChannelPrefix(prefix, name)+"id") {
			if hashed(key) != hashed(prefix+name) || seen[key] {
				t.Errorf("%q + %q: %q hashes %q", prefix, name, key, hashed(key))
			}
			seen[key] = true
		}
		for kind, bare := range map[string]bool{"mutex": bare, "fair": !bare} {
			o, err := KeysOf(prefix, other, kind, bare)
			if err != nil || other == name {
				continue
			}
			for _, key := range o.All() {
				if seen[key] {
					t.Errorf("%q and %q share %q", name, other, key)
				}
			}
		}
	}
}

func TestParseKey(t *testing.T) {
	const id = "3qZaNx7zYpGX"
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
		{"", ConnectionKey("", id), "", "", 0},
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
		{"lock:", "{user}:mutex:queue"}, {"\x00", "\xff\xfe\r\n"}, {"", "{x}:owner:3qZaNx7zYpGX"},
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
			check.That(t, err == nil && keys.All()[p.Part] == name,
				"%q %q is parsed as %+v, which has %v, %v", prefix, name, p, keys, err)
		}
		for _, set := range lua.All {
			keys, err := KeysOf(prefix, name, set.KeyKind, set.PlainKey)
			if err != nil || set.PlainKey && isOwnerKey(keys.Lock) {
				continue
			}
			for part, key := range keys.All() {
				p, ok := ParseKey(prefix, key)
				check.That(t, ok && p.Set.KeyKind == set.KeyKind && p.Name == name && p.Part == KeyPart(part),
					"%s %q + %q: key %q is parsed as %v, %t", set.Kind, prefix, name, key, p, ok)
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
		got := MatchGlob(c.pattern, c.text)
		check.That(t, got == c.want, "%q matches %q: %t", c.pattern, c.text, got)
	}
}

// FuzzQuoteGlob: a quoted text matches itself, and not another one.
func FuzzQuoteGlob(f *testing.F) {
	for _, s := range [][2]string{{"lock:", "lock;"}, {"a*", "ab"}, {`\`, ""}, {"[^a-z]?", "x?"}, {"\xff*", "\xff"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		check.That(t, MatchGlob(QuoteGlob(text), text), "%q does not match itself", text)
		check.That(t, MatchGlob(QuoteGlob(text), other) == (text == other), "%q matches %q", text, other)
		MatchGlob(text, other) // ends
	})
}
