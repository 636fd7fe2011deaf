package protocol

import (
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/lua"
)

// The functions in this file and in acquirereply.go are the only place where a script's reply is read. Each returns the reply of the
// script that it is named for, in the order of that script's header, or an error that wraps ErrReply. Replies are checked completely
// before they are used: the server may be broken or not Redis at all, and must not be able to cause a lease that was never granted.
// Durations and the server's clock are in ms.

// ErrReply is wrapped by the error about a reply that none of our scripts returns. The server is broken or not Redis.
var ErrReply = errors.New("unexpected reply from the server")

// reply is what most scripts return: integers, of which the first is a code of package lua.
type reply []int64

// invalid returns an ErrReply that names the script.
func invalid(script, format string, args ...any) error {
	return fmt.Errorf("%w: %s, from %s", ErrReply, fmt.Sprintf(format, args...), script)
}

// code returns the first number.
func (n reply) code(script string) (int64, error) {
	if len(n) == 0 {
		return 0, invalid(script, "an empty array")
	}
	return n[0], nil
}

// checkLength returns an error if the reply does not have the length that its code requires.
func (n reply) checkLength(script string, length int) error {
	if len(n) != length {
		return invalid(script, "%d numbers after code %d, want %d", len(n)-1, n[0], length-1)
	}
	return nil
}

// minFenceAlone is less than any fence that is a reply of its own; see LEAST_FENCE in lua/lib/constants.lua.
const minFenceAlone = 1e12

// maxFence is the largest fence: up to it, Lua represents all integers exactly.
const maxFence = 1 << 53

// ReleaseReply is the reply of release.lua, of complete.lua, or of a fast script that releases or hands on.
type ReleaseReply struct {
	Code       int64 // lua.Granted, Left, Refused or Held
	More       bool  // as in AcquireReply
	QueueEmpty bool  // nobody waits
	Undecided  bool  // the fast script has not decided anything, and release.lua has to
}

// ParseReleaseReply returns the reply of release.lua or complete.lua.
func ParseReleaseReply(n []int64) (ReleaseReply, error) {
	const script = "release"
	code, err := reply(n).code(script)
	if err == nil {
		err = reply(n).checkLength(script, 1)
	}
	if err != nil {
		return ReleaseReply{}, err
	}
	r := ReleaseReply{Code: code % lua.ReleaseMore, More: code&lua.ReleaseMore != 0, QueueEmpty: code&lua.ReleaseQueueEmpty != 0}
	switch r.Code {
	case lua.Granted, lua.Left, lua.Refused, lua.Held:
		if code >= 0 && code < 2*lua.ReleaseQueueEmpty {
			return r, nil
		}
	}
	return ReleaseReply{}, invalid(script, "code %d", code)
}

// ParseFastReleaseReply returns the reply of a fast script that releases or hands on.
func ParseFastReleaseReply(n []int64) (ReleaseReply, error) {
	r, err := ParseReleaseReply(n)
	switch {
	case err != nil:
		return ReleaseReply{}, err
	case n[0] == lua.Undecided:
		return ReleaseReply{Undecided: true}, nil
	case r.Code != lua.Granted && (r.Code != lua.Refused || !r.QueueEmpty) || r.More:
		return ReleaseReply{}, invalid("a fast release", "code %d", n[0])
	}
	return r, nil
}

// BreakReply is the reply of break.lua.
type BreakReply struct {
	Code     int64 // Granted: it had a lease; Left: it had a place; Refused: it had nothing
	Notified bool  // its keeper has received the message
	More     bool  // there is more to admit
}

// ParseBreakReply returns the reply of break.lua.
func ParseBreakReply(n []int64) (BreakReply, error) {
	const script = "break"
	code, err := reply(n).code(script)
	if err != nil {
		return BreakReply{}, err
	}
	if err := reply(n).checkLength(script, 3); err != nil {
		return BreakReply{}, err
	}
	if code != lua.Granted && code != lua.Left && code != lua.Refused || n[1]&^1 != 0 || n[2]&^1 != 0 {
		return BreakReply{}, invalid(script, "%v", n)
	}
	return BreakReply{code, n[1] == 1, n[2] == 1}, nil
}

