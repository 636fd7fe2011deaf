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
//   - at once, if the connection was lost: when the new subscription is acknowledged, all waiters send a heartbeat (Subscribed);
//   - if the heartbeat finds a grant whose message does not come, the subscription is stale and is replaced (ExpectGrant);
//   - the script itself takes a grant back if nobody received its message (deliver in lua/lib/admit.lua), unless the waiter's last
//     heartbeat said that it cannot receive any (isUnsubscribed in queue.go).

// Receiver is a request. Its methods are called without any mutex of this package.
type Receiver interface {
	Woken(claim.Event) // a message says that it was granted the lease, or asks for a heartbeat
	Broken(protocol.Breaker)
	Closed() // the keeper is closed
}

// Recalled is a retained lease, or the request for it. Its methods are called without any mutex of this package.
type Recalled interface {
	Recall() // a message says that somebody waits whom the lease excludes
	AskNow() // a recall may have been lost
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
	retained map[string]retained // by serial
	channels map[string]channel  // of retained
	expected map[string]queue.Message
	doubts   queue.Doubts

	ignored       int       // messages since ignoredLogged
	ignoredLogged time.Time // when ignored messages were last logged
}

// receiver is a request, and whether a message about its grant came.
type receiver struct {
	Receiver
	notified bool
}

// retained is a retained lease, the channel of its recall, and whether that came.
type retained struct {
	Recalled
	channel  string
	notified bool
}

// channel is the retained leases whose recalls are published on one channel, by serial. On a Cluster each name has one of its own.
type channel map[string]Recalled

// NewMessages returns a router without receivers. It calls broken and lost without any mutex of this package.
func NewMessages(broken func(serial string, b protocol.Breaker), lost func()) *Messages {
	m := &Messages{
		broken: broken, lost: lost,
		requests: map[string]receiver{}, retained: map[string]retained{}, channels: map[string]channel{}, expected: map[string]queue.Message{},
	}
	m.timer.Handler = timers.Func(m.replaceStale)
	return m
}

// Begin sets the server whose messages come. It is called before anything else.
func (m *Messages) Begin(s *server.Server) { m.s = s }

// Register makes messages with this serial find a request, and those that recall a retained lease the other one, if it is not nil. It reports
// taken if the serial is in use, unless again is set: then an earlier request with it has ended, or will find nothing. It reports closed
// after Close.
func (m *Messages) Register(serial string, r Receiver, x Recalled, channelOf string, again bool) (taken, closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, true
	}
	if _, used := m.requests[serial]; used && !again {
		return true, false
	}
	if _, used := m.retained[serial]; used && !again {
		return true, false
	}
	m.requests[serial] = receiver{Receiver: r}
	if x != nil {
		m.retained[serial] = retained{Recalled: x, channel: channelOf}
		if m.channels[channelOf] == nil {
			m.channels[channelOf] = channel{}
		}
		m.channels[channelOf][serial] = x
	}
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

// Forget removes a retained lease, if it was registered.
func (m *Messages) Forget(serial string, x Recalled) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.retained[serial]
	if known.Recalled != x {
		return
	}
	delete(m.retained, serial)
	if delete(m.channels[known.channel], serial); len(m.channels[known.channel]) == 0 {
		delete(m.channels, known.channel)
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

// Received handles a message.
func (m *Messages) Received(payload string) {
	wakeups, err := protocol.ParseMessage(payload)
	if err != nil {
		m.logIgnored(err, time.Now())
		return
	}
	for _, x := range wakeups {
		m.mu.Lock()
		r, recalled := m.requests[x.Serial], m.retained[x.Serial]
		if x.Fence > 0 || x.Recalled || x.Broken != nil {
			delete(m.expected, x.Serial)
		}
		if x.Fence > 0 && r.Receiver != nil {
			r.notified = true
			m.requests[x.Serial] = r
		}
		if x.Recalled && recalled.Recalled != nil {
			recalled.notified = true
			m.retained[x.Serial] = recalled
		}
		m.mu.Unlock()
		switch {
		case x.Broken != nil:
			if r.Receiver != nil {
				r.Broken(*x.Broken)
			}
			m.broken(x.Serial, *x.Broken) // also a lease that the request was granted meanwhile
		case x.Recalled && recalled.Recalled == nil: // it was given back
		case x.Recalled:
			recalled.Recall()
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

// Subscribed handles the acknowledgement of a subscription. Messages may have been lost before it, so retained leases ask whether they were
// recalled.
func (m *Messages) Subscribed(channel string) {
	m.mu.Lock()
	list := slices.Collect(maps.Values(m.channels[channel]))
	m.mu.Unlock()
	for _, x := range list {
		x.AskNow()
	}
}

// ExpectGrant expects the message about the grant of a request on a channel, unless it came, or the request has ended.
func (m *Messages) ExpectGrant(serial, channel string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.requests[serial]; r.Receiver != nil && !r.notified {
		m.expectLocked(serial, channel, false)
	}
}

// ExpectRecall expects the message about the recall of a retained lease, granted at that time, unless it came, or could have been lost with
// an earlier subscription.
func (m *Messages) ExpectRecall(serial string, granted claim.Instant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.retained[serial]
	if x.Recalled != nil && !x.notified && queue.RecallExpected(m.s.Instant(m.s.Subscriber.SubscribedSince(x.channel)), granted) {
		m.expectLocked(serial, x.channel, true)
	}
}

func (m *Messages) expectLocked(serial, channel string, recall bool) {
	by := m.s.Now().Add(queue.WakeupTimeout)
	m.expected[serial] = queue.Message{By: by, Recall: recall, Channel: channel}
	m.s.Timers.SetIfSooner(&m.timer, m.s.Time(by))
}

// replaceStale replaces subscriptions on which expected messages did not come.
func (m *Messages) replaceStale(now time.Time) {
	var serials []string
	var messages []queue.Message
	m.mu.Lock()
	for serial, x := range m.expected {
		serials, messages = append(serials, serial), append(messages, x)
	}
	stale, next := m.doubts.Review(m.s.Instant(now), messages)
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
