package lua

// The functions in this file are the only place where a script's ARGV is put together. Each appends to a command, in
// the order of the header of the file that it is named for; the parameters bear the names that the header gives.
// Durations are whole milliseconds, yes and no are 1 and 0. What does not change from call to call is passed as any,
// so that it is boxed once and not each time.

// AcquireArgs appends ARGV of acquire.lua.
func AcquireArgs(command []any, token, ttl, idle, heartbeatTTL, wake, sharded, extra, within any) []any {
	return append(command, token, ttl, idle, heartbeatTTL, wake, sharded, extra, within)
}

// ReleaseArgs appends ARGV of release.lua.
func ReleaseArgs(command []any, token, idle, wake, sharded any, tombstone int64, unused int) []any {
	return append(command, token, idle, wake, sharded, tombstone, unused)
}

// RenewArgs appends ARGV of renew.lua.
func RenewArgs(command []any, token any, ttl int64, idle any, exact int, wake, sharded any) []any {
	return append(command, token, ttl, idle, exact, wake, sharded)
}

// HeartbeatArgs appends ARGV of heartbeat.lua, to which the caller appends the tokens, or with back 1 the pairs of token and
// place.
func HeartbeatArgs(command []any, idle, heartbeatTTL, wake, sharded any, back int, extra any) []any {
	return append(command, idle, heartbeatTTL, wake, sharded, back, extra)
}

// InspectArgs appends ARGV of inspect.lua.
func InspectArgs(command []any, what int, after int64, most int) []any {
	return append(command, what, after, most)
}

// RaiseFenceArgs appends ARGV of raise_fence.lua.
func RaiseFenceArgs(command []any, token any, least int64, idle any, up int64) []any {
	return append(command, token, least, idle, up)
}

// CompleteArgs appends ARGV of complete.lua.
func CompleteArgs(command []any, token any, ms int64) []any { return append(command, token, ms) }

// LimitArgs appends ARGV of limit.lua.
func LimitArgs(command []any, idle, wake, sharded, extra any, limit int, token string) []any {
	return append(command, idle, wake, sharded, extra, limit, token)
}

// What inspect tells of.
const (
	InspectHolders = 0
	InspectWaiters = 1
)
