package protocol

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/lua"
)

// The functions in this file are the only place where a script's ARGV is put together. Each appends to a command, in the
// order of the header of the script that it is named for; the parameters have the names of the header, which a test in
// package lua checks. Durations are whole milliseconds, yes and no are 1 and 0. Arguments that do not change from call to
// call are of type any, so that they are boxed once and not each time.

const longestEpoch = 900_000_000 // µs; see LONGEST_EPOCH in lua/lib/constants.lua

// EpochOf returns the epoch of metadata that is kept for so many ms, in µs.
func EpochOf(metadataTTL int64) int64 { return min(metadataTTL*250, longestEpoch) }

// EpochArg returns the argument epoch of the fast scripts that acquire: nil for the longest one.
func EpochArg(metadataTTL int64) any {
	if epoch := EpochOf(metadataTTL); epoch != longestEpoch {
		return epoch
	}
	return nil
}

// QueueTTL returns the argument queue_ttl for heartbeats that count for so many ms.
func QueueTTL(heartbeatTTL int64) int64 { return heartbeatTTL + 1000 }

// FastAcquireArgs appends ARGV of the fast scripts that acquire. Those that are nil are left out: ttl, which window_acquire.lua does not take;
// limits, unless the policy has them; epoch, see EpochArg.
func FastAcquireArgs(command []any, token, ttl, limits, epoch any) []any {
	command = append(command, token)
	for _, arg := range [...]any{ttl, limits, epoch} {
		if arg != nil {
			command = append(command, arg)
		}
	}
	return command
}

// FastReleaseArgs appends ARGV of the fast scripts that release.
func FastReleaseArgs(command []any, token any) []any { return append(command, token) }

// HandOnArgs appends ARGV of the fast scripts that hand on. The way is that of WayOf.
func HandOnArgs(command []any, token, channelPrefix, epoch, way any) []any {
	return append(command, token, channelPrefix, epoch, way)
}

// FastRenewArgs appends ARGV of the fast scripts that renew.
func FastRenewArgs(command []any, token any, ttl int64) []any { return append(command, token, ttl) }

// AllowArgs appends ARGV of allow.lua.
func AllowArgs(command []any, token, ttl, policyArg, metadataTTL any) []any {
	return append(command, token, ttl, policyArg, metadataTTL)
}

// AcquireArgs appends ARGV of acquire.lua. For a try queueTTL and maxWait are nil, and are left out. unsubscribed is 1, or nil.
func AcquireArgs(command []any, token, ttl, policyArg, metadataTTL, queueTTL, maxWait, unsubscribed any) []any {
	command = append(command, token, ttl, policyArg, metadataTTL)
	if queueTTL != nil {
		command = append(command, queueTTL, maxWait)
		if unsubscribed != nil {
			command = append(command, unsubscribed)
		}
	}
	return command
}

// ReleaseArgs appends ARGV of release.lua. yield is 0 if the key is not to be left free.
func ReleaseArgs(command []any, token, metadataTTL any, tombstone int64, cancel int, yield int64) []any {
	command = append(command, token, metadataTTL)
	if tombstone != 0 || cancel != 0 || yield != 0 {
		command = append(command, tombstone, cancel)
	}
	if yield != 0 {
		command = append(command, yield)
	}
	return command
}

// BreakArgs appends ARGV of break.lua. The notice is one of BreakNotice.
func BreakArgs(command []any, token, metadataTTL any, tombstone int64, policyArg, notice string) []any {
	return append(command, token, metadataTTL, tombstone, policyArg, notice)
}

// RenewArgs appends ARGV of renew.lua.
func RenewArgs(command []any, token any, ttl int64, metadataTTL any) []any {
	return append(command, token, ttl, metadataTTL)
}

// HeartbeatArgs appends the first part of ARGV of heartbeat.lua. The waiters follow: by RejoiningWaiter if the mode includes
// HeartbeatRejoin, else by HeartbeatWaiter.
func HeartbeatArgs(command []any, metadataTTL any, mode int, policyArg, queueTTL any) []any {
	return append(command, metadataTTL, mode, policyArg, queueTTL)
}

// The mode of a heartbeat is a sum of these.
const (
	HeartbeatRejoin       = 1 // queue the waiters again
	HeartbeatUnsubscribed = 2 // the keeper does not count on its subscription
)

// HeartbeatWaiter appends a waiter to a command of HeartbeatArgs.
func HeartbeatWaiter(command []any, token string) []any { return append(command, token) }

// RejoiningWaiter appends a waiter that is to be queued again at its place, or at the end if that is 0.
func RejoiningWaiter(command []any, token string, place int64) []any {
	return append(command, token, place)
}

// InspectArgs appends ARGV of inspect.lua. The subject is InspectHolders, InspectWaiters, InspectTaken or InspectBreak. The token is that
// of the last holder that was listed, whose place is after, or "" if none was; for InspectBreak it is the one that was broken.
func InspectArgs(command []any, subject int, after int64, count int, token string) []any {
	return append(command, subject, after, count, token)
}

// RaiseFenceArgs appends ARGV of raise_fence.lua.
func RaiseFenceArgs(command []any, token any, minFence int64, metadataTTL any, minUptime int64) []any {
	return append(command, token, minFence, metadataTTL, minUptime)
}

// CompleteArgs appends ARGV of complete.lua.
func CompleteArgs(command []any, token any, recordTTL int64) []any {
	return append(command, token, recordTTL)
}

// DowngradeArgs appends ARGV of downgrade.lua. upgrade is empty if no copy of the request for it can be under way.
func DowngradeArgs(command []any, token string, fence int64, metadataTTL any, upgrade string, tombstone int64) []any {
	return append(command, token, fence, metadataTTL, upgrade, tombstone)
}

// LimitArgs appends ARGV of limit.lua.
func LimitArgs(command []any, metadataTTL, policyArg any, limit int, token string, pause int64) []any {
	return append(command, metadataTTL, policyArg, limit, token, pause)
}

// LimitsArg returns the policy argument of a semaphore or rate limit: the permits held at once, and those taken in a window of per
// ms. 0 is no limit.
func LimitsArg(atOnce, window int, per int64) string {
	return fmt.Sprintf("%d:%d:%d", atOnce, window, per)
}

// FastOf returns the fast scripts for requests with that policy argument.
func FastOf(set *lua.Set, policyArg string) *lua.Fast {
	if set.Limit != nil {
		atOnce, rest, _ := strings.Cut(policyArg, ":")
		switch window, _, _ := strings.Cut(rest, ":"); {
		case atOnce == "0":
			return &set.FastWindow
		case window != "0":
			return &set.FastBoth
		}
	}
	return &set.Fast
}

// The subjects of inspect.
const (
	InspectHolders = 0
	InspectWaiters = 1
	InspectTaken   = 2 // the requests whose permits have not returned by the clock, in a reply as of holders
	InspectBreak   = 3 // who has broken what a token had
)