// RenewReply is the reply of renew.lua, of shorten.lua, or of a fast script that renews.
type RenewReply struct {
	Held     bool  // the token has the lease
	Fence    int64 // of the lease; 0 by a fast script
	Recalled bool  // of a lease that the process retains: somebody waits whom it excludes
}

// ParseFastRenewReply returns the reply of a fast script that renews.
func ParseFastRenewReply(n []int64) (RenewReply, error) {
	const script = "a fast renewal"
	code, err := reply(n).code(script)
	if err == nil {
		err = reply(n).checkLength(script, 1)
	}
	switch {
	case err != nil:
		return RenewReply{}, err
	case code == lua.Granted || code == lua.Recalled:
		return RenewReply{Held: true, Recalled: code == lua.Recalled}, nil
	case code == lua.Refused:
		return RenewReply{}, nil
	}
	return RenewReply{}, invalid(script, "code %d", code)
}

// ParseRenewReply returns the reply of renew.lua or shorten.lua.
func ParseRenewReply(n []int64) (RenewReply, error) {
	const script = "renew"
	code, err := reply(n).code(script)
	if err != nil {
		return RenewReply{}, err
	}
	switch code {
	case lua.Granted:
		if err := reply(n).checkLength(script, 2); err != nil {
			return RenewReply{}, err
		}
		if n[1] <= 0 {
			return RenewReply{}, invalid(script, "fence %d", n[1])
		}
		return RenewReply{Held: true, Fence: n[1]}, nil
	case lua.Refused:
		return RenewReply{}, reply(n).checkLength(script, 1)
	}
	return RenewReply{}, invalid(script, "code %d", code)
}

// ParseRetainedRenewReply is ParseRenewReply for a renewal of a lease that the process retains.
func ParseRetainedRenewReply(n []int64) (RenewReply, error) {
	if len(n) <= 1 {
		return ParseRenewReply(n)
	}
	if err := reply(n).checkLength("renew", 3); err != nil {
		return RenewReply{}, err
	}
	r, err := ParseRenewReply(n[:2])
	if err != nil {
		return RenewReply{}, err
	}
	if n[2] != 0 && n[2] != 1 {
		return RenewReply{}, invalid("renew", "recalled is %d", n[2])
	}
	r.Recalled = n[2] == 1
	return r, nil
}

// HeartbeatReply is the reply of heartbeat.lua.
type HeartbeatReply struct {
	Now     int64 // the server's clock
	Seq     int64 // the last fence that was drawn
	RetryIn int64 // when to send the next heartbeat; 0: after the interval
	More    bool  // as in AcquireReply
	First   int   // index of the waiter that is ahead of the others in the command; -1: none waits
	Rank    int   // how many are ahead of it
	Changes []WaiterChange
}

// WaiterChange is what a heartbeat replies of a waiter that does not simply wait.
type WaiterChange struct {
	Index     int   // of the waiter in the command
	Code      int64 // lua.Granted, Held, Waiting, Unknown, Tombstoned, Refused, Conflict or AboveLimit
	Fence     int64 // if granted or held: of the lease
	ExpiresIn int64 // if granted or held: until the lease ends
	Place     int64 // if waiting: of the queue's entry
}

// ParseHeartbeatReply returns the reply of heartbeat.lua to a command with that many waiters.
func ParseHeartbeatReply(n []int64, waiters int) (HeartbeatReply, error) {
	const script, head, each = "heartbeat", 7, 4
	code, err := reply(n).code(script)
	if err != nil {
		return HeartbeatReply{}, err
	}
	if code != lua.Waiting || len(n) < head || (len(n)-head)%each != 0 {
		return HeartbeatReply{}, invalid(script, "%d numbers, code %d", len(n), code)
	}
	if n[5] < 0 || n[5] > int64(waiters) {
		return HeartbeatReply{}, invalid(script, "waiter %d of %d is the first", n[5], waiters)
	}
	h := HeartbeatReply{Now: n[1], Seq: n[2], RetryIn: n[3], More: n[4] != 0, First: int(n[5]) - 1, Rank: int(n[6])}
	for rest := n[head:]; len(rest) > 0; rest = rest[each:] {
		if rest[0] < 1 || rest[0] > int64(waiters) {
			return HeartbeatReply{}, invalid(script, "waiter %d of %d", rest[0], waiters)
		}
		change := WaiterChange{Index: int(rest[0]) - 1, Code: rest[1]}
		switch change.Code {
		case lua.Granted, lua.Held:
			if rest[2] <= 0 || h.Now < 0 {
				return HeartbeatReply{}, invalid(script, "fence %d at %d", rest[2], h.Now)
			}
			change.Fence, change.ExpiresIn = rest[2], max(rest[3], 0)-h.Now
		case lua.Waiting:
			change.Place = rest[2]
		case lua.Unknown, lua.Tombstoned, lua.Refused, lua.Conflict, lua.AboveLimit:
		default:
			return HeartbeatReply{}, invalid(script, "code %d of a waiter", change.Code)
		}
		h.Changes = append(h.Changes, change)
	}
	return h, nil
}

