package protocol

import (
	"fmt"
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

// Shown returns a text that came from elsewhere for a log: as it is, or an Excerpt if it is longer than tokens are or not printable.
func Shown(text string) string {
	if len(text) > MaxTokenLength || !isPrintable(text) {
		return Excerpt(text)
	}
	return text
}

// maxText is the maximum length of a label, of a reason, and of who gives it, in bytes.
const maxText = 256

// CheckText returns an error if a text cannot be the label of a keeper, the reason of a break, or who gives the reason: if it is long, or has
// characters that cannot be printed. what names the text in the error.
func CheckText(what, text string) error {
	if len(text) > maxText {
		return fmt.Errorf("%s has %d bytes, the maximum is %d", what, len(text), maxText)
	}
	if !isPrintable(text) {
		return fmt.Errorf("%s %s has characters that cannot be printed", what, Excerpt(text))
	}
	return nil
}

// isPrintable reports whether a text is UTF-8 without control characters, line breaks and characters that change its direction.
func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) })
}
