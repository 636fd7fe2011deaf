package protocol

import (
	"strconv"
	"strings"
)

// A token begins with the id of its keeper and an address, which scripts take for one text. The id does not change. The address says how messages
// reach the keeper, so that scripts of other processes reach it whatever clients and options these have. The keeper draws another address each
// time that it subscribes: copies of a process have the same id, but different addresses in later requests. Each script copies and hashes a token
// several times, so it is short: the server keeps the token of a request with a common ttl in one piece of memory if id and address together have
// at most 22 bytes.
const (
	keeperIDLength = 12
	addressLength  = SerialLength // without the way
)

// shardedWay is the end of the address of a keeper that messages reach by sharded channels.
const shardedWay = ".s"

// NewKeeperID returns the id of a new keeper, of random letters and digits.
func NewKeeperID() string {
	a, b := NewSerial(), NewSerial()
	return string(append(a[:], b[:]...)[:keeperIDLength])
}

// NewAddress returns a new address of a keeper of that prefix, which subscribes to sharded channels or to others.
func NewAddress(prefix string, sharded bool) string {
	random := NewSerial()
	return string(random[:]) + WayOf(prefix, sharded)
}

// WayOf returns the end of the addresses of all keepers of that prefix; see WAY in lua/lib/constants.lua.
func WayOf(prefix string, sharded bool) string {
	if sharded {
		return shardedWay
	}
	return "." + strconv.Itoa(len(prefix))
}

// cutAddress takes the address off the first part of a token. The address is empty in tokens of other versions.
func cutAddress(text string) (keeper, address string) {
	if strings.IndexByte(text, '.') != keeperIDLength+addressLength {
		return text, ""
	}
	return text[:keeperIDLength], text[keeperIDLength:]
}

// IsKeeperID reports whether a text can be a keeper's id.
func IsKeeperID(text string) bool {
	return len(text) == keeperIDLength && strings.Trim(text, base62) == ""
}
