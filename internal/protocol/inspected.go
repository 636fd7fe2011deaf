package protocol

// This file has the replies of inspect.lua.

// Holder is a lease in the reply of inspect.lua.
type Holder struct {
	Token     string
	Fence     int64
	ExpiresIn int64
}

// ParseHolders returns the reply of inspect.lua for InspectHolders.
func ParseHolders(v []any) ([]Holder, error) {
	const each = 3
	entries, err := inspected(v, each)
	if err != nil {
		return nil, err
	}
	list := make([]Holder, 0, len(entries)/each)
	for ; len(entries) > 0; entries = entries[each:] {
		token, ok := entries[0].(string)
		fence, ok2 := entries[1].(int64)
		expiresIn, ok3 := entries[2].(int64)
		if !ok || !ok2 || !ok3 {
			return nil, invalid("inspect", "%v", entries[:each])
		}
		list = append(list, Holder{token, fence, expiresIn})
	}
	return list, nil
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
	entries, err := inspected(v, each)
	if err != nil {
		return nil, err
	}
	list := make([]Waiter, 0, len(entries)/each)
	for ; len(entries) > 0; entries = entries[each:] {
		token, ok := entries[0].(string)
		place, ok2 := entries[1].(int64)
		waited, ok3 := entries[2].(int64)
		left, ok4 := entries[3].(int64)
		if !ok || !ok2 || !ok3 || !ok4 || place <= after {
			return nil, invalid("inspect", "%v", entries[:each])
		}
		after = place
		list = append(list, Waiter{token, place, waited, left})
	}
	return list, nil
}

// inspected returns the entries of a reply of inspect.lua, without their total number, which precedes them.
func inspected(v []any, each int) ([]any, error) {
	if len(v)%each != 1 {
		return nil, invalid("inspect", "%d elements", len(v))
	}
	return v[1:], nil
}
