package protocol

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
)

func TestParseMessage(t *testing.T) {
	for payload, want := range map[string][]Wakeup{
		"a 7":                {{"a", 7, 0, false, nil}},
		"a 7 1z 8":           {{"a", 7, 0, false, nil}, {"1z", 8, 0, false, nil}},
		"a -250 b 7":         {{"a", 0, 250, false, nil}, {"b", 7, 0, false, nil}},
		"a 9007199254740992": {{"a", maxFence, 0, false, nil}},
		"0123456789abc 7":    {{"0123456789abc", 7, 0, false, nil}},
		"a recall":           {{"a", 0, 0, true, nil}},
		"a recall b 7":       {{"a", 0, 0, true, nil}, {"b", 7, 0, false, nil}},
	} {
		if got, err := ParseMessage(payload); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", payload, got, err, want)
		}
	}
}

func TestInvalidMessages(t *testing.T) {
	for _, payload := range []string{
		"", " \t\n", "a", "recall", "a 7 b", "a  7", "a 7 ", "\x00\xff 7 \xff",
		"0123456789abcd 7", "a:b 7", // the serial
		"a x", "a 7.0", "a 1e3", "a 0x7", "a 0", "a -0", "a recalled", // neither a fence nor a time
		"a 9007199254740993", "a -9007199254740993", "a 9223372036854775808", "a -9223372036854775808",
		"a broken:", "a broken:b3BzIDE", "a broken:b3BzIDE:!", "a broken:b3BzIDE=:",
		"a broken:b3BzIDE:G1syShs", // an escape sequence
		"a broken:b3BzIDE:YQpi",    // a line break
		"a broken:4oCuYQ:",         // from right to left
		"a broken:b3BzIDE:" + base64.RawURLEncoding.EncodeToString(make([]byte, 257)),
		strings.Repeat("a 7 ", maxMessage/4) + "a 7",
	} {
		if got, err := ParseMessage(payload); err == nil || got != nil {
			t.Errorf("%.100q: %v, %v", payload, got, err)
		}
	}
}

// FuzzParseMessage: no message makes the parser panic or return an impossible value.
func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{
		"", "a 7", "a 7 1z 8", "a -250", "a 7 b", "a 0", "a x", "a 9223372036854775808", "a -9223372036854775808", "\xff\x00 1", "a broken:b3BzIDE: b 7",
		"a\u00a07\u20031", strings.Repeat("a 1 1 ", 1000),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		list, err := ParseMessage(payload)
		if err != nil {
			if list != nil || len(err.Error()) > 512 || !isPrintable(err.Error()) {
				t.Errorf("%v, %v", list, err)
			}
			return
		}
		if len(list) == 0 || 2*len(list) != len(strings.Fields(payload)) {
			t.Errorf("%d wakeups", len(list))
		}
		for _, g := range list {
			if !isSerial(g.Serial) || g.Fence < 0 || g.Fence > maxFence || g.RetryIn < 0 || bit(g.Fence > 0)+bit(g.RetryIn > 0)+bit(g.Recalled)+bit(g.Broken != nil) != 1 {
				t.Errorf("%+v", g)
			}
		}
	})
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// FuzzBreakNotice: what a notice says is what was put in, if it may be, and the message has one pair.
func FuzzBreakNotice(f *testing.F) {
	for _, s := range [][2]string{{"", ""}, {"ops 1", "stuck since 12:00\n"}, {"\xff", ":recall 7 "}, {strings.Repeat("é", 128), "x"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, by, reason string) {
		list, err := ParseMessage("1z " + BreakNotice(Breaker{by, reason}))
		if CheckText("", by) != nil || CheckText("", reason) != nil {
			if err == nil {
				t.Errorf("%q, %q: %+v", by, reason, list)
			}
			return
		}
		if err != nil || len(list) != 1 || list[0].Broken == nil || *list[0].Broken != (Breaker{by, reason}) || list[0].Serial != "1z" {
			t.Errorf("%q, %q: %+v, %v", by, reason, list, err)
		}
	})
}
