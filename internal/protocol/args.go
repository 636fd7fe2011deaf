package protocol

import "fmt"

// The functions in this file are the only place where a script's ARGV is put together. Each appends to a command, in the
// order of the header of the script that it is named for; the parameters have the names of the header, which a test in
// package lua checks. Durations are whole milliseconds, yes and no are 1 and 0. Arguments that do not change from call to
// call are of type any, so that they are boxed once and not each time.

// Settings encodes a keeper's settings, which most scripts take as one argument; see lua/lib/settings.lua.
func Settings(metadataTTL, heartbeatTTL int64, channelPrefix string, sharded bool) string {
	kind := 0
	if sharded {
		kind = 1
	}
	return fmt.Sprintf("%d %d %d %s", metadataTTL, heartbeatTTL, kind, channelPrefix)
}

// AcquireArgs appends ARGV of acquire.lua and allow.lua. For the short form settings is nil, for a try maxWait is nil.
func AcquireArgs(command []any, token, ttl, epoch, policyArg, settings, maxWait any) []any {
	command = append(command, token, ttl, epoch)
	if settings != nil || policyArg != "" {
		command = append(command, policyArg)
	}
	if settings != nil {
		command = append(command, settings)
	}
	if maxWait != nil {
		command = append(command, maxWait)
	}
	return command
}

// EpochOf returns the argument epoch for metadata that is kept for so many ms: a quarter of it, in µs.
func EpochOf(metadataTTL int64) int64 { return metadataTTL * 250 }

// ReleaseArgs appends ARGV of release.lua.
func ReleaseArgs(command []any, token, settings any, tombstone int64, cancel int) []any {
	command = append(command, token, settings)
	if tombstone != 0 || cancel != 0 {
		command = append(command, tombstone, cancel)
	}
	return command
}

// BreakArgs appends ARGV of break.lua. The notice is one of BreakNotice.
func BreakArgs(command []any, token, settings any, tombstone int64, policyArg, notice string) []any {
	return append(command, token, settings, tombstone, policyArg, notice)
}

// RenewArgs appends ARGV of renew.lua. The settings are not needed if the lock's own key is the only one. For a lease that the
// process does not retain, retained is nil.
func RenewArgs(command []any, token any, ttl int64, exact int, settings, retained any) []any {
	command = append(command, token, ttl, exact, settings)
	if retained != nil {
		command = append(command, retained)
	}
	return command
}

// PolicyArgRetain is the policy argument of acquire.lua for a lease that the process retains.
const PolicyArgRetain = "retain"

// HeartbeatArgs appends the first part of ARGV of heartbeat.lua. The waiters follow: with rejoin 0 by HeartbeatWaiter, with
// rejoin 1 by RejoiningWaiter.
func HeartbeatArgs(command []any, settings any, rejoin int, policyArg any) []any {
	return append(command, settings, rejoin, policyArg)
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
func LimitArgs(command []any, settings, policyArg any, limit int, token string, pause int64) []any {
	return append(command, settings, policyArg, limit, token, pause)
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
