// Package redlock provides a mutex on the majority of several independent Redis servers: it works while any minority of them is
// down, and no single server can cause a second holder by losing its data. It is the Redlock algorithm
// (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/) with fencing tokens, renewal, and errors that contain
// each server's answer.
//
//	keepers := []*lockkeeper.Keeper{k1, k2, k3} // of a client for each server
//	l, err := redlock.New(keepers, "orders:42", nil)
//	…
//	err = l.Do(ctx, func(ctx context.Context, fence uint64) error {
//		return charge(ctx, order, fence) // ctx ends if the lock is lost
//	})
//
// Package [github.com/lockkeeper/lockkeeper] documents leases, fences, errors, and the options that all locks share.
//
// # Servers
//
// Each server has a keeper. The number of servers must be odd; a majority is more than half of them. Of 3 servers one may be
// down, of 5 two. All processes must use the same servers. The servers must not be replicas or shards of each other. [New]
// describes how two keepers of one server are detected.
//
// On each server the lock is what package mutex writes: one string key, prefix + name, whose value is the holder's token. So a
// lock of this package and one of another library that uses the same keys on the same servers, as redsync does with several
// pools, exclude each other. A mutex of package mutex on one of the servers takes that server's part of the lock, so give the
// two different names.
//
// # Acquiring
//
// All servers are asked concurrently. The lease is held as soon as a majority has granted it and agreed on the fence. The
// answers of the other servers are processed in the background and count from then on, however late they arrive. An attempt
// without a majority fails after Options.ServerTimeout. Its token is then released at every server in the background, also
// where no answer arrived; there the server remembers for a minute that it must not grant that token, so a request that arrives
// late is refused.
//
// There is no queue. A caller that finds the lock held retries after a random pause, which grows up to Options.MaxRetryDelay,
// or when the leases of the other holders expire. Of all goroutines of a process that wait for one name, one retries at a time.
// If order matters, or hand-offs without a pause, use package fair on one server.
//
// # Holding
//
// The lease is renewed at each server after each third of the TTL. Its deadline is the time until which a majority of the
// servers is certain to hold it: of 3 servers, the second largest of their deadlines. The lease is lost when the deadline
// passes, or when so many servers report that the lease is gone that no majority is left. A server that did not grant the lease
// at first, or has lost it, is asked for it again while a majority holds it. So a lease outlives restarts of all its servers,
// one after the other.
//
// Extend and Release return when a majority has confirmed them, and continue in the background at the other servers. Closing
// any of the keepers releases the lease.
//
// # The fence
//
// Each server generates fences of its own. The lease has the largest one of its majority. Before the lease is returned to the
// caller, a majority of the servers has confirmed that all their later fences are larger. Any later majority shares a server
// with this one, so its fence is larger, however much the servers' clocks differ. Usually no further round trip is needed for
// this, because the request names a fence slightly ahead of all servers' clocks, as far as they are known.
//
// # Servers that restart
//
// A server that restarts without its data frees its part of the lock. If a majority of the servers does so within one TTL, a
// second holder can acquire the lock. With Options.MinUptime the answers of a server do not count until it has run for that time,
// by its INFO: once the TTL of the leases that it has forgotten has passed, that no longer matters
// (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/, "delayed restarts"). Set it to the longest TTL, or Extend,
// that any process uses for the name. It requires the permission to run INFO, and costs one more round trip per acquisition. It
// relies on the server's wall clock, and does not detect data that was lost without a restart, by FLUSHALL, eviction or a failover
// to a replica.
//
// # What is not promised
//
// A majority of the servers that lose their data within one TTL, in a way that MinUptime does not cover, can let a second holder in.
// A server whose clock jumps ahead by a TTL ends its part of the lock early, with the same effect.
//
// As with any lock, a holder that is paused between its last check of the lease and its write can be late. Only a store that
// checks fences is safe from that (https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
package redlock
