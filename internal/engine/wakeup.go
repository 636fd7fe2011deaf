package engine

import (
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/queue"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// A grant is published to the keeper of the waiter. A message can be lost; safety never depends on one, and a waiter that
// missed one learns of its grant
//
//   - from the reply to its next heartbeat, at most HeartbeatInterval later (heartbeat.go);
//   - at once, if the connection was lost: when the new subscription is acknowledged, all waiters send a heartbeat (subscribed);
//   - if the heartbeat finds a grant whose message does not come, the subscription is stale and is replaced (expectWakeup);
//   - the script itself takes a grant back if nobody received its message (deliver in lua/lib/admit.lua), unless the waiter's last
//     heartbeat said that it cannot receive any (isDeaf in heartbeat.go).

// received handles a message.
func (e *Engine) received(payload string) {
	wakeups, err := protocol.ParseMessage(payload)
	if err != nil {
		e.logIgnored(err, time.Now())
		return
	}
	for _, x := range wakeups {
		e.mu.Lock()
		r, recalled := e.requests[x.Serial], e.retentions[x.Serial]
		if x.Fence > 0 || x.Recalled || x.Broken != nil {
			delete(e.expected, x.Serial)
		}
		if x.Fence > 0 && r != nil {
			r.notified = true
		}
		if x.Recalled && recalled != nil {
			recalled.notified = true
		}
		e.mu.Unlock()
		switch {
		case x.Broken != nil:
			e.broken(r, x.Serial, *x.Broken)
		case x.Recalled && recalled == nil: // it was given back
		case x.Recalled:
			recalled.giveBack(true)
		case r == nil: // granted by a reply already, or abandoned: then its cleanup releases the grant
		case x.Fence > 0:
			r.step(claim.Event{Kind: claim.Woken, Fence: x.Fence}, nil)
		default:
			r.step(claim.Event{Kind: claim.RetryAt, At: e.now().Add(server.Duration(x.RetryIn) + time.Millisecond)}, nil)
		}
	}
}

// ignoredInterval is the least time between two log lines about messages that are none of ours. Whoever may publish can send any number.
const ignoredInterval = time.Minute

// logIgnored logs that a message was ignored, and how many were since the last such line.
func (e *Engine) logIgnored(err error, now time.Time) {
	e.mu.Lock()
	e.ignored++
	n := e.ignored
	due := e.ignoredLogged.IsZero() || now.Sub(e.ignoredLogged) >= ignoredInterval
	if due {
		e.ignored, e.ignoredLogged = 0, now
	}
	e.mu.Unlock()
	if due {
		e.Config.Log.Warn("lockkeeper: messages ignored that no keeper sends", "messages", n, "last_error", err)
	}
}

// subscribed handles the acknowledgement of a subscription. Messages may have been lost before it, so all waiters of the
// channel send a heartbeat, and retained leases ask whether they were recalled.
func (e *Engine) subscribed(channel string) {
	e.heartbeatsOf(channel)
	e.mu.Lock()
	retained := slices.Clone(e.recalledBy[channel]) // on a Cluster each name has a channel of its own
	e.mu.Unlock()
	for _, x := range retained {
		x.askNow()
	}
}

// denied handles the refusal of a subscription. Its waiters say at once that they cannot receive messages, to keep their places.
func (e *Engine) denied(channel string, err error) {
	e.Config.Log.Warn("lockkeeper: no right to subscribe to wake-ups; waiters ask at their heartbeats instead",
		"channel", channel, "error", err)
	e.heartbeatsOf(channel)
}

// heartbeatsOf makes all waiters of a channel send heartbeats now.
func (e *Engine) heartbeatsOf(channel string) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.queues {
		if n.lock.Channel == channel {
			n.heartbeatsBy(now)
		}
	}
}

// expectWakeup expects the message about a grant that a heartbeat has found, unless it was received already, could have been lost with an
// earlier subscription, or is not sent, since the keeper has said that it cannot receive any.
func (e *Engine) expectWakeup(r *request, deaf bool) {
	since := e.instant(e.Subscriber.SubscribedSince(r.lock.Channel))
	if !queue.GrantExpected(since, r.asked(), deaf) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !r.notified && e.requests[r.serial] == r {
		e.expectLocked(r.serial, r.lock.Channel, false)
	}
}

// expectLocked expects a message about a request or a retained lease. The caller holds mu.
func (e *Engine) expectLocked(serial, channel string, recall bool) {
	by := e.now().Add(queue.WakeupTimeout)
	e.expected[serial] = queue.Message{By: by, Recall: recall, Channel: channel}
	e.Timers.SetIfSooner(&e.wakeupTimer, e.time(by))
}

// replaceStale replaces subscriptions on which expected messages did not come.
func (e *Engine) replaceStale(now time.Time) {
	var serials []string
	var messages []queue.Message
	e.mu.Lock()
	for serial, x := range e.expected {
		serials, messages = append(serials, serial), append(messages, x)
	}
	stale, next := e.doubts.Review(e.instant(now), messages)
	for i, x := range messages {
		if x.By == 0 {
			delete(e.expected, serials[i])
		}
	}
	e.mu.Unlock()
	if next > 0 {
		e.Timers.SetIfSooner(&e.wakeupTimer, e.time(next))
	}
	for _, channel := range stale {
		e.Config.Log.Warn("lockkeeper: a wake-up was sent but never came; replacing the subscription", "channel", channel)
		e.observe(Event{Type: WakeupLost})
		e.Subscriber.Replace(channel)
	}
}
