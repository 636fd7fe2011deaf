package claim

import (
	"testing"
	"time"
)

func TestTimerOfWhatHasEndedIsIgnored(t *testing.T) {
	failed := Event{Kind: ReleaseFailed, Outcome: InDoubt, Retryable: true, Pause: 50 * time.Millisecond}
	run(t, []table{{
		what:  "of a lease, while its release is under way",
		claim: held(),
		steps: []step{
			{3_126, Event{Kind: Released}, Releasing, "End Release StopTimer"},
			{3_126, Event{Kind: Timer}, Releasing, ""},
			{3_200, failed, Releasing, "Timer=3250"},
			{3_250, Event{Kind: Timer}, Releasing, "Release"},
			{3_251, Event{Kind: Timer}, Releasing, ""},
		},
	}, {
		what:  "of a request that was cancelled during a pause",
		claim: New(Wait, false, false),
		steps: []step{
			called,
			{1, Event{Kind: Timer}, Asking, ""},
			{2, Event{Kind: AskFailed, Outcome: InDoubt, Retryable: true}, Asking, "Pause"},
			{10, Event{Kind: Cancelled}, Releasing, "Deliver Release StopTimer"},
			{11, Event{Kind: Timer}, Releasing, ""},
		},
	}})
}
