package inspector

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper"
)

// text is a name or a message in a form that can be shown: what cannot be printed, or would change how the rest is shown, is
// replaced by Go's escape sequence for it.
type text []segment

type segment struct {
	S       string
	Escaped bool // it stands for something that cannot be printed
}

// visible returns all of s.
func visible(s string) text {
	var t text
	add := func(s string, escaped bool) {
		if n := len(t); n > 0 && t[n-1].Escaped == escaped {
			t[n-1].S += s
			return
		}
		t = append(t, segment{s, escaped})
	}
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		part := s[i : i+size]
		atEdge := i == 0 || i+size == len(s) || s[i-1] == ' '
		switch {
		case r == utf8.RuneError && size == 1:
			add(fmt.Sprintf(`\x%02x`, part[0]), true)
		case r == ' ' && atEdge: // would not be seen
			add(`\x20`, true)
		case !unicode.IsPrint(r):
			add(strings.Trim(strconv.QuoteRuneToASCII(r), "'"), true)
		default:
			add(part, false)
		}
		i += size
	}
	return t
}

// shortened returns the beginning and the end of s if it is long.
func shortened(s string) text {
	const most, head, tail = 72, 44, 24
	runes := 0
	var starts []int // of each character; those that are not UTF-8 count as one per byte
	for i := range s {
		starts = append(starts, i)
		runes++
	}
	if runes <= most {
		return visible(s)
	}
	t := append(visible(s[:starts[head]]), segment{"…", true})
	return append(t, visible(s[starts[runes-tail]:])...)
}

// String returns the text without marks.
func (t text) String() string {
	var b strings.Builder
	for _, s := range t {
		b.WriteString(s.S)
	}
	return b.String()
}

// message is the text of an error.
func message(err error) text { return visible(strings.ToValidUTF8(err.Error(), "\uFFFD")) }

// duration returns d with at most two units, without a fraction.
func duration(d time.Duration) string {
	s := int64(d / time.Second)
	switch {
	case d < time.Second:
		return "< 1 s"
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %02d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %02d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %02d h", s/86400, s/3600%24)
}

// exactly returns d in its largest unit, such as an option's value.
func exactly(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return d.String()
}

// expiry returns a Holder.ExpiresIn or Entry.ExpiresIn.
func expiry(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return duration(d)
}

// instant returns a time of the server's clock.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// number returns n with a separator of thousands.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// count returns a number with a noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}

// keeperText is the short form of a keeper's id.
func keeperText(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}

// reference identifies a lease, a request or a lock in pages and URLs without showing its token.
func reference(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:10])
}

func holderRef(h lockkeeper.Holder) string { return reference("holder", h.Token) }
func waiterRef(w lockkeeper.Waiter) string { return reference("waiter", w.Token) }

var functions = template.FuncMap{"number": number, "count": count, "visible": visible}
