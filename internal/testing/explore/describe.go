package explore

import "fmt"

// describe says what a step does in a world.
func (m *model) describe(w *world, s step) string {
	i := int(s.at)
	keeperName := func(k int) string { return "keeper " + keeperID(k) }
	name := func(c slot) string { return m.srv.describe(c.call) }
	reply := func(c slot) string { return fmt.Sprint(m.srv.replies[c.reply]) }
	var of func(what string, c slot) string
	of = func(what string, c slot) string {
		switch what {
		case "run":
			ran := *w
			copied := c
			m.run(&ran, &copied)
			return fmt.Sprintf("the server runs: %s, and replies %s", name(c), reply(copied))
		case "slow":
			return of("run", c) + ", which arrives later"
		case "answer":
			return fmt.Sprintf("%s is answered %s", name(c), reply(c))
		}
		return "no reply comes, and a copy may run later: " + name(c)
	}
	switch s.kind {
	case stepBegin:
		return fmt.Sprintf("%s begins, in %s", requestName(i), keeperName(m.keeperOf[i]))
	case stepRunAsk:
		return of("run", w.requests[i].ask)
	case stepRunChange:
		return of("run", w.requests[i].change)
	case stepRunHeartbeat:
		return of("run", w.keepers[i].waiters.heartbeat)
	case stepRunLate:
		return "the server runs a late copy: " + m.srv.describe(w.late[i])
	case stepSlowAsk:
		return of("slow", w.requests[i].ask)
	case stepSlowChange:
		return of("slow", w.requests[i].change)
	case stepSlowHeartbeat:
		return of("slow", w.keepers[i].waiters.heartbeat)
	case stepAnswerAsk:
		return of("answer", w.requests[i].ask)
	case stepAnswerChange:
		return of("answer", w.requests[i].change)
	case stepAnswerHeartbeat:
		return of("answer", w.keepers[i].waiters.heartbeat)
	case stepFailAsk:
		return of("fail", w.requests[i].ask)
	case stepFailChange:
		return of("fail", w.requests[i].change)
	case stepFailHeartbeat:
		return of("fail", w.keepers[i].waiters.heartbeat)
	case stepMessage:
		return fmt.Sprintf("%s receives %q", keeperName(m.addressee(w.messages[i])), m.srv.messages[w.messages[i]].text)
	case stepLoseMessage:
		return fmt.Sprintf("%q to %s is lost", m.srv.messages[w.messages[i]].text, keeperName(m.addressee(w.messages[i])))
	case stepCancel:
		if !w.requests[i].claim.Pending() {
			return requestName(i) + " is cancelled as it is granted"
		}
		return requestName(i) + " is cancelled"
	case stepRelease:
		return requestName(i) + " releases"
	case stepTimer:
		return "the timer of " + requestName(i) + " fires"
	case stepRunExtend:
		return of("run", w.requests[i].extend)
	case stepSlowExtend:
		return of("slow", w.requests[i].extend)
	case stepAnswerExtend:
		return of("answer", w.requests[i].extend)
	case stepFailExtend:
		return of("fail", w.requests[i].extend)
	case stepExtend:
		return fmt.Sprintf("%s extends its lease to %d ms", requestName(i), m.extendTo)
	case stepBreak:
		return "somebody breaks " + requestName(i)
	case stepClose:
		return keeperName(i) + " is closed"
	case stepHeartbeat:
		return keeperName(i) + " sends a heartbeat"
	case stepCrash:
		return keeperName(i) + " crashes"
	case stepFreeze:
		return keeperName(i) + " freezes for good"
	case stepUnsubscribe:
		return keeperName(i) + " loses its subscription"
	case stepSubscribe:
		return keeperName(i) + " subscribes again"
	case stepRepeatMessage:
		return fmt.Sprintf("%s receives %q, which will come again", keeperName(m.addressee(w.messages[i])), m.srv.messages[w.messages[i]].text)
	case stepOpen:
		return fmt.Sprintf("the caller of %s learns of its lease, and others may enter by it", requestName(i))
	case stepEnter:
		return fmt.Sprintf("a caller enters by the lease of %s, or waits for the one inside", requestName(i))
	case stepLeave:
		return fmt.Sprintf("a caller inside by the lease of %s leaves", requestName(i))
	case stepTurn:
		return fmt.Sprintf("the caller that waits for the one inside by the lease of %s learns of the end of its wait", requestName(i))
	case stepGiveUp:
		return fmt.Sprintf("the caller that waits for the one inside by the lease of %s is cancelled", requestName(i))
	}
	return fmt.Sprintf("time passes: %d ms", int64(w.tick+1)*tick)
}
