package keeper

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/queue"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
)

// A grant is published to the keeper of the waiter. A message can be lost; safety never depends on one, and a waiter that
// missed one learns of its grant
//
//   - from the reply to its next heartbeat, at most HeartbeatInterval later (update in queue.go);
//   - at once, if the connection was lost: when the new subscription is acknowledged, all waiters send a heartbeat;
//   - if the heartbeat finds a grant whose message does not come, the subscription is stale and is replaced (ExpectGrant);
//   - the script takes a grant back if the server sees no subscriber (deliver in lua/lib/admit.lua). The waiter keeps its place, and says
//     from then on that it does not count on its subscription (isUnsubscribed in queue.go): its grants stand.

// messages has, by their serials, those that messages of the keeper's subscription are for, and the messages that must come. It is safe for
// concurrent use.
type messages struct {
	k     *Keeper
	timer timers.Timer // for expected

	mu       sync.Mutex // guards what follows
	closed   bool
	requests map[string]*request // by serial
	expected map[string]queue.Message

	ignored         int       // messages since ignoredLogged
	ignoredLogged   time.Time // when ignored messages were last logged
	uncountedLogged time.Time // when warnUncounted last did
}

func newMessages(k *Keeper) *messages {
	m := &messages{k: k, requests: map[string]*request{}, expected: map[string]queue.Message{}}
	m.timer.Handler = timers.Func(m.replaceStale)
	return m
}

// Register makes messages with this serial find a request. It reports closed after Close, and taken if another request has the serial.
// With again, the request takes the place of that one: a part of a majority is asked for again under its token.
func (m *messages) Register(serial string, r *request, again bool) (taken, closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, true
	}
	if _, used := m.requests[serial]; used && !again {
		return true, false
	}
	m.requests[serial] = r
	return false, false
}

// Unregister removes a request. A later one of the same serial stays.
func (m *messages) Unregister(serial string, r *request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests[serial] == r {
		delete(m.requests, serial)
	}
}

// Close returns the requests, and lets no others be registered.
func (m *messages) Close() []*request {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return slices.Collect(maps.Values(m.requests))
}

// Requests returns how many requests have not ended.
func (m *messages) Requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests)
}

// Tokens returns those of the requests.
func (m *messages) Tokens() (list []string) {
	m.mu.Lock()
	requests := slices.Collect(maps.Values(m.requests))
	m.mu.Unlock()
	for _, r := range requests {
		list = append(list, r.Token())
	}
	return list
}

// Received handles a message.
func (m *messages) Received(payload string) {
	wakeups, err := protocol.ParseMessage(payload)
	if err != nil {
		m.logIgnored(err, time.Now())
		return
	}
	for _, x := range wakeups {
		m.mu.Lock()
		r := m.requests[x.Serial]
		if x.Fence > 0 || x.Broken != nil {
			delete(m.expected, x.Serial)
		}
		if x.Fence > 0 && r != nil {
			r.notified = true
		}
		m.mu.Unlock()
		switch {
		case x.Broken != nil:
			if r != nil {
				r.Broken(*x.Broken)
			}
			m.k.Broken(x.Serial, *x.Broken) // also a lease that the request was granted meanwhile
		case r == nil: // granted by a reply already, or abandoned: then its cleanup releases the grant
		case x.Fence > 0:
			r.Step(claim.Event{Kind: claim.Woken, Fence: x.Fence}, nil)
		default:
			r.Step(claim.Event{Kind: claim.RetryAt, At: m.k.Now().Add(server.Duration(x.RetryIn) + time.Millisecond)}, nil)
		}
	}
}

// ignoredInterval is the least time between two log lines about messages that are none of ours. Whoever may publish can send any number.
const ignoredInterval = time.Minute

// logIgnored logs that a message was ignored, and how many were since the last such line.
func (m *messages) logIgnored(err error, now time.Time) {
	m.mu.Lock()
	m.ignored++
	n := m.ignored
	due := m.ignoredLogged.IsZero() || now.Sub(m.ignoredLogged) >= ignoredInterval
	if due {
		m.ignored, m.ignoredLogged = 0, now
	}
	m.mu.Unlock()
	if due {
		m.k.Config.Log.Warn("lockkeeper: messages ignored that no keeper sends", "messages", n, "last_error", err)
	}
}

// uncountedInterval is the least time between two log lines about a subscription that is not counted on.
const uncountedInterval = time.Hour

// warnUncounted logs that waiters do not count on the subscription, and why.
func (m *messages) warnUncounted(channel, reason string) {
	m.mu.Lock()
	now := time.Now()
	due := m.uncountedLogged.IsZero() || now.Sub(m.uncountedLogged) >= uncountedInterval
	if due {
		m.uncountedLogged = now
	}
	m.mu.Unlock()
	if due {
		m.k.Config.Log.Warn("lockkeeper: wake-ups may not reach this process; its waiters keep their order and learn of their turns by heartbeats",
			"reason", reason, "channel", channel)
	}
}

// ExpectGrant expects the message about the grant of a request on a channel, unless it came, or the request has ended.
func (m *messages) ExpectGrant(serial, channel string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.requests[serial]; r != nil && !r.notified {
		by := m.k.Now().Add(queue.WakeupTimeout)
		m.expected[serial] = queue.Message{By: by, Channel: channel}
		m.k.Timers.SetIfSooner(&m.timer, m.k.Time(by))
	}
}

// replaceStale replaces subscriptions on which expected messages did not come.
func (m *messages) replaceStale(now time.Time) {
	var serials []string
	var messages []queue.Message
	m.mu.Lock()
	for serial, x := range m.expected {
		serials, messages = append(serials, serial), append(messages, x)
	}
	stale, next := queue.Review(m.k.Instant(now), messages)
	for i, x := range messages {
		if x.By == 0 {
			delete(m.expected, serials[i])
		}
	}
	m.mu.Unlock()
	if next > 0 {
		m.k.Timers.SetIfSooner(&m.timer, m.k.Time(next))
	}
	for _, channel := range stale {
		m.k.Config.Log.Warn("lockkeeper: a wake-up was sent but never came; replacing the subscription", "channel", channel)
		m.k.Report(Event{Type: WakeupLost})
		m.k.Subscriber.Replace(channel)
	}
}
