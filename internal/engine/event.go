package engine

import (
	"context"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
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

// NewObservation returns what the events of a new call have in common, or nil if there is no observer. The flags are those of the
// request's token.
func (l *Lock) NewObservation(ctx context.Context, flags string) *Observation {
	if l.e.cfg.Observe == nil {
		return nil
	}
	return &Observation{ctx, l.e.observed.Add(1), modeOf(flags)}
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

// Event returns an event of the lock, for a call if o is not nil.
func (l *Lock) Event(t EventType, o *Observation) Event {
	ev := Event{Type: t, Kind: l.spec.Scripts.Kind, Name: l.spec.Name}
	if o != nil {
		ev.Context, ev.Request, ev.Mode = o.ctx, o.request, o.mode
	}
	return ev
}

// Observe passes an event to the keeper's observer.
func (l *Lock) Observe(ev Event) { l.e.observe(ev) }

// observe reports an event to the observer, if there is one.
func (e *Engine) observe(ev Event) {
	if e.cfg.Observe != nil {
		e.cfg.Observe(ev)
	}
}
