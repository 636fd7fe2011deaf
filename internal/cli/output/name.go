// Package output formats locks for people and as JSON. What it returns for people is safe to write to a terminal.
package output

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name returns text that others chose, such as the name or the owner of a lock. It is unchanged if all of it is visible, and
// otherwise quoted as a Go string: a space, a control character, an invisible one, one that changes the direction of the text,
// or an invalid byte. Text that is empty or begins with a quotation mark is quoted too, so that no two texts look the same. Of text that
// is longer than any of ours it returns the beginning.
func Name(s string) string {
	s = bounded(s)
	if s == "" || strings.HasPrefix(s, `"`) || strings.ContainsFunc(s, notVisible) {
		return strconv.Quote(s)
	}
	return s
}

// Text is like Name for text in which spaces are usual, such as a reason.
func Text(s string) string {
	s = bounded(s)
	if strings.HasPrefix(s, `"`) || strings.ContainsFunc(s, func(r rune) bool { return r != ' ' && notVisible(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// maxShown is how many bytes of a text are shown: more than a name, a token or a label has.
const maxShown = 4096

func bounded(s string) string {
	if len(s) <= maxShown {
		return s
	}
	end := maxShown
	for end > maxShown-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// Message returns the text of an error, which may contain what others have written. Line breaks stay, other characters that are not visible
// are escaped, and it is bounded like a Name.
func Message(err error) string {
	s := bounded(err.Error())
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError || r != '\n' && !unicode.IsPrint(r) {
			quoted := strconv.Quote(s[i : i+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

func notVisible(r rune) bool { return r == ' ' || r == unicode.ReplacementChar || !unicode.IsPrint(r) }

// Width returns the number of columns of a terminal that visible text takes.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// wide are the blocks of characters that take two columns (Unicode Standard Annex 11, East Asian Width).
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x1100, 0x115f, 1}, {0x231a, 0x231b, 1}, {0x23e9, 0x23ec, 1}, {0x2e80, 0x303e, 1}, {0x3041, 0x4dbf, 1}, {0x4e00, 0xa4cf, 1},
		{0xa960, 0xa97f, 1}, {0xac00, 0xd7a3, 1}, {0xf900, 0xfaff, 1}, {0xfe30, 0xfe6f, 1}, {0xff00, 0xff60, 1}, {0xffe0, 0xffe6, 1},
	},
	R32: []unicode.Range32{
		{0x16fe0, 0x18aff, 1}, {0x1b000, 0x1b2ff, 1}, {0x1f300, 0x1f64f, 1}, {0x1f680, 0x1f6ff, 1}, {0x1f900, 0x1faff, 1}, {0x20000, 0x3fffd, 1},
	},
}

// Cut shortens visible text to a number of columns. Text that was shortened ends with "…".
func Cut(s string, columns int) string {
	if Width(s) <= columns {
		return s
	}
	if columns < 1 {
		return ""
	}
	n := 0
	for i, r := range s {
		if n += runeWidth(r); n > columns-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// Pad appends spaces to visible text up to a number of columns.
func Pad(s string, columns int) string { return s + strings.Repeat(" ", max(columns-Width(s), 0)) }

// Who returns the owner of a keeper or, if it is not known, the id of the keeper.
func Who(owner, keeper string) string {
	switch {
	case owner != "":
		return Text(owner)
	case keeper != "":
		return "keeper " + Text(keeper)
	}
	return "another library"
}
