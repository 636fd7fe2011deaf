package protocol

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// Wakeup is the part of a message that is for one request: it was granted the lock, or should ask again soon, or it, or the
// lease that it led to, was broken. A message does not say when the grant was made or for how long: the waiter derives that
// from its last heartbeat.
type Wakeup struct {
	Serial  string
	Fence   int64    // of the grant; 0: there is none
	RetryIn int64    // ms after which to ask again, if there is no grant
	Broken  *Breaker // who has ended the lease or the request; nil: nobody has
}

// Breaker is who has ended a lease or a request of another process, and why.
type Breaker struct{ By, Reason string }

// broken begins a notice, which a message has in place of the number if a lease or a request was broken. The two parts of Breaker follow, encoded
// so that the notice has no spaces.
const broken = "broken:"

// BreakNotice returns the notice of a lease or a request that was broken, which follows its serial in a message.
func BreakNotice(b Breaker) string {
	e := base64.RawURLEncoding
	return broken + e.EncodeToString([]byte(b.By)) + ":" + e.EncodeToString([]byte(b.Reason))
}

// parseNotice parses a notice of BreakNotice without its beginning, broken.
func parseNotice(text string) (*Breaker, error) {
	by, reason, ok := strings.Cut(text, ":")
	e := base64.RawURLEncoding.Strict()
	b, err := e.DecodeString(by)
	r, err2 := e.DecodeString(reason)
	if !ok || err != nil || err2 != nil {
		return nil, fmt.Errorf("no notice of a break: %s", Excerpt(text))
	}
	if err := cmp.Or(CheckText("By", string(b)), CheckText("Reason", string(r))); err != nil {
		return nil, fmt.Errorf("no notice of a break: %w", err)
	}
	return &Breaker{string(b), string(r)}, nil
}

// maxMessage bounds the length of a message. A script grants about a thousand leases at once, and names each by a serial and a fence, which
// together have at most 31 bytes.
const maxMessage = 64 << 10

// ParseMessage takes apart a message that a script published to a keeper: pairs of a serial and a number, which is a fence or,
// if negative, the ms after which to ask again; or of a serial and a notice that it was broken. Whoever may publish can send
// any text, so the errors are short whatever it is.
func ParseMessage(payload string) ([]Wakeup, error) {
	if len(payload) > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes, the maximum is %d", len(payload), maxMessage)
	}
	field := strings.Split(payload, " ")
	if len(field)%2 != 0 {
		return nil, fmt.Errorf("a message of %d fields", len(field))
	}
	list := make([]Wakeup, 0, len(field)/2)
	for rest := field; len(rest) > 0; rest = rest[2:] {
		x, err := parseWakeup(rest[0], rest[1])
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

func parseWakeup(serial, what string) (Wakeup, error) {
	if !isSerial(serial) {
		return Wakeup{}, fmt.Errorf("no serial of a request: %s", Excerpt(serial))
	}
	if notice, found := strings.CutPrefix(what, broken); found {
		b, err := parseNotice(notice)
		return Wakeup{Serial: serial, Broken: b}, err
	}
	n, err := strconv.ParseInt(what, 10, 64)
	switch {
	case err != nil:
		return Wakeup{}, fmt.Errorf("no number: %s", Excerpt(what))
	case n > 0 && n <= maxFence:
		return Wakeup{Serial: serial, Fence: n}, nil
	case n < 0 && n >= -maxFence:
		return Wakeup{Serial: serial, RetryIn: -n}, nil
	}
	return Wakeup{}, fmt.Errorf("neither a fence nor a time: %d", n)
}
