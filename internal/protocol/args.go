package protocol

import "fmt"

// The functions in this file are the only place where a script's ARGV is put together. Each appends to a command, in the
// order of the header of the script that it is named for; the parameters have the names of the header, which a test in
// package lua checks. Durations are whole milliseconds, yes and no are 1 and 0. Arguments that do not change from call to
// call are of type any, so that they are boxed once and not each time.

// AcquireArgs appends ARGV of acquire.lua.
func AcquireArgs(command []any, token, ttl, metadataTTL, heartbeatTTL, channelPrefix, sharded, policyArg, maxWait any) []any {
	return append(command, token, ttl, metadataTTL, heartbeatTTL, channelPrefix, sharded, policyArg, maxWait)
}

// ReleaseArgs appends ARGV of release.lua.
func ReleaseArgs(command []any, token, metadataTTL, channelPrefix, sharded any, tombstone int64, cancel int) []any {
	return append(command, token, metadataTTL, channelPrefix, sharded, tombstone, cancel)
}

// RenewArgs appends ARGV of renew.lua.
func RenewArgs(command []any, token any, ttl int64, metadataTTL any, exact int, channelPrefix, sharded any) []any {
	return append(command, token, ttl, metadataTTL, exact, channelPrefix, sharded)
}

// HeartbeatArgs appends the first part of ARGV of heartbeat.lua. The waiters follow: with rejoin 0 by HeartbeatWaiter, with
// rejoin 1 by RejoiningWaiter.
func HeartbeatArgs(command []any, metadataTTL, heartbeatTTL, channelPrefix, sharded any, rejoin int, policyArg any) []any {
	return append(command, metadataTTL, heartbeatTTL, channelPrefix, sharded, rejoin, policyArg)
}

// HeartbeatWaiter appends a waiter to a command of HeartbeatArgs.
func HeartbeatWaiter(command []any, token string) []any { return append(command, token) }

// RejoiningWaiter appends a waiter that is to be queued again at its place, or at the end if that is 0.
func RejoiningWaiter(command []any, token string, place int64) []any {
	return append(command, token, place)
}

// InspectArgs appends ARGV of inspect.lua. The subject is InspectHolders or InspectWaiters.
func InspectArgs(command []any, subject int, after int64, count int) []any {
	return append(command, subject, after, count)
}

// RaiseFenceArgs appends ARGV of raise_fence.lua.
func RaiseFenceArgs(command []any, token any, minFence int64, metadataTTL any, minUptime int64) []any {
	return append(command, token, minFence, metadataTTL, minUptime)
}

// CompleteArgs appends ARGV of complete.lua.
func CompleteArgs(command []any, token any, recordTTL int64) []any {
	return append(command, token, recordTTL)
}

// LimitArgs appends ARGV of limit.lua.
func LimitArgs(command []any, metadataTTL, channelPrefix, sharded, policyArg any, limit int, token string) []any {
	return append(command, metadataTTL, channelPrefix, sharded, policyArg, limit, token)
}

// LimitsArg returns the policy argument of a semaphore or rate limit: the permits held at once, and those taken in a window of per
// ms. 0 is no limit.
func LimitsArg(atOnce, window int, per int64) string {
	return fmt.Sprintf("%d:%d:%d", atOnce, window, per)
}

// The subjects of inspect.
const (
	InspectHolders = 0
	InspectWaiters = 1
)
