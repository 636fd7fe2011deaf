// Package ratelimit limits how often many processes do something together: at most so many times in any window of time,
// and, if wanted, so many at once.
//
//	api, err := ratelimit.New(k, "partner-api", 100, time.Second, nil) // 100 in any second
//	…
//	err = api.Wait(ctx)        // a client: wait for a permit, then call
//	r, err := api.Allow(ctx)   // a server: r.Allowed, or answer 429 with r.RetryAfter
//
// Package httplimit, below this one, has an http.RoundTripper and a middleware.
//
// # The window
//
// The window slides. A permit returns one window after it was taken, by the server's clock, and not before, whatever
// happens to the caller: if the process crashes or freezes, nothing has to be cleaned up. So no window of that length holds
// more than the limit, wherever it begins. There are no bursts of twice the limit, as with counters that are reset every
// second, and a burst of the whole limit is allowed, unlike with a token bucket of burst 1.
//
// The server counts from when it granted the permit, so use it at once. A service that has a limit of its own counts calls
// when they arrive. Make the window longer than the service's by as much as the times that calls take to arrive may differ.
//
// # Concurrency
//
// Options.MaxConcurrent bounds how many permits are held at the same time as well. Then Acquire and Do return permits under
// both limits in one step, so that no caller holds one while it waits for the other:
//
//	api, err := ratelimit.New(k, "partner-api", 100, time.Second, &ratelimit.Options{MaxConcurrent: 10})
//	…
//	err = api.Do(ctx, func(ctx context.Context, fence uint64) error { return call(ctx) })
//
// The lease has renewal, fence and loss signal as every [lockkeeper.Lease]. Wait and Allow return ErrInvalid with
// MaxConcurrent, since nothing would say when the call is over, and Acquire returns ErrInvalid without it. Do works with
// both. For permits that are held, without a window, see package semaphore.
//
// # Order
//
// Requests are served in the order in which they reached the server, and only the first in the queue can be granted. So a
// request for many permits is not starved by requests for few: these wait behind it, even if there are enough for them.
// Waiters that have crashed or are frozen are skipped as in package fair. Allow and TryAcquire are refused while
// anybody is queued.
//
// The server knows when permits return. So a call that waits is refused at once if its context ends before that, and every
// refusal says when to try again; see [LimitedError] and [Result].
//
// # The limit
//
// One limit, window and MaxConcurrent are in force for all processes. A call that has others than the call before it, of any
// process, puts its own in force, so that a rolling deployment can change them; SetLimit changes the limit at once. All
// processes should use the same values: two that differ change them back and forth, which Hooks.LimitChanged reports. Use
// different names for different limits.
//
// # Pauses
//
// A service that answers 429 with Retry-After means all processes, not only the one that it answered. Pause holds them all back,
// by one round trip of one of them:
//
//	err = api.Pause(ctx, retryAfter)
//
// Until then the server grants nothing by the clock. Waiters keep their places, and are served in order afterwards, as fast as the
// window permits: up to the whole limit at once.
//
// # What can fail
//
// What was taken is known to the server alone. If Redis loses it (eviction, FLUSHALL, a failover to a replica that does not
// have it, a clock that is set forward), one window can hold up to twice the limit, and no error reports it; a pause ends then.
// A clock that is set back makes permits return late, by one window at most, and a pause end late, by its length at most. While Redis cannot be reached, nothing is allowed: calls
// return lockkeeper.ErrUnavailable, and whether to go on without a limit is the caller's decision.
package ratelimit
