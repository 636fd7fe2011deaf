package lockkeeper

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Hooks are functions that are called on events, for metrics and traces. Unset hooks cost nothing. A hook is called
// synchronously, from a goroutine that may serve the whole keeper: it must not block, must not call methods of the
// keeper or of a lease, and must not panic, because a lease that was just granted would stay held. Hooks may be called
// concurrently; those of a lease are called after AcquireDone of the call that got it.
type Hooks struct {
	// AcquireStart is called when a call such as Lock or TryLock starts.
	AcquireStart func(Event)
	// AcquireDone is called before such a call returns. Duration is how long the call took. Err is its error; without one, Token
	// and Fence are those of the lease. Permits of a rate limit that were taken without a lease have no Token.
	AcquireDone func(Event)
	// Queued is called when a request was queued behind Position others. For the first request of a name in this keeper it is
	// called again when a heartbeat reports another position; the hook causes no command of its own.
	Queued func(Event)
	// WakeupReceived is called when a waiting request learned by a message that it was granted the lease with Token and Fence.
	WakeupReceived func(Event)
	// WakeupLost is called when a message that the server has sent was not received. The subscription is replaced. Waiters
	// are delayed by at most one HeartbeatInterval. The event is not about one lock: all fields but Context are zero.
	WakeupLost func(Event)
	// Renewed is called when a lease was renewed. Duration is the time since the grant.
	Renewed func(Event)
	// Lost is called once when a lease was lost. Duration is the time since the grant, and Err the reason.
	Lost func(Event)
	// Released is called when a lease was released. Duration is the time since the grant. Of a lease that callers share (Linger), Renewed and
	// Lost are called once, and Released for each caller, when it releases, also after Close. Of a lease of package rwlock, Upgrade and
	// Downgrade are calls of their own: when one has succeeded, Released is called for the call that had the lease until then.
	Released func(Event)
	// LimitChanged is called when a request of this keeper, or SetLimit, made Limit the limit in force of a semaphore or rate
	// limit, and the limit or its other settings (the window, the bound on concurrent calls) were different before. Token is that of the
	// request. The hook is not reliable if an answer was lost: a SetLimit that was retried always causes it, a request whose
	// first answer was lost never does.
	LimitChanged func(Event)
	// Leaked is called when the garbage collector finds that no reference is left to a Lease, or to a context of it, that was neither
	// released nor lost: the caller forgot to release it. Duration is the time since the grant. The first one is logged as a warning
	// as well, and others once a minute by their number. The lease is still renewed, until the keeper is closed or MaxLifetime is over,
	// so others are kept out. It is not released, because what it protects may still be in use. Leases with NoRenewal, and callers
	// that share the lease of another one (Linger), are not reported.
	Leaked func(Event)
	// Succeeded is called when Do of package once learns that its job has succeeded in this period: it has run the job, with the lease
	// of Token and Fence, or it found that an earlier run has succeeded, whose token is not known. Duration is the time since that
	// run started, which follows from this call's period if the run was another's.
	Succeeded func(Event)
}

// LossReason says why a lease was lost, as a word for metrics and logs. The error says more, and matches ErrUnavailable or
// *BrokenError if that is the reason. The reasons are
//
//	gone              the server does not have it: it expired there, or its key was deleted, evicted, overwritten or failed over
//	unavailable       renewals were not answered until the deadline
//	expired           it was not renewed until the deadline, as after a pause of the process
//	not_renewed       its TTL is over, and NoRenewal is set
//	max_lifetime      its MaxLifetime is over
//	no_majority       redlock: too few servers have it
//	broken            somebody has broken it
//
// A reason that is none of them is "".
type LossReason string

// lossBroken is the reason that package server does not know.
const lossBroken LossReason = "broken"

// LossReasons returns all reasons.
func LossReasons() []LossReason {
	all := []LossReason{lossBroken}
	for _, reason := range []server.LossReason{
		server.LossGone, server.LossUnavailable, server.LossExpired, server.LossNotRenewed, server.LossMaxLifetime, server.LossNoMajority,
	} {
		all = append(all, LossReason(reason))
	}
	return all
}

// lossReasonOf returns why a lease was lost, by its error.
func lossReasonOf(err error) LossReason {
	var broken *BrokenError
	if errors.As(err, &broken) {
		return lossBroken
	}
	return LossReason(server.LossReasonOf(err))
}

// Event is the argument of a hook. Fields that do not apply are zero.
type Event struct {
	// Context is the context of the call that the event is about, such as Lock, and carries the caller's trace. Later events of
	// the lease that the call acquired have the same context, which may have ended by then. An event that is not about one call
	// has context.Background().
	Context context.Context

	// Request numbers the calls of a keeper. All events of a call and of the lease that it acquired have the same number.
	Request uint64

	Kind     Kind          // the kind of the lock
	Name     string        // the name of the lock
	Mode     string        // "read" or "write" if it is a read-write lock
	Token    string        // the token of the request or lease, as it was granted
	Fence    uint64        // the fence of the lease
	Duration time.Duration // of the wait, or since the grant
	Position int           // the number of requests ahead in the queue
	Limit    int           // the limit in force
	Err      error         // why the call failed or the lease was lost
	Local    bool          // the lease was granted inside the process, without asking the server
	Reason   LossReason    // of Lost: which kind of reason Err is
}

// observer returns a function that calls the hook of an event, or nil if no hook is set.
func (h Hooks) observer() func(keeper.Event) {
	hooks := map[keeper.EventType]func(Event){
		keeper.AcquireStart:   h.AcquireStart,
		keeper.AcquireDone:    h.AcquireDone,
		keeper.Queued:         h.Queued,
		keeper.WakeupReceived: h.WakeupReceived,
		keeper.WakeupLost:     h.WakeupLost,
		keeper.Renewed:        h.Renewed,
		keeper.Lost:           h.Lost,
		keeper.Released:       h.Released,
		keeper.LimitChanged:   h.LimitChanged,
		keeper.Leaked:         h.Leaked,
		keeper.Succeeded:      h.Succeeded,
	}
	for event, hook := range hooks {
		if hook == nil {
			delete(hooks, event)
		}
	}
	if len(hooks) == 0 {
		return nil
	}
	return func(e keeper.Event) {
		if hook := hooks[e.Type]; hook != nil {
			ctx := e.Context
			if ctx == nil {
				ctx = context.Background()
			}
			var reason LossReason
			if e.Type == keeper.Lost {
				reason = lossReasonOf(e.Err)
			}
			hook(Event{ctx, e.Request, Kind(e.Kind), e.Name, e.Mode, e.Token, e.Fence, e.Duration, e.Position, e.Limit, e.Err, e.Local, reason})
		}
	}
}
