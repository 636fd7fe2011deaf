package wait

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

// Receiver is a request. Its methods are called without any mutex of this package.
type Receiver interface {
	Woken(claim.Event) // a message says that it was granted the lease, or asks for a heartbeat
	Broken(protocol.Breaker)
	Closed() // the keeper is closed
	Token() string
}

// Messages has, by their serials, those that messages of the keeper's subscription are for, and the messages that must come. It is safe for
// concurrent use.
type Messages struct {
	s      *server.Server
	broken func(serial string, b protocol.Breaker) // called for each message that a lease or a request was broken
	lost   func()                                  // called for each subscription that is replaced, since a message did not come
	timer  timers.Timer                            // for expected

	mu       sync.Mutex // guards what follows
	closed   bool
	requests map[string]receiver // by serial
	expected map[string]queue.Message

	ignored         int       // messages since ignoredLogged
	ignoredLogged   time.Time // when ignored messages were last logged
	uncountedLogged time.Time // when warnUncounted last did
}

// receiver is a request, and whether a message about its grant came.
type receiver struct {
	Receiver
	notified bool
}

// NewMessages returns a router without receivers. It calls broken and lost without any mutex of this package.
func NewMessages(broken func(serial string, b protocol.Breaker), lost func()) *Messages {
	m := &Messages{
		broken: broken, lost: lost,
		requests: map[string]receiver{}, expected: map[string]queue.Message{},
	}
	m.timer.Handler = timers.Func(m.replaceStale)
	return m
}

// Begin sets the server whose messages come. It is called before anything else.
func (m *Messages) Begin(s *server.Server) { m.s = s }

// Register makes messages with this serial find a request. It reports closed after Close, and taken if another request has the serial.
// With again, the request takes the place of that one: a part of a majority is asked for again under its token.
func (m *Messages) Register(serial string, r Receiver, again bool) (taken, closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, true
	}
	if _, used := m.requests[serial]; used && !again {
		return true, false
	}
	m.requests[serial] = receiver{Receiver: r}
	return false, false
}

// Unregister removes a request. A later one of the same serial stays.
func (m *Messages) Unregister(serial string, r Receiver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests[serial].Receiver == r {
		delete(m.requests, serial)
	}
}

// Close returns the requests, and lets no others be registered.
func (m *Messages) Close() (list []Receiver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, r := range m.requests {
		list = append(list, r.Receiver)
	}
	return list
}

// Requests returns how many requests have not ended.
func (m *Messages) Requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests)
}

// Tokens returns those of the requests.
func (m *Messages) Tokens() (list []string) {
	m.mu.Lock()
	requests := slices.Collect(maps.Values(m.requests))
	m.mu.Unlock()
	for _, r := range requests {
		list = append(list, r.Token())
	}
	return list
}

// Received handles a message.
func (m *Messages) Received(payload string) {
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
		if x.Fence > 0 && r.Receiver != nil {
			r.notified = true
			m.requests[x.Serial] = r
		}
		m.mu.Unlock()
		switch {
		case x.Broken != nil:
			if r.Receiver != nil {
				r.Broken(*x.Broken)
			}
			m.broken(x.Serial, *x.Broken) // also a lease that the request was granted meanwhile
		case r.Receiver == nil: // granted by a reply already, or abandoned: then its cleanup releases the grant
		case x.Fence > 0:
			r.Woken(claim.Event{Kind: claim.Woken, Fence: x.Fence})
		default:
			r.Woken(claim.Event{Kind: claim.RetryAt, At: m.s.Now().Add(server.Duration(x.RetryIn) + time.Millisecond)})
		}
	}
}

// ignoredInterval is the least time between two log lines about messages that are none of ours. Whoever may publish can send any number.
const ignoredInterval = time.Minute

// logIgnored logs that a message was ignored, and how many were since the last such line.
func (m *Messages) logIgnored(err error, now time.Time) {
	m.mu.Lock()
	m.ignored++
	n := m.ignored
	due := m.ignoredLogged.IsZero() || now.Sub(m.ignoredLogged) >= ignoredInterval
	if due {
		m.ignored, m.ignoredLogged = 0, now
	}
	m.mu.Unlock()
	if due {
		m.s.Config.Log.Warn("lockkeeper: messages ignored that no keeper sends", "messages", n, "last_error", err)
	}
}

// uncountedInterval is the least time between two log lines about a subscription that is not counted on.
const uncountedInterval = time.Hour

// warnUncounted logs that waiters do not count on the subscription, and why.
func (m *Messages) warnUncounted(channel, reason string) {
	m.mu.Lock()
	now := time.Now()
	due := m.uncountedLogged.IsZero() || now.Sub(m.uncountedLogged) >= uncountedInterval
	if due {
		m.uncountedLogged = now
	}
	m.mu.Unlock()
	if due {
		m.s.Config.Log.Warn("lockkeeper: wake-ups may not reach this process; its waiters keep their order and learn of their turns by heartbeats",
			"reason", reason, "channel", channel)
	}
}

// ExpectGrant expects the message about the grant of a request on a channel, unless it came, or the request has ended.
func (m *Messages) ExpectGrant(serial, channel string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.requests[serial]; r.Receiver != nil && !r.notified {
		by := m.s.Now().Add(queue.WakeupTimeout)
		m.expected[serial] = queue.Message{By: by, Channel: channel}
		m.s.Timers.SetIfSooner(&m.timer, m.s.Time(by))
	}
}

// replaceStale replaces subscriptions on which expected messages did not come.
func (m *Messages) replaceStale(now time.Time) {
	var serials []string
	var messages []queue.Message
	m.mu.Lock()
	for serial, x := range m.expected {
		serials, messages = append(serials, serial), append(messages, x)
	}
	stale, next := queue.Review(m.s.Instant(now), messages)
	for i, x := range messages {
		if x.By == 0 {
			delete(m.expected, serials[i])
		}
	}
	m.mu.Unlock()
	if next > 0 {
		m.s.Timers.SetIfSooner(&m.timer, m.s.Time(next))
	}
	for _, channel := range stale {
		m.s.Config.Log.Warn("lockkeeper: a wake-up was sent but never came; replacing the subscription", "channel", channel)
		m.lost()
		m.s.Subscriber.Replace(channel)
	}
}
