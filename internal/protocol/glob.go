package protocol

import "strings"

// MatchGlob reports whether a text matches a pattern of the command KEYS: * any text, ? one byte, [abc], [a-z] and [^a] one byte of
// a set, \x the byte x. It takes time proportional to the product of their lengths at most.
func MatchGlob(pattern, text string) bool {
	p, t := 0, 0
	star, resume := -1, 0 // the last *, and where in the text the rest of the pattern is tried next
	for t < len(text) {
		if p < len(pattern) && pattern[p] == '*' {
			star, resume = p, t
			p++
			continue
		}
		if p < len(pattern) {
			if next, ok := matchByte(pattern, p, text[t]); ok {
				p, t = next, t+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		resume++
		p, t = star+1, resume
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchByte reports whether the element of the pattern that begins at p matches a byte, and where the next element begins.
func matchByte(pattern string, p int, b byte) (next int, ok bool) {
	switch c := pattern[p]; {
	case c == '?':
		return p + 1, true
	case c == '[':
		return matchSet(pattern, p+1, b)
	case c == '\\' && p+1 < len(pattern):
		return p + 2, pattern[p+1] == b
	default:
		return p + 1, c == b
	}
}

// matchSet is matchByte for a set whose elements begin at p. A set that is not closed ends with the pattern.
func matchSet(pattern string, p int, b byte) (next int, ok bool) {
	negated := p < len(pattern) && pattern[p] == '^'
	if negated {
		p++
	}
	for p < len(pattern) && pattern[p] != ']' {
		if pattern[p] == '\\' && p+1 < len(pattern) {
			p++
		}
		low := pattern[p]
		high := low
		p++
		if p+1 < len(pattern) && pattern[p] == '-' {
			high = pattern[p+1]
			p += 2
		}
		ok = ok || min(low, high) <= b && b <= max(low, high)
	}
	return min(p+1, len(pattern)), ok != negated
}

// QuoteGlob returns a pattern that matches this text alone.
func QuoteGlob(text string) string { return quotes.Replace(text) }

var quotes = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`, `^`, `\^`, `-`, `\-`)
