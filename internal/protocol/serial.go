package protocol

import (
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/random"
)

// SerialLength is the length of the serial of a request: 47 random bits. With it, the token of a request with a common ttl is not longer
// than the 44 bytes that the server keeps in one piece of memory.
const SerialLength = 8

// maxSerial is the length of the longest serial that a message may have. Earlier versions counted in base 36.
const maxSerial = 13

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// NewSerial returns the serial of a new request, of letters and digits. Whoever can guess it can forge a message about the request, and two
// requests with the same token would share a lease. So no serial is drawn ahead of its use: a copy of the process would use it as well.
func NewSerial() (serial [SerialLength]byte) {
	n := random.Uint64() // the remainders below are uneven by 1 in 2^16
	for i := range serial {
		serial[i] = base62[n%62]
		n /= 62
	}
	return serial
}

func isSerial(text string) bool {
	return text != "" && len(text) <= maxSerial && strings.Trim(text, base62) == ""
}
