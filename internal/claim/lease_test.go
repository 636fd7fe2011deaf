package claim

import "testing"

func TestConvertedLeaseIsReleasedAsAnyOther(t *testing.T) {
	run(t, []table{{
		what:  "by its holder",
		claim: New(Wait, true, false),
		steps: []step{called, granted, {100, Event{Kind: Released}, Releasing, "End Release StopTimer"}},
		then: func(t *testing.T, c *Claim) {
			if tombstone, unused, _, _ := c.Cleanup(); c.NeedsLong() || tombstone || unused {
				t.Error("the release is not an ordinary one")
			}
		},
	}, {
		what: "after it was found, and lost",
		claim: after(New(Wait, true, false), called, step{e: Event{Kind: AskFailed, Outcome: InDoubt}},
			step{e: Event{Kind: ReleaseReplied, Code: Present}}),
		steps: []step{
			{200, Event{Kind: Checked, Code: Granted, Sent: at(100), Fence: 7}, Held, "Found Timer=3418"},
			{9_998, Event{Kind: Timer}, Lost, "End StopTimer"},
			{9_999, Event{Kind: Released}, Releasing, "Release"},
		},
		then: func(t *testing.T, c *Claim) {
			if _, unused, _, _ := c.Cleanup(); unused {
				t.Error("the release says that nobody has used the lease")
			}
		},
	}})
}
