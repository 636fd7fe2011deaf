package queue

import (
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// A grant is published to the keeper of the waiter. A message can be lost; safety never depends on one. What makes up for a lost one is in
// internal/keeper/README.md. If the server has said, in a reply, what it has published, and the message does not come, then the subscription
// is stale.

// WakeupTimeout is how long a published message may take before the subscription counts as stale.
const WakeupTimeout = time.Second

// Message is a message that the server has published, as far as is known, and that has not come.
type Message struct {
	By      claim.Instant // when the subscription counts as stale if it has not come; 0: it is not expected any more
	Channel string
}

// GrantExpected reports whether the message must come of a grant that a heartbeat has found. The subscription began at since (0: there is
// none), and the waiter's last call that was answered "waiting" was sent at asked, so that the grant was made later. A keeper that
// does not count on its subscription does not expect it.
func GrantExpected(since, asked claim.Instant, unsubscribed bool) bool {
	return since > 0 && since <= asked && !unsubscribed
}

// Review returns the channels whose subscriptions are stale, of which expected messages did not come, and when to look again (0: not before
// another one is expected). It clears By of the messages that are not expected any more.
func Review(now claim.Instant, expected []Message) (stale []string, next claim.Instant) {
	for _, x := range expected {
		if x.By > 0 && x.By <= now && !slices.Contains(stale, x.Channel) {
			stale = append(stale, x.Channel)
		}
	}
	for i := range expected {
		x := &expected[i]
		switch {
		case x.By == 0:
		case slices.Contains(stale, x.Channel): // the others were published to the same subscription
			x.By = 0
		case next == 0 || x.By < next:
			next = x.By
		}
	}
	return stale, next
}
