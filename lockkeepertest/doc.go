// Package lockkeepertest helps to test code that uses Lockkeeper. It starts a server in the test process, injects faults by
// name, waits for states instead of sleeping, and reports what a test leaves behind. The locks are the real ones; nothing is
// mocked.
//
// [A page of the documentation] shows it at work.
//
//	func TestStopsWorkWhenLockIsLost(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			s := lockkeepertest.New(t)
//			worker := NewWorker(s.Keeper(t, nil)) // the code under test
//			go worker.Run(t.Context())
//			s.LoseLease(t, "invoices:2026-11")    // waits until it is held
//			worker.requireStopped(t)              // a ttl of 30 s passes in no time
//		})
//	}
//
// # Time
//
// In a [testing/synctest] bubble the server's clock is that of the bubble, and clients are connected to it in memory. A ttl of
// 30 s then costs nothing. Create the server within the bubble. No sockets work there, so [Server.URL] fails, and programs
// outside of the test cannot be part of it.
//
// Outside of a bubble the server listens on a port of the local host, and its clock is that of the machine. Leases expire in
// both cases, which those of miniredis do not by default.
//
// # Waiting
//
// Every method that names a lock waits until the lock is in the state that the method needs, and fails the test if it is not
// within a minute, of the bubble's time in a bubble. The failure says what the server has. Such a method must be called from
// the goroutine of the test, as testing.T.FailNow must. All other functions are safe for concurrent use.
//
// # Faults
//
// Each fault is a method of [Server], whose documentation says what causes it in production and what the code under test
// should see. Faults that last end with [Server.Restore], and at the end of the test. They affect clients of [Server.Client]
// and [Server.Keeper]; each client stands for one process. They do not affect programs that connect by [Server.URL].
//
// A program that imports this package discards what go-redis logs, such as each connection that a fault breaks.
//
// # A real server
//
// If LOCKKEEPERTEST_REDIS_URL is set, [New] uses the server of this URL instead of an embedded one, except in a bubble. The
// server must be used for tests only, and must not be a Cluster. Each [Server] takes the first empty database from the one in
// the URL on, so tests of several packages can run at the same time, as many as there are databases. All faults work there
// too: they are in the connections of the clients, or are done by commands.
//
// [A page of the documentation]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/testing-your-code.md
package lockkeepertest
