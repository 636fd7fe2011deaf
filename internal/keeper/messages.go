package keeper

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// The server publishes a message about each grant to the waiter's keeper. A message can be lost. Then nothing is granted twice, because the
// grant is at the server; and the waiter learns of it all the same:
//
//   - The next heartbeat finds the grant, at most HeartbeatInterval later (update in queue.go).
//   - If the connection was lost, all waiters send heartbeats as soon as the new subscription is acknowledged (Keeper.subscribed).
//   - A connection that is up but dead does not answer a PING, and is replaced (internal/pubsub/ping.go). The PING is sent after a silence of 5 s,
//     and at once if a heartbeat finds a grant whose message has not come (CheckGrant).
//   - If the server sees no subscriber, the script takes the grant back (deliver in lua/lib/admit.lua). The waiter rejoins in its place, and
//     says from then on that it does not count on messages, so its grants stand (rejoin, isUnsubscribed in queue.go).

// messages has the requests that messages of the keeper's channels may be about. It is safe for concurrent use.
type messages struct {
	k       *Keeper
	lostLog server.LogLimit // of lost messages

	mu       sync.Mutex // guards what follows
	closed   bool
	requests map[string]*request // by serial
	checked  map[string]*request // by serial; whether their messages come is checked. Heartbeats have granted them, so they are in requests no more

	ignored       int       // messages that were ignored since ignoredLogged
	ignoredLogged time.Time // when that was last logged
}

func newMessages(k *Keeper) *messages {
	return &messages{k: k, requests: map[string]*request{}, checked: map[string]*request{}}
}

// Register makes messages with this serial find a request. It reports closed after Close, and taken if another request has the serial. If again is
// set, the request replaces the other one, because a part of a majority is asked for again under its token.
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

// Unregister removes a request. A later request of the same serial stays.
func (m *messages) Unregister(serial string, r *request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests[serial] == r {
		delete(m.requests, serial)
	}
}

// Close returns the requests, and makes Register refuse others.
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

// Tokens returns the tokens of the requests.
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
		if granted := cmp.Or(r, m.checked[x.Serial]); x.Fence > 0 && granted != nil {
			granted.notified = true
		}
		m.mu.Unlock()
		switch {
		case x.Broken != nil:
			if r != nil {
				r.Broken(*x.Broken)
			}
			m.k.Broken(x.Serial, *x.Broken) // also a lease that the request was granted meanwhile
		case r == nil: // the request was granted by a reply, or given up: then its cleanup releases the grant
		case x.Fence > 0:
			r.Step(claim.Event{Kind: claim.Woken, Fence: x.Fence}, nil)
		default:
			r.Step(claim.Event{Kind: claim.RetryAt, At: m.k.Now().Add(claim.Duration(x.RetryIn) + time.Millisecond)}, nil)
		}
	}
}

// ignoredInterval is the least time between two log lines about messages that no keeper sends. Whoever may publish can send any number.
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

// CheckGrant is called when a heartbeat has found a grant. If the grant's message has not come by the answer to a PING, it was lost, and the
// subscription is replaced.
func (m *messages) CheckGrant(r *request, channel string) {
	serial := r.serial
	m.mu.Lock()
	check := m.requests[serial] == r && !r.notified // else it knows of the grant
	if check {
		m.checked[serial] = r
	}
	m.mu.Unlock()
	if !check {
		return
	}
	m.k.Subscriber.Check(channel, func(known bool) (lost bool) {
		m.mu.Lock()
		lost = known && !r.notified
		delete(m.checked, serial)
		m.mu.Unlock()
		if lost {
			m.lostLog.Log(m.k.Config.Log, slog.LevelWarn, "lockkeeper: a wake-up was sent but never came; replacing the subscription", "channel", channel)
			m.k.Report(Event{Type: WakeupLost})
		}
		return lost
	})
}
