package protocol

import "fmt"

// The functions in this file are the only place where a script's ARGV is put together. Each appends to a command, in the
// order of the header of the script that it is named for; the parameters have the names of the header, which a test in
// package lua checks. Durations are whole milliseconds, yes and no are 1 and 0. Arguments that do not change from call to
// call are of type any, so that they are boxed once and not each time.

// Settings encodes a lock's settings, which most scripts take as one argument; see lua/lib/settings.lua.
func Settings(metadataTTL int64, channelPrefix string, sharded bool) string {
	kind := 0
	if sharded {
		kind++
	}
	if EpochOf(metadataTTL) != longestEpoch {
		kind += ownEpoch
	}
	return fmt.Sprintf("%d%013d%s", kind, metadataTTL, channelPrefix)
}

const (
	longestEpoch = 900_000_000 // µs
	ownEpoch     = 2           // of the kind that settings begin with: a script needs them to know the epoch
)

// EpochOf returns the epoch of metadata that is kept for so many ms, in µs; see lua/lib/epoch.lua.
func EpochOf(metadataTTL int64) int64 { return min(metadataTTL*250, longestEpoch) }

// ShortArgs returns policyArg and settings as the short form of acquire.lua takes them: nil where it needs none.
func ShortArgs(policyArg, settings string) (any, any) {
	switch {
	case settings[0] >= '0'+ownEpoch:
		return policyArg, settings
	case policyArg != "":
		return policyArg, nil
	}
	return nil, nil
}

// QueueTTL returns the argument queue_ttl for heartbeats that count for so many ms.
func QueueTTL(heartbeatTTL int64) int64 { return heartbeatTTL + 1000 }

// AcquireArgs appends ARGV of acquire.lua and allow.lua. Those at the end that are nil are left out: for a try queueTTL and maxWait, and for
// the short form also, mostly, settings and an empty policyArg.
func AcquireArgs(command []any, token, ttl, policyArg, settings, queueTTL, maxWait any) []any {
	command = append(command, token, ttl)
	for _, arg := range [...]any{policyArg, settings, queueTTL, maxWait} {
		if arg == nil {
			break
		}
		command = append(command, arg)
	}
	return command
}

// ReleaseArgs appends ARGV of release.lua. For the short form settings is nil. yield is 0 if the key is not to be left free.
func ReleaseArgs(command []any, token, settings any, tombstone int64, cancel int, yield int64) []any {
	command = append(command, token)
	if settings != nil {
		command = append(command, settings)
	}
	if tombstone != 0 || cancel != 0 || yield != 0 {
		command = append(command, tombstone, cancel)
	}
	if yield != 0 {
		command = append(command, yield)
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

// HeartbeatArgs appends the first part of ARGV of heartbeat.lua. The waiters follow: by RejoiningWaiter if the mode includes
// HeartbeatRejoin, else by HeartbeatWaiter.
func HeartbeatArgs(command []any, settings any, mode int, policyArg, queueTTL any) []any {
	return append(command, settings, mode, policyArg, queueTTL)
}

// The mode of a heartbeat is a sum of these.
const (
	HeartbeatRejoin = 1 // queue the waiters again
	HeartbeatDeaf   = 2 // the keeper cannot receive messages at present
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
func RaiseFenceArgs(command []any, token any, minFence int64, settings any, minUptime int64) []any {
	return append(command, token, minFence, settings, minUptime)
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
	InspectTaken   = 2 // the requests whose permits have not returned by the clock, in a reply as of holders
	InspectBreak   = 3 // who has broken what a token had
)
