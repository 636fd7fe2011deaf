package keeper

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// EventType is the type of an event.
type EventType int

// The events. Package lockkeeper documents them as hooks.
const (
	AcquireStart EventType = iota
	AcquireDone
	Renewed
	Lost
	Released
	WakeupReceived
	WakeupLost
	Queued
	LimitChanged
	Leaked
	Succeeded
	Refused // for an Observer only: the server does not have the lease any more, and is asked why; Lost follows
)

// The modes of a read-write lock.
const (
	ModeRead  = "read"
	ModeWrite = "write"
)

// Event is something that happened to one request or lease.
type Event struct {
	Type     EventType
	Context  context.Context // of the call; nil if the event is not about a call
	Request  uint64          // the number of the call; 0 if the event is not about a call
	Mode     string          // ModeRead or ModeWrite of a read-write lock, else ""
	Kind     string          // "mutex"
	Name     string
	Token    string
	Fence    uint64
	Duration time.Duration // of the wait, or since the grant
	Position int           // the number of waiters ahead in the queue
	Limit    int           // the limit now in force
	Local    bool          // it was granted inside the process
	Err      error
}

// Observation identifies the call that events are about: the events of a request, and of the lease that it was granted. It is nil if the keeper
// has no observer. Events of the lease are reported only after the call has ended, and only if it has succeeded. For example, Close releases a
// lease just before its call returns: the observer gets AcquireDone and then Released or, if the call fails because ctx has ended, no Released.
type Observation struct {
	observe func(Event)
	lock    *server.Resource
	ctx     context.Context
	request uint64
	mode    string

	mu    sync.Mutex // guards what follows
	got   time.Time  // when the call has ended or, until then, when it began
	calls bool       // the call has started and has not ended
	fails bool       // the call has failed
	later []Event    // of leases, while the call is under way
}

// Starts reports that the call starts.
func (o *Observation) Starts() {
	if o != nil {
		o.calls = true
		o.observe(newEvent(o.lock, AcquireStart, o))
	}
}

// Ends reports that the call ends. Without an error the caller gets the lease of the token; local says that it was granted inside the process.
func (o *Observation) Ends(token string, fence uint64, local bool, err error) {
	if o == nil {
		return
	}
	ev, now := newEvent(o.lock, AcquireDone, o), time.Now()
	ev.Token, ev.Fence, ev.Local, ev.Duration, ev.Err = token, fence, local, now.Sub(o.got), err
	o.observe(ev)
	o.mu.Lock()
	later := o.later
	o.got, o.calls, o.fails, o.later = now, false, err != nil, nil
	o.mu.Unlock()
	for _, ev := range later {
		o.OfLease(ev)
	}
}

// OfLease reports an event of the lease that the call got, with the time since then.
func (o *Observation) OfLease(ev Event) {
	if o == nil {
		return
	}
	o.mu.Lock()
	ev.Duration = time.Since(o.got)
	now := !o.calls && !o.fails
	if o.calls {
		o.later = append(o.later, ev)
	}
	o.mu.Unlock()
	if now {
		o.observe(ev)
	}
}

// events passes the events of a keeper to its observer.
type events struct {
	observe func(Event)   // nil: there is none
	calls   atomic.Uint64 // the number of the last call
}

// Report passes an event to the observer, if there is one.
func (es *events) Report(ev Event) {
	if es.observe != nil {
		es.observe(ev)
	}
}

// newEvent returns an event of a lock, for a call if o is not nil.
func newEvent(l *server.Resource, t EventType, o *Observation) Event {
	ev := Event{Type: t, Kind: l.Kind(), Name: l.Name()}
	if o != nil {
		ev.Context, ev.Request, ev.Mode = o.ctx, o.request, o.mode
	}
	return ev
}

// modeOf returns the mode of a request with these flags, "" if it is not of a read-write lock.
func modeOf(flags string) string {
	switch {
	case strings.ContainsAny(flags, protocol.FlagWrite+protocol.FlagUpgrade):
		return ModeWrite
	case strings.Contains(flags, protocol.FlagRead):
		return ModeRead
	}
	return ""
}
