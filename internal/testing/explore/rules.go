package explore

import "github.com/lockkeeper/lockkeeper/internal/engine"

// rules are the decisions of a keeper that a test can replace by wrong ones. Times are ms.
type rules struct {
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
	enter:          func(open, hears, inTime bool) bool { return open && hears && inTime },
	settle:         func(x *engine.RetentionRecord, inside int) bool { return x.Settle(inside) },
	recallReceived: func() bool { return true },
	recallReplied:  func() bool { return true },
}
