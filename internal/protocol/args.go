package protocol

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/lua"
)

// This file says what arguments of scripts mean. The functions in calls.go of package server put together the whole ARGV of each script.

// AppendArgs appends ARGV of a script to a command. Arguments that are nil are left out.
func AppendArgs(command []any, args ...any) []any {
	for _, arg := range args {
		if arg != nil {
			command = append(command, arg)
		}
	}
	return command
}

const longestEpoch = 900_000_000 // µs; see LONGEST_EPOCH in lua/lib/constants.lua

// EpochOf returns the epoch in µs of metadata that is kept for metadataTTL ms.
func EpochOf(metadataTTL int64) int64 { return min(metadataTTL*250, longestEpoch) }

// EpochArg returns the argument epoch of the fast scripts that acquire: nil for the longest one.
func EpochArg(metadataTTL int64) any {
	if epoch := EpochOf(metadataTTL); epoch != longestEpoch {
		return epoch
	}
	return nil
}

// QueueTTL returns the argument queue_ttl for heartbeats that count for heartbeatTTL ms.
func QueueTTL(heartbeatTTL int64) int64 { return heartbeatTTL + 1000 }

// The mode of a heartbeat is a sum of these.
const (
	HeartbeatRejoin       = 1 // queue the waiters again
	HeartbeatUnsubscribed = 2 // the keeper does not count on its subscription
)

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
	InspectTaken   = 2 // requests whose permits have not yet returned by the clock, listed like holders
	InspectBreak   = 3 // who has broken the lease or request of a token
)
