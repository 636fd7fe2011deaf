package retain

import (
	"math"
	"time"
)

const (
	// MaxTTL bounds the ttl of a retained lease: how long a process that is frozen, or cut off, delays a writer.
	MaxTTL = 5 * time.Second
	// MaxNames is how many names a process retains at most.
	MaxNames = 10_000

	// A lease that was recalled is not retained again for inhibition times as long as that took, so that a writer is slowed by
	// no more than a tenth. (Dice and Kogan, BRAVO, ATC 2019) The least is for what the process does not see: the messages
	// between it, the server and the writer, 2 ms if they take no longer in all.
	// A lease needs no minimum time for which it is kept although it was recalled, as other lock managers have it against giving up
	// a lease before anybody has used it: the request that brings the lease is itself a read, which is served before it is given back.
	inhibition     = 9
	leastInhibited = 20 * time.Millisecond
	mostInhibited  = time.Minute
	jitter         = 0.25 // of the inhibition, either way, within these bounds

	readsPerRecall = 20               // from which on a lease is worth retaining
	memory         = 10 * time.Second // in which the weight of reads and recalls falls to 1/e
)

// Policy is what a process remembers of a name, to decide whether to retain its lease. The zero Policy is that of a name that was
// never used, which is retained at once. Times are measured from any fixed moment.
type Policy struct {
	reads, recalls float64 // weighted
	at             time.Duration
	inhibited      time.Duration // until when
}

// Read returns the policy after so many reads.
func (p Policy) Read(now time.Duration, n int64) Policy {
	p = p.fade(now)
	p.reads += float64(n)
	return p
}

// Recalled returns the policy after the lease was given back, took after it was recalled. Chance is from 0 to 1, exclusive, and
// spreads the processes.
func (p Policy) Recalled(now, took time.Duration, chance float64) Policy {
	p = p.fade(now)
	p.recalls++
	pause := min(max(inhibition*float64(took), float64(leastInhibited)/(1-jitter)), float64(mostInhibited)/(1+jitter))
	p.inhibited = now + time.Duration(pause*(1-jitter+2*jitter*chance))
	return p
}

// Allows reports whether a read may ask for a lease to retain.
func (p Policy) Allows(now time.Duration) bool {
	p = p.fade(now)
	return now >= p.inhibited && p.reads >= readsPerRecall*p.recalls
}

func (p Policy) fade(now time.Duration) Policy {
	if now > p.at {
		weight := math.Exp(-float64(now-p.at) / float64(memory))
		p.reads *= weight
		// Allows compares the two, so the weight of a recall must end before that of the reads has become nothing.
		if p.recalls *= weight; p.recalls < 1/float64(readsPerRecall*2) {
			p.recalls = 0
		}
		p.at = now
	}
	return p
}

// Hears reports whether a recall since the lease was last confirmed would have been received: whether the subscription then, in
// whose epoch that request was sent, is the present one. While there is none the epoch is even.
func Hears(confirmed, current uint64) bool { return confirmed == current && current&1 == 1 }

// InTime reports whether a lease is certain.
func InTime(now, deadline time.Duration) bool { return now < deadline }
