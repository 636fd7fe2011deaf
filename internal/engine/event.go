package engine

import "time"

// EventType is the kind of an event.
type EventType int

// The events. Package lockkeeper shows them to users as hooks.
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
)

// Event is something that happened to one request or lease.
type Event struct {
	Type     EventType
	Kind     string // "mutex"
	Name     string
	Token    string
	Fence    uint64
	Duration time.Duration // waited, or held
	Position int           // ahead of this waiter in line
	Limit    int           // in force from now on
	Err      error
}
