package lockkeeper

import "time"

// Stats is what a keeper does at one moment; see [Keeper.Stats].
type Stats struct {
	// Leases are those that are held and not yet released. A lease that callers of the process share (Linger) counts once, also while
	// nobody uses it, and the part of a redlock at the keeper of its server.
	Leases int

	// Requests are the calls that ask the server for a lease; Waiting are those of them that the server has queued. Callers that
	// wait for other callers of the process do not count: of those that want one mutex, one asks the server.
	Requests, Waiting int

	// Unsent are the commands that wait for a connection, also some whose callers have left; InFlight are the pipelines that were sent and are not answered.
	Unsent, InFlight int

	// Silence is for how long a server has answered nothing though pipelines are under way; or, if its last one has failed, for how long
	// it had not by then. Of several nodes it is that of the one that is silent for longest. 0 if each has answered the last one, and if
	// the keeper has neither leases nor requests.
	Silence time.Duration

	// Channels are those on which the keeper wants messages; Unsubscribed are those of them of which the server has not acknowledged the
	// subscription, or has refused it. Their waiters learn of their grants by heartbeats.
	Channels, Unsubscribed int

	// SubscriptionSilence is for how long nothing has come on a connection with subscriptions that waiters use; of several it is that of
	// the one that is silent for longest. After 5 s it is sent a PING, and after 10 s it is replaced. 0 if nobody waits.
	SubscriptionSilence time.Duration
}

// Stats returns what the keeper does now, for metrics and health checks, as DB.Stats of database/sql does. It sends nothing and does
// not block; each field is read on its own, so they need not fit together. It is safe for concurrent use, also after Close.
func (k *Keeper) Stats() Stats {
	s := Stats{Leases: k.inner.Leases(), Requests: k.inner.Requests(), Waiting: k.inner.Waiters()}
	if s.Unsent, s.InFlight, s.Silence = k.inner.Transport.Stats(); s.Leases+s.Requests+s.Unsent+s.InFlight == 0 {
		s.Silence = 0
	}
	s.Channels, s.Unsubscribed, s.SubscriptionSilence = k.inner.Subscriber.Stats()
	return s
}
