package protocol

import (
	"crypto/rand"
	"strings"
	"sync"
)

// SerialLength is the length of the serial of a request: 47 random bits. With it, the token of a request with a common ttl is not longer
// than the 44 bytes that the server keeps in one piece of memory.
const SerialLength = 8

// maxSerial is the length of the longest serial that a message may have. Earlier versions counted in base 36.
const maxSerial = 13

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Serials draws the serials of a keeper's requests from a cryptographic source. Whoever can guess a serial can forge a message about
// the request. The zero value is ready, and is safe for concurrent use.
type Serials struct {
	mu     sync.Mutex
	unused int // of random, from its end
	random [512]byte
}

// Next returns a new serial, of letters and digits.
func (s *Serials) Next() (serial [SerialLength]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := 0; n < SerialLength; {
		if s.unused == 0 {
			rand.Read(s.random[:]) // never fails
			s.unused = len(s.random)
		}
		s.unused--
		if x := int(s.random[s.unused] & 63); x < len(base62) {
			serial[n] = base62[x]
			n++
		}
	}
	return serial
}

// isSerial reports whether a text can be a request's serial.
func isSerial(text string) bool {
	return text != "" && len(text) <= maxSerial && strings.Trim(text, base62) == ""
}