// LimitReply is the reply of limit.lua. A limit of 0 is none.
type LimitReply struct {
	Held, AtOnce  int  // permits that are held, and the most at once
	Spent, Window int  // permits that were taken in the window, and the most in it
	More          bool // the script stopped at its bound before it had swept and admitted all
	LimitsChanged bool // the call has changed the limits in force
	Paused        bool // no permits are granted at present that return by the clock
}

// ParseLimitReply returns the reply of limit.lua.
func ParseLimitReply(n []int64) (LimitReply, error) {
	const script = "limit"
	code, err := reply(n).code(script)
	switch {
	case err != nil:
		return LimitReply{}, err
	case code != lua.Granted:
		return LimitReply{}, invalid(script, "code %d", code)
	}
	if err := reply(n).checkLength(script, 7); err != nil {
		return LimitReply{}, err
	}
	for _, x := range n {
		if x < 0 {
			return LimitReply{}, invalid(script, "%d permits", x)
		}
	}
	return LimitReply{
		Held: int(n[1]), AtOnce: int(n[2]), Spent: int(n[3]), Window: int(n[4]),
		More: n[5]&lua.NoteMore != 0, LimitsChanged: n[5]&lua.NoteLimits != 0,
		Paused: n[6] > 0,
	}, nil
}

// RaiseFenceReply is the reply of raise_fence.lua.
type RaiseFenceReply struct {
	Code   int64 // lua.Granted; Refused: the token has no lease; Unknown: the server has not run for long enough
	Fence  int64 // if granted: the last fence of the server, at least the one that was asked for
	Uptime int64 // if unknown: for how long the server has run
}

// ParseRaiseFenceReply returns the reply of raise_fence.lua to a command with that fence.
func ParseRaiseFenceReply(n []int64, fence int64) (RaiseFenceReply, error) {
	const script = "raise_fence"
	code, err := reply(n).code(script)
	if err != nil {
		return RaiseFenceReply{}, err
	}
	length := 2
	switch code {
	case lua.Granted, lua.Unknown:
	case lua.Refused:
		length = 1
	default:
		return RaiseFenceReply{}, invalid(script, "code %d", code)
	}
	if err := reply(n).checkLength(script, length); err != nil {
		return RaiseFenceReply{}, err
	}
	switch {
	case code == lua.Unknown:
		return RaiseFenceReply{Code: code, Uptime: n[1]}, nil
	case code == lua.Refused:
		return RaiseFenceReply{Code: code}, nil
	case n[1] < fence:
		return RaiseFenceReply{}, invalid(script, "fence %d after %d", n[1], fence)
	}
	return RaiseFenceReply{Code: code, Fence: n[1]}, nil
}

// ParseIdentityReply returns the reply of identity.lua: the run_id of the server as four numbers, all 0 if it does not report one.
func ParseIdentityReply(n []int64) (runID [4]int64, err error) {
	const script = "identity"
	code, err := reply(n).code(script)
	switch {
	case err != nil:
		return runID, err
	case code == lua.Unknown:
		return runID, reply(n).checkLength(script, 1)
	case code != lua.Granted:
		return runID, invalid(script, "code %d", code)
	}
	if err := reply(n).checkLength(script, 1+len(runID)); err != nil {
		return runID, err
	}
	return [4]int64(n[1:]), nil
}
