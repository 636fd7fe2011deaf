package claim

import (
	"math"
	"time"
)

// Instant is a time on the keeper's monotonic clock, in ns. It is positive; 0 stands for no time.
type Instant int64

// Add returns the instant that is d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Duration converts milliseconds to a duration.
func Duration(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// ShortestTTL is the least ttl of a lease. A shorter one would end before its reply is read.
const ShortestTTL = 10 * time.Millisecond

// Margin is the safety margin subtracted from a lease's server-side TTL, for clock drift and the server's whole
// milliseconds. (The drift factor of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/)
func Margin(d time.Duration) time.Duration { return d/100 + 2*time.Millisecond }

// TrustedFor returns for how long a lease of ttl ms is relied on, from when the call was sent that granted or renewed it.
func TrustedFor(ttl int64) time.Duration {
	d := Duration(ttl)
	return d - Margin(d)
}

// leaseUntil is the deadline of a lease: until when it is relied on. It was granted or renewed for ttl ms by a call sent at that time.
func leaseUntil(sent Instant, ttl int64) Instant { return sent.Add(TrustedFor(ttl)) }

// wakeupCounts reports whether a message about a grant can be used. Its lease lasts for claimTTL ms from asked, when the last call was
// sent that the server answered with "waiting". floor is the last fence that it had drawn by then: a message whose fence is not
// larger is about an earlier grant. clock is the server's clock at that answer, in ms: a message whose fence is larger than the server
// can have drawn since is forged, or the clock was set ahead. Then the keeper asks the server instead, as it does if less than an eighth
// of the lease is left.
func wakeupCounts(fence, floor, clock int64, asked, now Instant, claimTTL int64) bool {
	return fence > floor && fence <= largestFence(floor, clock, now.Sub(asked)) && leaseUntil(asked, claimTTL).Sub(now) >= Duration(claimTTL)/8
}

// fenceSlack is how much a fence may exceed what the server's clock is expected to show.
const fenceSlack = time.Second

// largestFence returns a bound of the fences that a server draws within that time of an answer, which had the last fence and the
// clock in ms. Fences follow the clock, or are one more than the last: at most one for each µs that the scripts take.
func largestFence(floor, clock int64, within time.Duration) int64 {
	return max(floor, (clock+1)*1000) + (within + fenceSlack).Microseconds()
}

// rejoinPlace returns the place at which a waiter is queued again that the server does not know: its own, or 0, the end of the
// queue, if the last call that was answered is older than a heartbeat counts.
func rejoinPlace(place int64, asked, now Instant, heartbeatTimeout time.Duration) int64 {
	if now.Sub(asked) > heartbeatTimeout {
		return 0
	}
	return place
}

// renewalTime returns a time a little less than after from now, rounded so that leases granted one after the other are
// renewed together.
func renewalTime(now Instant, after time.Duration) Instant {
	at := now.Add(after)
	if grid := Instant(after / 16); grid > 0 {
		at -= at % grid
	}
	return at
}
