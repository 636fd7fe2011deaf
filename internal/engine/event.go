package engine

import "time"

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
)

// Event is something that happened to one request or lease.
type Event struct {
	Type     EventType
	Kind     string // "mutex"
	Name     string
	Token    string
	Fence    uint64
	Duration time.Duration // of the wait, or since the grant
	Position int           // the number of waiters ahead in the queue
	Limit    int           // the limit now in force
	Local    bool          // it was granted inside the process
	Err      error
}
