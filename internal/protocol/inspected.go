package protocol

import (
	"fmt"
	"strings"
)

// This file has the replies of inspect.lua.

// Holder is a lease in the reply of inspect.lua.
type Holder struct {
	Token     string
	Fence     int64
	ExpiresIn int64
	Place     int64
	Converted bool // as in RenewReply
}

// ParseHolders returns the reply of inspect.lua for InspectHolders or InspectTaken: one page, and how many holders there are.
func ParseHolders(v []any) (list []Holder, total int64, err error) {
	const each = 5
	if len(v)%each != 2 {
		return nil, 0, invalid("inspect", "%d elements", len(v))
	}
	total, ok := v[1].(int64)
	if !ok || total < 0 {
		return nil, 0, invalid("inspect", "%v holders", v[1])
	}
	entries := v[2:]
	list = make([]Holder, 0, len(entries)/each)
	for ; len(entries) > 0; entries = entries[each:] {
		token, ok := entries[0].(string)
		fence, ok2 := entries[1].(int64)
		expiresIn, ok3 := entries[2].(int64)
		place, ok4 := entries[3].(int64)
		converted, ok5 := entries[4].(int64)
		if !ok || !ok2 || !ok3 || !ok4 || !ok5 || converted&^1 != 0 {
			return nil, 0, invalid("inspect", "%s", Excerpt(fmt.Sprint(entries[:each])))
		}
		list = append(list, Holder{token, fence, expiresIn, place, converted == 1})
	}
	return list, total, nil
}

// Waiter is a queue entry in the reply of inspect.lua.
type Waiter struct {
	Token         string
	Place         int64
	WaitTime      int64
	HeartbeatLeft int64 // until its heartbeat expires; not positive if it has
}

// ParseWaiters returns the reply of inspect.lua for InspectWaiters, with the waiters after that place.
func ParseWaiters(v []any, after int64) ([]Waiter, error) {
	const each = 4
	if len(v)%each != 1 {
		return nil, invalid("inspect", "%d elements", len(v))
	}
	entries := v[1:] // without their number
	list := make([]Waiter, 0, len(entries)/each)
	for ; len(entries) > 0; entries = entries[each:] {
		token, ok := entries[0].(string)
		place, ok2 := entries[1].(int64)
		waited, ok3 := entries[2].(int64)
		left, ok4 := entries[3].(int64)
		if !ok || !ok2 || !ok3 || !ok4 || place <= after {
			return nil, invalid("inspect", "%s", Excerpt(fmt.Sprint(entries[:each])))
		}
		after = place
		list = append(list, Waiter{token, place, waited, left})
	}
	return list, nil
}

// ParseBreaker returns the reply of inspect.lua for InspectBreak: who has broken the lease or request of the token, or nil if that is not known.
func ParseBreaker(v []any) (*Breaker, error) {
	if len(v) == 0 {
		return nil, invalid("inspect", "no elements")
	}
	for _, entry := range v[1:] { // without their number
		text, _ := entry.(string)
		if notice, found := strings.CutPrefix(text, broken); found {
			return parseNotice(notice)
		}
	}
	return nil, nil
}
