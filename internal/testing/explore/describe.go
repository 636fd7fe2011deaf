package explore

import "fmt"

// requestSteps and keeperSteps are the names of the steps that are about a request or a keeper alone.
var (
	requestSteps = map[stepKind]string{
		stepBegin:   "%s begins",
		stepCancel:  "%s is cancelled",
		stepRelease: "%s releases",
		stepTimer:   "the timer of %s fires",
		stepExtend:  "%s extends its lease",
		stepBreak:   "somebody breaks %s",
		stepOpen:    "the caller of %s learns of its lease, and others may enter by it",
		stepEnter:   "a caller enters by the lease of %s, or waits for the one inside",
		stepLeave:   "a caller inside by the lease of %s leaves",
		stepTurn:    "the caller that waits for the one inside by the lease of %s learns of the end of its wait",
		stepGiveUp:  "the caller that waits for the one inside by the lease of %s is cancelled",
	}
	keeperSteps = map[stepKind]string{
		stepClose:       "%s is closed",
		stepHeartbeat:   "%s sends a heartbeat",
		stepCrash:       "%s crashes",
		stepFreeze:      "%s freezes for good",
		stepUnsubscribe: "%s loses its subscription",
		stepSubscribe:   "%s subscribes again",
	}
	messageSteps = map[stepKind]string{
		stepMessage:       "%s receives %q",
		stepLoseMessage:   "a message to %s is lost: %q",
		stepRepeatMessage: "%s receives %q, which will come again",
	}
)

// describe says what a step does in a world.
func (m *model) describe(w *world, s step) string {
	i := int(s.at)
	keeperName := func(k int) string { return "keeper " + keeperID(k) }
	if text, found := requestSteps[s.kind]; found {
		return fmt.Sprintf(text, requestName(i)) + " in " + keeperName(m.keeperOf[i])
	}
	if text, found := keeperSteps[s.kind]; found {
		return fmt.Sprintf(text, keeperName(i))
	}
	if text, found := messageSteps[s.kind]; found {
		return fmt.Sprintf(text, keeperName(m.addressee(w.messages[i])), m.srv.messages[w.messages[i]].text)
	}
	switch s.kind {
	case stepRun, stepSlow:
		ran, c := *w, *w.slot(s)
		m.run(&ran, &c)
		text := fmt.Sprintf("the server runs: %s, and replies %v", m.srv.describe(c.call), m.srv.replies[c.reply])
		if s.kind == stepSlow {
			text += ", which arrives later"
		}
		return text
	case stepAnswer:
		c := w.slot(s)
		return fmt.Sprintf("%s is answered %v", m.srv.describe(c.call), m.srv.replies[c.reply])
	case stepFail:
		return "no reply comes, and a copy may run later: " + m.srv.describe(w.slot(s).call)
	case stepRunLate:
		return "the server runs a late copy: " + m.srv.describe(w.late[i])
	}
	return fmt.Sprintf("time passes: %d ms", int64(w.tick+1)*tick)
}
