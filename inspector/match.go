package inspector

import "strings"

// A search is a pattern if it has one of the special characters of Redis's patterns. Otherwise it is a part of a name.
func patternOf(search string) string {
	if search == "" || strings.ContainsAny(search, `*?[\`) {
		return search
	}
	return "*" + search + "*"
}

// match reports whether a name matches a pattern of the command KEYS: * any text, ? any byte, [a-z] and [^a-z] one byte of a
// class, \ the next byte itself. (https://redis.io/docs/latest/commands/keys/)
func match(pattern, name string) bool {
	star, rest := -1, 0 // after the last *, and where the text that it stands for ends
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			p++
			star, rest = p, n
			continue
		}
		if length, ok := matchByte(pattern[p:], name[n]); ok {
			p += length
			n++
			continue
		}
		if star < 0 {
			return false
		}
		rest++ // the last * stands for one more byte
		p, n = star, rest
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// matchByte matches one byte with the first element of a pattern, and returns the length of that.
func matchByte(pattern string, b byte) (length int, ok bool) {
	if pattern == "" {
		return 0, false
	}
	switch pattern[0] {
	case '?':
		return 1, true
	case '[':
		return matchClass(pattern, b)
	case '\\':
		if len(pattern) > 1 {
			return 2, pattern[1] == b
		}
	}
	return 1, pattern[0] == b
}

// matchClass matches a byte with a class. One that is not closed ends with the pattern.
func matchClass(pattern string, b byte) (length int, ok bool) {
	i := 1
	not := i < len(pattern) && pattern[i] == '^'
	if not {
		i++
	}
	found := false
	for i < len(pattern) && pattern[i] != ']' {
		if pattern[i] == '\\' && i+1 < len(pattern) {
			i++
		}
		from, to := pattern[i], pattern[i]
		if i+2 < len(pattern) && pattern[i+1] == '-' {
			to = pattern[i+2]
			i += 2
		}
		found = found || min(from, to) <= b && b <= max(from, to)
		i++
	}
	return min(i+1, len(pattern)), found != not
}
