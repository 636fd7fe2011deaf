package protocol

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// The flags of tokens. The policy of each primitive interprets those of its requests; lua/lib/constants.lua lists them.
const (
	FlagRead       = "r" // rwlock
	FlagWrite      = "w" // rwlock; the number is the longest streak of writers
	FlagUpgrade    = "u" // rwlock: of a lease that reads; the number counts the upgrades that the keeper has begun
	FlagHeld       = "h" // semaphore: permits that are held until the lease ends; the number is their count
	FlagByClock    = "c" // semaphore: permits that return by the clock; the number is their count
	FlagLeastFence = "f" // redlock: the number is the least fence of the lease
	FlagBlock      = "b" // semaphore, after FlagByClock: the process has taken the permits ahead; scripts do not read it
)

// RecordMark precedes the token in the record that complete.lua writes in place of the lease.
const RecordMark = "done:"

// IsRecord reports whether what holds a lock is not the token of a lease but the record of a completed one.
func IsRecord(holder string) bool { return strings.HasPrefix(holder, RecordMark) }

// Token is the identity of a request and of the lease that it is granted, and what it asks for. In text it is
//
//	<keeper><address>:<serial>~<note>:<ttl>.<claim ttl><flags><number>
//
// with the note in base64 and left out with its ~ if it is empty, the times in ms, the flags lower-case letters that the policy of the
// primitive reads, and the number left out if it is 0. For scripts, lua/lib/constants.lua has the same grammar, as one pattern.
type Token struct {
	Keeper   string // id of the keeper
	Serial   string // of the request in the keeper; see NewSerial
	Note     string // of the caller, for people; "" if there is none, or CheckNote does not allow it
	TTL      int64  // ms: of the lease
	ClaimTTL int64  // ms: of a lease granted to a waiter, until it is confirmed
	Flags    string
	Number   int64  // a semaphore's permits, a writer's streak, an upgrade's count, or a least fence
	Address  string // of the keeper when it made the request; see NewAddress
}

// String returns the token as keys and messages have it; ParseToken reads it.
func (t Token) String() string {
	b := make([]byte, 0, 64)
	b = append(append(b, t.Keeper...), t.Address...)
	b = append(b, ':')
	b = append(b, t.Serial...)
	if t.Note != "" {
		b = base64.RawURLEncoding.AppendEncode(append(b, '~'), []byte(t.Note))
	}
	b = append(b, ':')
	b = strconv.AppendInt(b, t.TTL, 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, t.ClaimTTL, 10)
	b = append(b, t.Flags...)
	if t.Number > 0 {
		b = strconv.AppendInt(b, t.Number, 10)
	}
	return string(b)
}

// maxNote is the maximum length of a note, in bytes.
const maxNote = 64

// CheckNote returns an error if a text cannot be the note of a token: if it is long, or has characters that cannot be printed.
func CheckNote(text string) error {
	if len(text) > maxNote {
		return fmt.Errorf("note has %d bytes, the maximum is %d", len(text), maxNote)
	}
	return CheckText("note", text)
}

// MaxTokenLength is a bound of the length of tokens.
const MaxTokenLength = 199

// HeartbeatTimeout returns the heartbeat timeout of the keeper in ms, or 0 if the token does not say it. The claim ttl is as long, unless the ttl
// of the lease is shorter.
func (t Token) HeartbeatTimeout() int64 {
	if t.ClaimTTL < t.TTL || strings.HasPrefix(t.Flags, FlagByClock) {
		return t.ClaimTTL
	}
	return 0
}

// ParseToken takes a token apart. It reports false for the token of another library.
func ParseToken(text string) (t Token, ok bool) {
	if len(text) > MaxTokenLength {
		return Token{}, false
	}
	var terms string
	if t.Keeper, terms, ok = strings.Cut(text, ":"); !ok || t.Keeper == "" || !isPrintable(t.Keeper) {
		return Token{}, false
	}
	t.Keeper, t.Address = cutAddress(t.Keeper)
	if t.Serial, terms, ok = strings.Cut(terms, ":"); !ok || !isPrintable(t.Serial) || t.Serial == "" || t.Serial[0] == '~' {
		return Token{}, false
	}
	if serial, note, found := strings.Cut(t.Serial, "~"); found {
		t.Serial = serial
		if b, err := base64.RawURLEncoding.Strict().DecodeString(note); err == nil && CheckNote(string(b)) == nil {
			t.Note = string(b)
		}
	}
	if t.TTL, terms, ok = number(terms); !ok || !strings.HasPrefix(terms, ".") {
		return Token{}, false
	}
	if t.ClaimTTL, terms, ok = number(terms[1:]); !ok {
		return Token{}, false
	}
	rest := strings.TrimLeft(terms, "abcdefghijklmnopqrstuvwxyz")
	t.Flags, terms = terms[:len(terms)-len(rest)], rest
	if terms != "" {
		if t.Number, terms, ok = number(terms); !ok || terms != "" {
			return Token{}, false
		}
	}
	return t, true
}

// number cuts a decimal number of one digit or more off the front of a text.
func number(text string) (n int64, rest string, ok bool) {
	rest = strings.TrimLeft(text, "0123456789")
	n, err := strconv.ParseInt(text[:len(text)-len(rest)], 10, 64)
	return n, rest, err == nil
}
