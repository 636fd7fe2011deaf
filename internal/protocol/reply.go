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

func invalid(script, format string, args ...any) error {
	return fmt.Errorf("%w: %s, from %s", ErrReply, fmt.Sprintf(format, args...), script)
}

// check returns an error unless the first number is a code in lengths, and the reply has as many numbers as lengths says; 0: any number. If
// lengths is nil, it checks only that the reply is not empty.
func (n reply) check(script string, lengths map[int64]int) error {
	if len(n) == 0 {
		return invalid(script, "an empty array")
	}
	switch length, known := lengths[n[0]]; {
	case lengths == nil:
	case !known:
		return invalid(script, "code %d", n[0])
	case length > 0 && len(n) != length:
		return invalid(script, "%d numbers after code %d, want %d", len(n)-1, n[0], length-1)
	}
	return nil
}

// The codes of the replies of each script, with the length of the reply; 0: any.
var (
	acquired = map[int64]int{lua.Granted: 5, lua.Refused: 4, lua.Waiting: 7, lua.Tombstoned: 0, lua.Conflict: 0, lua.AboveLimit: 0}
	broke    = map[int64]int{lua.Granted: 3, lua.Left: 3, lua.Refused: 3}
	fastRen  = map[int64]int{lua.Granted: 1, lua.Granted + lua.RenewConverted: 1, lua.Refused: 1}
	renewed  = map[int64]int{lua.Granted: 0, lua.Refused: 1}
	lowered  = map[int64]int{lua.Granted: 3, lua.Refused: 1}
	limited  = map[int64]int{lua.Granted: 7}
	raised   = map[int64]int{lua.Granted: 2, lua.Unknown: 2, lua.Refused: 1}
	identity = map[int64]int{lua.Granted: 5, lua.Unknown: 1}
)

// minFenceAlone is less than any fence that is a reply of its own; see LEAST_FENCE in lua/lib/constants.lua.
const minFenceAlone = 9e14

// maxFence is the largest fence: up to it, Lua represents all integers exactly.
const maxFence = 1 << 53

// ReleaseReply is the reply of release.lua, of complete.lua, or of a fast script that releases or hands on.
type ReleaseReply struct {
	Code       int64 // lua.Granted, Left or Refused
	More       bool  // as in AcquireReply
	QueueEmpty bool  // nobody waits
	Undecided  bool  // the fast script has not decided anything, and release.lua has to
}

// ParseReleaseReply returns the reply of release.lua or complete.lua.
func ParseReleaseReply(n []int64) (ReleaseReply, error) {
	const script = "release"
	if err := reply(n).check(script, nil); err != nil {
		return ReleaseReply{}, err
	}
	if len(n) > 1 {
		return ReleaseReply{}, invalid(script, "%d numbers after code %d, want 0", len(n)-1, n[0])
	}
	code := n[0]
	r := ReleaseReply{Code: code % lua.ReleaseMore, More: code&lua.ReleaseMore != 0, QueueEmpty: code&lua.ReleaseQueueEmpty != 0}
	switch r.Code {
	case lua.Granted, lua.Left, lua.Refused:
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
	if err := reply(n).check("break", broke); err != nil {
		return BreakReply{}, err
	}
	if n[1]&^1 != 0 || n[2]&^1 != 0 {
		return BreakReply{}, invalid("break", "%v", n)
	}
	return BreakReply{n[0], n[1] == 1, n[2] == 1}, nil
}

// RenewReply is the reply of renew.lua, or of a fast script that renews.
type RenewReply struct {
	Held      bool  // the token has the lease
	Fence     int64 // of the lease; 0 by a fast script
	Converted bool  // the lease does not do what its token says: it reads, or writes
}

// ParseFastRenewReply returns the reply of a fast script that renews.
func ParseFastRenewReply(n []int64) (RenewReply, error) {
	if err := reply(n).check("a fast renewal", fastRen); err != nil {
		return RenewReply{}, err
	}
	return RenewReply{Held: n[0] != lua.Refused, Converted: n[0] > lua.RenewConverted}, nil
}

// ParseRenewReply returns the reply of renew.lua.
func ParseRenewReply(n []int64) (RenewReply, error) {
	if err := reply(n).check("renew", renewed); err != nil || n[0] == lua.Refused {
		return RenewReply{}, err
	}
	if len(n) < 2 || len(n) > 3 || n[1] <= 0 || len(n) == 3 && n[2] != 1 {
		return RenewReply{}, invalid("renew", "%v", n)
	}
	return RenewReply{Held: true, Fence: n[1], Converted: len(n) == 3}, nil
}

// DowngradeReply is the reply of downgrade.lua.
type DowngradeReply struct {
	Held  bool  // the lease is there, and reads
	Fence int64 // of the lease
	More  bool  // as in AcquireReply
}

// ParseDowngradeReply returns the reply of downgrade.lua.
func ParseDowngradeReply(n []int64) (DowngradeReply, error) {
	if err := reply(n).check("downgrade", lowered); err != nil || n[0] == lua.Refused {
		return DowngradeReply{}, err
	}
	if n[1] <= 0 || n[2]&^lua.NoteMore != 0 {
		return DowngradeReply{}, invalid("downgrade", "%v", n)
	}
	return DowngradeReply{Held: true, Fence: n[1], More: n[2] != 0}, nil
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
	if err := reply(n).check(script, nil); err != nil {
		return HeartbeatReply{}, err
	}
	if n[0] != lua.Waiting || len(n) < head || (len(n)-head)%each != 0 {
		return HeartbeatReply{}, invalid(script, "%d numbers, code %d", len(n), n[0])
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
	if err := reply(n).check(script, limited); err != nil {
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
	if err := reply(n).check("raise_fence", raised); err != nil {
		return RaiseFenceReply{}, err
	}
	switch code := n[0]; {
	case code == lua.Unknown:
		return RaiseFenceReply{Code: code, Uptime: n[1]}, nil
	case code == lua.Refused:
		return RaiseFenceReply{Code: code}, nil
	case n[1] < fence:
		return RaiseFenceReply{}, invalid("raise_fence", "fence %d after %d", n[1], fence)
	}
	return RaiseFenceReply{Code: lua.Granted, Fence: n[1]}, nil
}

// ParseIdentityReply returns the reply of identity.lua: the run_id of the server as four numbers, all 0 if it does not report one.
func ParseIdentityReply(n []int64) (runID [4]int64, err error) {
	if err := reply(n).check("identity", identity); err != nil || n[0] == lua.Unknown {
		return runID, err
	}
	return [4]int64(n[1:]), nil
}
