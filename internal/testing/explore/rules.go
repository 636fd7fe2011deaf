package explore

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/engine"
)

// rules are the decisions of a keeper that a test can replace by wrong ones. Times are ms.
type rules struct {
	// leaseUntil returns until when a lease is relied on that was granted or renewed by a call sent and answered at these times.
	leaseUntil func(sent, answered, ttl int64) int64
	// wakeupCounts reports whether a message about a grant is used.
	wakeupCounts func(fence, floor, clock, asked, now, claimTTL int64) bool
	// rejoinPlace returns the place at which a waiter is queued again.
	rejoinPlace func(place, asked, now, heartbeatTimeout int64) int64
	// needsTombstone reports whether the cleanup of a token prevents that a copy of its request is granted later.
	needsTombstone func(engine.TokenRecord) bool
	// enter reports whether a reader is admitted by a retained lease: while it is open, its recall would be heard, and its
	// deadline has not passed.
	enter func(open, hears, inTime bool) bool
	// settle reports whether a retained lease is released now.
	settle func(x *engine.RetentionRecord, inside int) bool
	// recallReceived and recallReplied report whether a keeper heeds a message about a recall, and a renewal's reply.
	recallReceived, recallReplied func() bool
}

// engineRules are the decisions of the engine.
var engineRules = rules{
	leaseUntil: func(sent, _, ttl int64) int64 { return engine.LeaseUntil(time.UnixMilli(sent), ttl).UnixMilli() },
	wakeupCounts: func(fence, floor, clock, asked, now, claimTTL int64) bool {
		return engine.WakeupCounts(fence, floor, clock, time.UnixMilli(asked), time.UnixMilli(now), claimTTL)
	},
	rejoinPlace: func(place, asked, now, heartbeatTimeout int64) int64 {
		return engine.RejoinPlace(place, time.UnixMilli(asked), time.UnixMilli(now), time.Duration(heartbeatTimeout)*time.Millisecond)
	},
	needsTombstone: func(t engine.TokenRecord) bool { return t.NeedsTombstone() },
	enter:          func(open, hears, inTime bool) bool { return open && hears && inTime },
	settle:         func(x *engine.RetentionRecord, inside int) bool { return x.Settle(inside) },
	recallReceived: func() bool { return true },
	recallReplied:  func() bool { return true },
}

func msTime(ms int64) time.Time { return time.UnixMilli(ms) }
