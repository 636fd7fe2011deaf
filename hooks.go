package lockkeeper

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/engine"
)

// Hooks are called when something happens, for metrics and traces. Unset ones cost nothing. They are called
// synchronously, from the goroutine in which it happens, which may be one that serves the whole keeper: a hook must
// not block and must not call the keeper or a lease. They may be called concurrently.
type Hooks struct {
	// AcquireStart: Lock or TryLock was called.
	AcquireStart func(Event)
	// AcquireDone: it is about to return, after Duration, with Err or with the lease of Token and Fence.
	AcquireDone func(Event)
	// Queued: the request stands in line, behind Position others. It is told once at the beginning, and of the first
	// request of this keeper and name again whenever a heartbeat has brought a new position with it; no command is
	// sent to find out.
	Queued func(Event)
	// WakeupReceived: a message brought the lease of Token and Fence.
	WakeupReceived func(Event)
	// WakeupLost: a message that the server says it has sent did not come; the subscription is being replaced.
	// Waiters lose at most one heartbeat by it. Only the event itself is told, no name.
	WakeupLost func(Event)
	// Renewed: the lease, held for Duration so far, was renewed.
	Renewed func(Event)
	// Lost: the lease was lost, after Duration; Err says why. Told once.
	Lost func(Event)
	// Released: the lease was given back, after Duration.
	Released func(Event)
	// LimitChanged: a request of this keeper for a semaphore, or its SetLimit, has made Limit the limit in force; another
	// was before, or another AtOnce or Per. Token is that of the request. Of a SetLimit that was repeated, since an answer
	// was lost, it is told in any case; of a request of which the first answer was lost it is not.
	LimitChanged func(Event)
}

// Event is what a hook is told. Fields that an event does not have are zero.
type Event struct {
	Kind     string        // the primitive: "mutex"
	Name     string        // what is locked
	Token    string        // of the request or lease
	Fence    uint64        // of the lease
	Duration time.Duration // waited or held so far
	Position int           // how many stand in line before the request
	Limit    int           // of a semaphore
	Err      error
}

// observer makes one function out of the hooks, or nil if none is set.
func (h Hooks) observer() func(engine.Event) {
	by := map[engine.EventType]func(Event){
		engine.AcquireStart:   h.AcquireStart,
		engine.AcquireDone:    h.AcquireDone,
		engine.Queued:         h.Queued,
		engine.WakeupReceived: h.WakeupReceived,
		engine.WakeupLost:     h.WakeupLost,
		engine.Renewed:        h.Renewed,
		engine.Lost:           h.Lost,
		engine.Released:       h.Released,
		engine.LimitChanged:   h.LimitChanged,
	}
	for what, hook := range by {
		if hook == nil {
			delete(by, what)
		}
	}
	if len(by) == 0 {
		return nil
	}
	return func(e engine.Event) {
		if hook := by[e.Type]; hook != nil {
			hook(Event{e.Kind, e.Name, e.Token, e.Fence, e.Duration, e.Position, e.Limit, e.Err})
		}
	}
}
