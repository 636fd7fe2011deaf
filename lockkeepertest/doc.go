// Package lockkeepertest helps to test code that uses Lockkeeper: it starts a Redis server in the test process, injects faults
// such as the loss of a lease or a crash of its holder, waits for states of a lock instead of sleeping, and reports what a test
// leaves behind. The locks are the real ones; nothing is mocked.
//
// The page [Testing your code] shows how to use it. For example:
//
//	func TestStopsWorkWhenLockIsLost(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			s := lockkeepertest.New(t)
//			worker := NewWorker(s.Keeper(t, nil)) // the code under test
//			go worker.Run(t.Context())
//			s.LoseLease(t, "invoices:2026-11")    // waits until it is held
//			worker.requireStopped(t)              // the TTL of 30 s passes at once
//		})
//	}
//
// # Time
//
// In a [testing/synctest] bubble the server's clock is that of the bubble, and clients are connected to it in memory. A TTL of
// 30 s then passes without real waiting. Call [New] within the bubble, or the test fails. No sockets work there, so [Server.URL] fails, and
// programs outside of the test cannot be part of it.
//
// Outside of a bubble the server listens on a port of the local host, and its clock is that of the machine. In both cases
// leases expire by themselves, unlike the keys of a plain miniredis, on which the server is built.
//
// # Waiting
//
// Every method that takes the name of a lock waits until the lock is in the state that the method needs, and fails the test if
// that takes longer than a minute (in a bubble, a minute of the bubble's time). The failure describes the state of the lock at
// the server. Like testing.T.FailNow, such a method must be called from the goroutine of the test. All other functions are safe
// for concurrent use.
//
// # Faults
//
// Each fault is a method of [Server], whose documentation says what causes the fault in production and what the code under test
// should see. Faults that last end with [Server.Restore], or at the end of the test. Faults affect the clients of
// [Server.Client] and [Server.Keeper]; each client stands for one process. They do not affect programs that connect by
// [Server.URL].
//
// A program that imports this package discards what go-redis logs, such as each connection that a fault breaks.
//
// # A real server
//
// If LOCKKEEPERTEST_REDIS_URL is set, [New] uses the server of this URL instead of an embedded one, except in a bubble. It must
// be used for tests only, and must not be a Cluster. Each [Server] takes the first empty database, beginning with the one in
// the URL. So tests of several packages can run at the same time, as long as there are databases left. All faults work there
// too: they are injected into the connections of the clients, or caused by commands.
//
// [Testing your code]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/testing-your-code.md
package lockkeepertest
