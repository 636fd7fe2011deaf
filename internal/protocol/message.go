package protocol

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Wakeup is the part of a message that is for one request: it was granted the lock, or should ask again soon, or the lease that
// it led to is recalled. A message does not say when the grant was made or for how long: the waiter derives that from its last
// heartbeat.
type Wakeup struct {
	Serial   string
	Fence    int64    // of the grant; 0: there is none
	RetryIn  int64    // ms after which to ask again, if there is no grant
	Recalled bool     // the process is to give back the lease that it retains
	Broken   *Breaker // who has ended the lease or the request; nil: nobody has
}

// Breaker is who has ended a lease or a request of another process, and why.
type Breaker struct{ By, Reason string }

// broken begins what takes the place of the number in a message about a lease or a request that was broken. The two parts of Breaker
// follow, encoded, so that the message has no other spaces.
const broken = "broken:"

// BreakNotice returns what a message says of a lease or a request that was broken, after its serial.
func BreakNotice(b Breaker) string {
	e := base64.RawURLEncoding
	return broken + e.EncodeToString([]byte(b.By)) + ":" + e.EncodeToString([]byte(b.Reason))
}

// parseNotice is the inverse of BreakNotice, without what a notice begins with.
func parseNotice(text string) (*Breaker, error) {
	by, reason, ok := strings.Cut(text, ":")
	e := base64.RawURLEncoding.Strict()
	b, err := e.DecodeString(by)
	r, err2 := e.DecodeString(reason)
	if !ok || err != nil || err2 != nil {
		return nil, fmt.Errorf("no notice of a break: %q", text)
	}
	return &Breaker{string(b), string(r)}, nil
}

// recall takes the place of the number in a recall.
const recall = "recall"

// ParseMessage takes apart a message that a script published to a keeper: pairs of a serial and a number, which is a fence
// or, if negative, the ms after which to ask again; or of a serial and the word recall; or of a serial and a notice that it was
// broken.
func ParseMessage(payload string) ([]Wakeup, error) {
	field := strings.Fields(payload)
	if len(field) == 0 || len(field)%2 != 0 {
		return nil, fmt.Errorf("a message of %d fields", len(field))
	}
	list := make([]Wakeup, 0, len(field)/2)
	for rest := field; len(rest) > 0; rest = rest[2:] {
		if rest[1] == recall {
			list = append(list, Wakeup{Serial: rest[0], Recalled: true})
			continue
		}
		if notice, found := strings.CutPrefix(rest[1], broken); found {
			b, err := parseNotice(notice)
			if err != nil {
				return nil, err
			}
			list = append(list, Wakeup{Serial: rest[0], Broken: b})
			continue
		}
		n, err := strconv.ParseInt(rest[1], 10, 64)
		switch {
		case err != nil:
			return nil, fmt.Errorf("no number: %w", err)
		case n > 0:
			list = append(list, Wakeup{Serial: rest[0], Fence: n})
		case n < 0 && n > math.MinInt64:
			list = append(list, Wakeup{Serial: rest[0], RetryIn: -n})
		default:
			return nil, fmt.Errorf("neither a fence nor a time: %d", n)
		}
	}
	return list, nil
}
