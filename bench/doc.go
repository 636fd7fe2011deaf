// Package bench sets lockkeeper beside other lock libraries: it tests that a mutex and their locks exclude each other
// on one key, and measures them in the same run. It is a module of its own, so that the library does not depend on its
// peers, and it needs a redis-server, 7.0.5 or later, on PATH.
//
//	cd bench
//	go test -race
//	go test -run '^$' -bench Peers -benchtime 3s
//
// An operation is one Lock with its Release, by every library. The libraries take turns, because machines are shared
// and noisy; so what counts are the ratios, ours to theirs, and below 1 we are better:
//
//	ns/op            time per operation, ours
//	x-redsync        time per operation, ours over that of redsync; and so for the others
//	p99-x-redsync    the 99th percentile of the waits for the lock, likewise
//	cmds/op          client commands per operation, ours, as the server counts them
//	redsync-cmds/op  theirs
//
// With one goroutine the figures vary most from run to run, so compare several (-count).
//
// All leases last 30 s, and nobody gives up early; all else is as the library has it by default or its documentation
// shows it. They do not do the same for it: lockkeeper and rueidislock renew leases and tell waiters when the lock is
// free; redsync and redislock do neither, so that under contention whoever released the lock finds it free again while
// the others sleep. That makes for quick operations and long waits, which is why the waits stand beside the times.
//
// The tests of redsync need modules that may not be available, so tidy this one with go mod tidy -e.
package bench
