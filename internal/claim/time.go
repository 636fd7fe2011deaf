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

// TrustedFor returns for how long a lease of ttl ms is relied on, counted from when the call that granted or renewed it was sent.
func TrustedFor(ttl int64) time.Duration {
	d := Duration(ttl)
	return d - Margin(d)
}

// leaseUntil returns the deadline of a lease, until which it is relied on, if a call sent at sent has granted or renewed it for ttl ms.
func leaseUntil(sent Instant, ttl int64) Instant { return sent.Add(TrustedFor(ttl)) }

// wakeupCounts reports whether a message about a grant can be used. floor and clock are from the last answer of "waiting": the last fence that the
// server had drawn, and its clock in ms. If the message's fence is not larger than floor, it is about an earlier grant. If it is larger than any
// the server can have drawn since, it is forged, or the clock was set ahead. Nor can a message be used if less than an eighth of its lease is
// left, which lasts for claimTTL ms from asked, when the answered call was sent.
func wakeupCounts(fence, floor, clock int64, asked, now Instant, claimTTL int64) bool {
	return fence > floor && fence <= largestFence(floor, clock, now.Sub(asked)) && leaseUntil(asked, claimTTL).Sub(now) >= Duration(claimTTL)/8
}

// fenceSlack is how much a fence may exceed what the server's clock is expected to show.
const fenceSlack = time.Second

// largestFence returns the largest fence that a server may draw within that time after an answer with floor and clock. A fence is the clock in µs
// or, if that is not larger, one more than the last fence; and drawing takes more than 1 µs.
func largestFence(floor, clock int64, within time.Duration) int64 {
	return max(floor, (clock+1)*1000) + (within + fenceSlack).Microseconds()
}

// rejoinPlace returns the place for a waiter that the server does not know any more: its own or, if its last answered call is older than a
// heartbeat counts, 0 for the end of the queue.
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
