package protocol

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxExcerpt is how many bytes of a text an Excerpt has.
const maxExcerpt = 64

// Excerpt returns the beginning of a text that came from elsewhere, for an error or a log: quoted, so that it has no control
// characters, and short, whatever the text is.
func Excerpt(text string) string {
	if len(text) <= maxExcerpt {
		return strconv.Quote(text)
	}
	end := maxExcerpt
	for end > maxExcerpt-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return strconv.Quote(text[:end]) + "… (" + strconv.Itoa(len(text)) + " bytes)"
}

// isPrintable reports whether a text is UTF-8 without control characters, line breaks and characters that change its direction.
func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) })
}
