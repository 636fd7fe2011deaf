// Package ratelimit limits how often all processes together do something. A [Limiter] grants at most so many permits in any
// window of time:
//
//	api, err := ratelimit.New(k, "partner-api", 100, time.Second, nil) // 100 in any second
//	…
//	err = api.Wait(ctx)      // a client waits for a permit, then calls
//	r, err := api.Allow(ctx) // a server does not wait: r.Allowed, or answer 429 with r.RetryAfter
//
// A [ConcurrentLimiter] also bounds how many permits are held at the same time:
//
//	api, err := ratelimit.NewConcurrent(k, "partner-api", 100, time.Second, 10, nil) // and ten at once
//	…
//	err = api.Do(ctx, func(ctx context.Context, fence uint64) error { return call(ctx) })
//
// Methods whose names end in N take n permits in one step; the others take one. Package
// [github.com/lockkeeper/lockkeeper/ratelimit/httplimit] applies both kinds of limiters to net/http: it has an http.RoundTripper
// and a middleware. Package [github.com/lockkeeper/lockkeeper] documents keepers, leases, and errors.
//
// # The window
//
// The window slides. A permit returns one window after it was taken, by the server's clock, and not before, whatever happens to
// the caller: if the process crashes or freezes, nothing has to be cleaned up. So no window of that length holds more than the
// limit, wherever it begins. There are no bursts of twice the limit, as with counters that are reset every second. A burst of
// the whole limit is allowed, unlike with a token bucket of burst 1.
//
// The server counts from when it granted the permit, so use a permit at once. A service that has a limit of its own counts
// calls when they arrive. Make the window longer than that of the service, by as much as the times that calls take to arrive
// may differ.
//
// # Concurrent calls
//
// A ConcurrentLimiter takes permits under both limits in one step, so that no caller holds one permit while it waits for the
// other. Acquire returns a [lockkeeper.Lease], with a fence and renewal; Do releases it when the function returns. The end of the
// lease lets another caller in under the bound on concurrent calls. To the window its permits return one window after they were
// granted, as those of a Limiter do. A process that crashes stops renewing its leases, so they end after the TTL.
// A call that is abandoned, because its context ends, may go on at the service after its permit is free.
//
// For permits that are held, without a window, see package [github.com/lockkeeper/lockkeeper/semaphore].
//
// # Order
//
// Requests are served in the order in which they reached the server, and only the first in the queue can be granted. So a
// request for many permits is not starved by requests for few: these wait behind it, even if there are enough permits for them.
// Waiters that have crashed are skipped; those that are frozen at one moment delay the queue by at most one HeartbeatTimeout of
// their keeper (by default 6 s) in total. Allow and TryAcquire are refused while anybody is queued.
//
// The server knows when permits return. So a call whose context ends before its permits can be available is refused at once
// instead of waiting until its context ends, and every refusal says when to try again; see [LimitedError] and [Result].
//
// # The limit
//
// One limit, window and bound on concurrent calls are in force for all processes. A call that has others than the call before
// it, of any process, puts its own in force, so that a rolling deployment can change them, and from a Limiter to a
// ConcurrentLimiter; SetLimit changes the limit at once. All processes should use the same values: two that differ change them
// back and forth, which Hooks.LimitChanged reports. Use different names for different limits.
//
// # Pauses
//
// A service that answers 429 with Retry-After means all processes, not only the one that it answered. One process calls Pause,
// which takes one round trip and holds all of them back:
//
//	err = api.Pause(ctx, retryAfter)
//
// During the pause the server grants no permits of the window. Waiters keep their places, and are served in order afterwards,
// as fast as the window permits: up to the whole limit at once.
//
// # Permits taken ahead
//
// With Options.Ahead a process that is asked often decides without a round trip: it takes a block of permits at once, as many as its
// callers have lately needed in a twentieth of the window (10 ms to 1 s), and grants them within that time. When the server has refused,
// the process refuses by itself until permits can return, for a twentieth of the window at most, and an eighth of that at least.
//
// The promise is the same: no window has more grants than the limit. A permit of a block is granted up to a twentieth of the window later
// than the server has counted it, so the server counts it for as much longer; nothing has to be cleaned up after a process that crashes,
// freezes, or is cut off. What it costs:
//
//   - At full load 20/21 of the limit is granted, and permits of a block that nobody needs in time are lost for a window.
//   - Pause, Resume and SetLimit are in force at once for all limiters of the name that have the same keeper, and up to a twentieth of
//     the window later for others. So is the limit of a process that has another one.
//   - A permit that has returned may be granted as much later. Result.Remaining does not know what other processes have taken since the
//     server was last asked, and grants of one block have the same fence.
//   - Callers of Wait that find no block queue at the server, in order, and are refused there if their context ends too soon. While
//     one of this process waits, no newcomer of the process passes it; another process may still use what is left of its block.
//
// A process whose callers ask less than twice in a twentieth of the window asks the server each time, as without Ahead. Holders and the
// inspector show a block as permits that its process has taken; Break does not end them, as it ends no permits that return by the clock.
// Set Ahead in all processes of a name or in none: the windows differ, and two that differ are two limits (see "The limit"). The window
// is at least [MinAheadWindow]. Permits of a ConcurrentLimiter are not taken ahead.
//
// # What is not promised
//
// Only the server knows which permits were taken. If it loses them (by eviction, FLUSHALL, a failover to a replica that does
// not have them, a clock that is set forward), one window can hold up to twice the limit, and no error reports it; a pause ends
// then. If the clock is set back, permits return late, by one window at most, and a pause ends late, by its length at most.
// While Redis cannot be reached, nothing is allowed: calls return lockkeeper.ErrUnavailable, and the caller decides whether to
// go on without a limit.
package ratelimit
