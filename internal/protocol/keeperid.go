package protocol

import (
	"math/big"
	"strings"

	"github.com/google/uuid"
)

// keeperIDLength is the length of a keeper's id: that of 128 bits in base 62. The server keeps the token of a request with a common ttl in
// one piece of memory if the id is not longer, and each script copies and hashes it several times.
const keeperIDLength = 22

// NewKeeperID returns the id of a new keeper: a random UUID in base 62, of letters and digits.
func NewKeeperID() string {
	id := uuid.New()
	text := new(big.Int).SetBytes(id[:]).Text(62)
	return strings.Repeat("0", keeperIDLength-len(text)) + text
}

// IsKeeperID reports whether a text can be a keeper's id.
func IsKeeperID(text string) bool {
	if len(text) != keeperIDLength || strings.ContainsAny(text, "+-_") {
		return false
	}
	n, ok := new(big.Int).SetString(text, 62)
	if !ok || n.BitLen() > 128 {
		return false
	}
	var id uuid.UUID
	n.FillBytes(id[:])
	return id.Version() == 4 && id.Variant() == uuid.RFC4122
}
