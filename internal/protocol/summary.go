package protocol

import (
	"math"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/lua"
)

// This file has what is needed to count holders and waiters without a script. The policies in package lua say the same in Lua.

// EndlessLease is the largest score of a lease in a zset; see ENDLESS in lua/lib/constants.lua.
const EndlessLease = "900000000000000"

// Heartbeats is the least score of a heartbeat in the queue. The ms at which it lapses is added to it; see HEARTBEATS in lua/lib/constants.lua.
const Heartbeats = 9_000_000_000_000_000

// BehindWaiters is the upper bound of a range of scores that has the waiters of the queue without their heartbeats.
const BehindWaiters = "(9000000000000000"

// readers is what is added to the tickets of readers in the queue of a read-write lock; see READERS in lua/lib/constants.lua.
const readers = 4_500_000_000_000_000

// UnsetClock is what scripts add to the time of a server before that time, in s; see UNSET_CLOCK in lua/lib/constants.lua.
const UnsetClock = 900000001

// LastClock is the time from which on scripts refuse to work, in s; see LAST_CLOCK in lua/lib/constants.lua.
const LastClock = 3590000000

// ScriptTime converts a time of the server to the time that scripts work with, both in µs.
func ScriptTime(us int64) int64 {
	if us < UnsetClock*1e6 {
		return us + UnsetClock*1e6
	}
	return us
}

// QueueClasses returns the scores at which the classes of waiters begin. A policy orders the waiters of a class by their tickets, so the first
// has waited longest.
func QueueClasses(set *lua.Set) []string {
	if set.Kind == lua.RWLock.Kind {
		return []string{"0", "100000000000000", strconv.FormatInt(readers, 10)}
	}
	return []string{"-inf"}
}

// TicketOf returns the ticket of a waiter, which is the server's time in µs or a little more, from its place in the queue.
func TicketOf(set *lua.Set, place int64) int64 {
	switch {
	case set.Kind != lua.RWLock.Kind:
		return place
	case place < 100_000_000_000_000: // an upgrade
		return place * 1000
	case place > readers:
		return place - readers
	}
	return place
}

// Limits are those of a semaphore or rate limit. 0 is no limit.
type Limits struct {
	AtOnce int   // permits that are held
	Window int   // permits that are taken in any Per
	Per    int64 // ms

	PausedUntil int64 // ms of the server's clock; 0 if there was no pause
}

// ParseLimits returns the limits in force and the pause from a field of the metadata, which has the limits of the last caller, those in force,
// and the pause, if there was one.
func ParseLimits(field string) (Limits, bool) {
	_, inForce, ok := strings.Cut(field, " ")
	inForce, pause, paused := strings.Cut(inForce, " ")
	atOnce, rest, ok2 := strings.Cut(inForce, ":")
	window, per, ok3 := strings.Cut(rest, ":")
	a, err := strconv.Atoi(atOnce)
	w, err2 := strconv.Atoi(window)
	p, err3 := strconv.ParseInt(per, 10, 64)
	if !ok || !ok2 || !ok3 || err != nil || err2 != nil || err3 != nil || a < 0 || w < 0 || p < 0 || p > math.MaxInt64/1000 {
		return Limits{}, false
	}
	l := Limits{AtOnce: a, Window: w, Per: p}
	if paused {
		ends, _, _ := strings.Cut(pause, " ")
		if l.PausedUntil, err = strconv.ParseInt(ends, 10, 64); err != nil || l.PausedUntil < 0 {
			return Limits{}, false
		}
	}
	return l, true
}

// Returned returns a bound of the scores of takings at a time in µs: the permits of a taking with a larger score have returned. See
// lua/policy/window.lua.
func (l Limits) Returned(now int64) int64 { return l.Per*1000 - now }

// ReturnIn returns in how many ms the permits of a taking with that score return.
func (l Limits) ReturnIn(score, now int64) int64 {
	return max((l.Per*1000+1-score-now+999)/1000, 0)
}
