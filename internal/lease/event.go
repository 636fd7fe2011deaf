package lease

import (
	"context"
	"strings"
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
	Recalled
	Leaked
	Succeeded
)

// The modes of a read-write lock.
const (
	ModeRead  = "read"
	ModeWrite = "write"
)

// Event is something that happened to one request or lease.
type Event struct {
	Type     EventType
	Context  context.Context // of the call; nil if the event is not about one
	Request  uint64          // the number of the call; 0 if the event is not about one
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

// Observation identifies the call that events are about: of a request, and of the lease that it was granted. Its fields do not
// change. It is nil where the keeper has no observer.
type Observation struct {
	ctx     context.Context
	request uint64
	mode    string
}

// events passes the events of a keeper to its observer.
type events struct {
	observe func(Event)   // nil: there is none
	calls   atomic.Uint64 // of which it was told
}

// newObservation returns what the events of a new call have in common, or nil if there is no observer.
func (es *events) newObservation(ctx context.Context, flags string) *Observation {
	if es.observe == nil {
		return nil
	}
	return &Observation{ctx, es.calls.Add(1), modeOf(flags)}
}

// report passes an event to the observer, if there is one.
func (es *events) report(ev Event) {
	if es.observe != nil {
		es.observe(ev)
	}
}

// newEvent returns an event of a lock, for a call if o is not nil.
func newEvent(l *server.Lock, t EventType, o *Observation) Event {
	ev := Event{Type: t, Kind: l.Kind(), Name: l.Name()}
	if o != nil {
		ev.Context, ev.Request, ev.Mode = o.ctx, o.request, o.mode
	}
	return ev
}

// modeOf returns what a request with these flags asks for.
func modeOf(flags string) string {
	switch {
	case strings.ContainsAny(flags, protocol.FlagWrite+protocol.FlagUpgrade):
		return ModeWrite
	case strings.ContainsAny(flags, protocol.FlagRead+protocol.FlagDowngrade):
		return ModeRead
	}
	return ""
}
