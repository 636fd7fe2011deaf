package engine

import "time"

// What is the kind of an event.
type What int

// The events. Package lockkeeper shows them to users as hooks.
const (
	AcquireBegan What = iota
	AcquireEnded
	Renewed
	Lost
	Released
	WakeupHeard
	WakeupMissed
	Waiting
	LimitChanged
)

// Event is something that happened to one request or lease.
type Event struct {
	What     What
	Kind     string // "mutex"
	Name     string
	Token    string
	Fence    uint64
	Took     time.Duration // waited, or held
	Position int           // ahead of this waiter in line
	Limit    int           // in force from now on
	Err      error
}
