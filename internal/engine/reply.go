package engine

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Replies are checked completely before they are used. The server may be broken or not Redis at all, and must not be able to
// cause a lease that was never granted.

// reply is the reply of a script: integers, of which the first is a code.
type reply []int64

func parseReply(call *transport.Call) (reply, error) {
	if call.Err != nil {
		return nil, unavailable(call.Err)
	}
	if len(call.Reply) == 0 {
		return nil, fmt.Errorf("%w: an empty array", transport.ErrReply)
	}
	return call.Reply, nil
}

// checkLength returns an error if the reply does not have the length that its code requires.
func (n reply) checkLength(length int) error {
	if len(n) != length {
		return fmt.Errorf("%w: %d numbers after code %d, want %d", transport.ErrReply, len(n)-1, n[0], length-1)
	}
	return nil
}

// acquireReply is the reply of acquire.lua or allow.lua.
type acquireReply struct {
	code                int64
	fence, now, until   int64 // granted
	retryAfter          int64 // refused: ms until it may be granted, if known
	seq, place, retryIn int64 // waiting
	rank                int
	quota               Quota // allow.lua: granted or refused
	more                bool  // more waiters may be admitted; see moreToAdmit
	limitsChanged       bool  // the request has changed the limits in force
}

// The bits of the last number of the replies of acquire.lua, limit.lua and release.lua.
const (
	moreToAdmit   = 1 // the script reached the limit of one run before it had admitted all it could
	limitsChanged = 2 // acquire and limit
	queueEmpty    = 2 // release
)

func parseAcquire(call *transport.Call) (acquireReply, error) {
	n, err := parseReply(call)
	if err != nil {
		return acquireReply{}, err
	}
	a := acquireReply{code: n[0]}
	switch a.code {
	case lua.Granted:
		if err := n.checkLength(5); err != nil {
			return acquireReply{}, err
		}
		a.fence, a.now, a.until = n[1], n[2], n[3]
		a.more, a.limitsChanged = n[4]&moreToAdmit != 0, n[4]&limitsChanged != 0
		if a.fence <= 0 || a.now < 0 || a.until <= a.now {
			return acquireReply{}, fmt.Errorf("%w: fence %d, lease of %d ms", transport.ErrReply, a.fence, a.until-a.now)
		}
	case lua.Refused:
		if err := n.checkLength(4); err != nil {
			return acquireReply{}, err
		}
		a.now, a.retryAfter = n[1], n[2]
		a.more, a.limitsChanged = n[3]&moreToAdmit != 0, n[3]&limitsChanged != 0
	case lua.Waiting:
		if err := n.checkLength(7); err != nil {
			return acquireReply{}, err
		}
		a.now, a.seq, a.place, a.rank, a.retryIn = n[1], n[2], n[3], int(n[4]), n[5]
		a.more, a.limitsChanged = n[6]&moreToAdmit != 0, n[6]&limitsChanged != 0
	case lua.Tombstoned, lua.Conflict, lua.AboveLimit:
	default:
		return acquireReply{}, fmt.Errorf("%w: code %d from acquire", transport.ErrReply, a.code)
	}
	return a, nil
}

// parse parses the reply to the request: that of acquire.lua, or that of allow.lua, which has three more numbers.
func (w *request) parse(call *transport.Call) (acquireReply, error) {
	if w.quota == nil || call.Err != nil || len(call.Reply) < 4 || call.Reply[0] != lua.Granted && call.Reply[0] != lua.Refused {
		return parseAcquire(call)
	}
	short := *call
	short.Reply = call.Reply[:len(call.Reply)-3]
	a, err := parseAcquire(&short)
	if err != nil {
		return acquireReply{}, err
	}
	limit, remaining, reset := call.Reply[len(short.Reply)], call.Reply[len(short.Reply)+1], call.Reply[len(short.Reply)+2]
	if limit <= 0 || remaining < 0 || remaining > limit || reset < 0 {
		return acquireReply{}, fmt.Errorf("%w: %d permits remain of %d, for %d ms", transport.ErrReply, remaining, limit, reset)
	}
	a.quota = Quota{Limit: int(limit), Remaining: int(remaining), ResetAfter: duration(reset)}
	if a.code == lua.Refused {
		a.quota.RetryAfter = max(duration(a.retryAfter), 0)
	}
	return a, nil
}

// heartbeatReply is the reply of heartbeat.lua.
type heartbeatReply struct {
	now, seq, retryIn int64
	more              bool
	first, rank       int // the index of the first token that waits, or -1, and its position in the queue
	changes           []tokenChange
}

// tokenChange is the state of one token in the reply of heartbeat.lua: its index, a code, and two numbers that depend on the
// code.
type tokenChange struct {
	index int
	code  int64
	a, b  int64
}

func parseHeartbeat(call *transport.Call, tokens int) (heartbeatReply, error) {
	n, err := parseReply(call)
	if err != nil {
		return heartbeatReply{}, err
	}
	if n[0] != lua.Waiting || len(n) < 7 || (len(n)-7)%4 != 0 {
		return heartbeatReply{}, fmt.Errorf("%w: %d numbers, code %d, from heartbeat", transport.ErrReply, len(n), n[0])
	}
	if n[5] < 0 || n[5] > int64(tokens) {
		return heartbeatReply{}, fmt.Errorf("%w: token %d of %d is the first, from heartbeat", transport.ErrReply, n[5], tokens)
	}
	p := heartbeatReply{now: n[1], seq: n[2], retryIn: n[3], more: n[4] != 0, first: int(n[5]) - 1, rank: int(n[6])}
	for rest := n[7:]; len(rest) > 0; rest = rest[4:] {
		if rest[0] < 1 || rest[0] > int64(tokens) {
			return heartbeatReply{}, fmt.Errorf("%w: token %d of %d, from heartbeat", transport.ErrReply, rest[0], tokens)
		}
		x := tokenChange{int(rest[0]) - 1, rest[1], rest[2], rest[3]}
		switch x.code {
		case lua.Granted, lua.Held:
			if x.a <= 0 || p.now < 0 {
				return heartbeatReply{}, fmt.Errorf("%w: fence %d at %d, from heartbeat", transport.ErrReply, x.a, p.now)
			}
		case lua.Waiting, lua.Unknown, lua.Tombstoned, lua.Refused, lua.Conflict, lua.AboveLimit:
		default:
			return heartbeatReply{}, fmt.Errorf("%w: code %d of a token, from heartbeat", transport.ErrReply, x.code)
		}
		p.changes = append(p.changes, x)
	}
	return p, nil
}
