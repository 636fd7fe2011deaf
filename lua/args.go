package lua

// The functions in this file are the only place where a script's ARGV is put together. Each appends to args, in the
// order of the header of the file it is named for; their parameters bear the names that the header gives.

// AcquireArgs appends ARGV of acquire.lua. Durations are whole milliseconds; life 0 makes it a try.
func AcquireArgs(args []any, token string, ttl, idle, life int64, wake string, sharded int64) []any {
	return append(args, token, ttl, idle, life, wake, sharded)
}

// ReleaseArgs appends ARGV of release.lua; bury is in milliseconds, 0 for not at all.
func ReleaseArgs(args []any, token string, idle int64, wake string, sharded, bury int64) []any {
	return append(args, token, idle, wake, sharded, bury)
}

// RenewArgs appends ARGV of renew.lua.
func RenewArgs(args []any, token string, ttl, idle, exact int64) []any {
	return append(args, token, ttl, idle, exact)
}

// BeatArgs appends ARGV of beat.lua, to which the caller appends the tokens, or with back 1 the pairs of token and
// place.
func BeatArgs(args []any, idle, life int64, wake string, sharded, back int64) []any {
	return append(args, idle, life, wake, sharded, back)
}
