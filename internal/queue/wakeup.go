package queue

import (
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// A grant is published to the keeper of the waiter, and a recall to the keeper that retains the lease. A message can be lost; safety never
// depends on one. What makes up for a lost one is in internal/wait/README.md. If the server has said, in a reply, what it has published,
// and the message does not come, then the subscription is stale.

const (
	// WakeupTimeout is how long a published message may take before the subscription counts as stale.
	WakeupTimeout = time.Second
	// recallDoubt is how long no subscription is replaced because of a recall that did not come after one was.
	recallDoubt = time.Minute
)

// Message is a message that the server has published, as far as is known, and that has not come.
type Message struct {
	By      claim.Instant // when the subscription counts as stale if it has not come; 0: it is not expected any more
	Recall  bool          // a recall, which the script may have been unable to publish
	Channel string
}

// GrantExpected reports whether the message must come of a grant that a heartbeat has found. The subscription began at since (0: there is
// none), and the waiter's last call that was answered "waiting" was sent at asked, so that the grant was made later. A keeper whose
// heartbeat has said that it cannot receive is sent no message.
func GrantExpected(since, asked claim.Instant, unsubscribed bool) bool {
	return since > 0 && since <= asked && !unsubscribed
}

// RecallExpected reports whether the message must come of the recall of a lease, granted at that time, that a renewal has found.
func RecallExpected(since, granted claim.Instant) bool { return since > 0 && since < granted }

// Doubts is what a keeper remembers of recalls that did not come. They do not come either if the user of the process that waits may not
// publish. A new subscription does not help against that, so it is made once per recallDoubt at most.
type Doubts struct{ lost claim.Instant }

// Review returns the channels whose subscriptions are stale, of which expected messages did not come, and when to look again (0: not before
// another one is expected). It clears By of the messages that are not expected any more.
func (d *Doubts) Review(now claim.Instant, expected []Message) (stale []string, next claim.Instant) {
	doubtful := d.lost > 0 && now.Sub(d.lost) < recallDoubt
	for _, x := range expected {
		if x.By == 0 || x.By > now || x.Recall && doubtful {
			continue
		}
		if !slices.Contains(stale, x.Channel) {
			stale = append(stale, x.Channel)
		}
		if x.Recall {
			d.lost = now
		}
	}
	for i := range expected {
		x := &expected[i]
		switch {
		case x.By == 0:
		case x.By <= now, slices.Contains(stale, x.Channel): // the others were published to the same subscription
			x.By = 0
		case next == 0 || x.By < next:
			next = x.By
		}
	}
	return stale, next
}
