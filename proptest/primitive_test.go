package proptest

import (
	"fmt"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"pgregory.net/rapid"
)

// primitive is what the simulation needs to know of a primitive. The value belongs to one world. Methods with a
// world are called with its mutex held.
type primitive interface {
	scripts() *lua.Set
	bare() bool
	// leases reads the leases at the server into the view, including expired ones.
	leases(*miniredis.Miniredis, protocol.Keys, *view)

	// settings draws what the requests of a world have in common.
	settings(*rapid.T)
	// actions returns additional actions.
	actions(*world) map[string]func(*rapid.T)
	// wants draws the use of a request.
	wants(*rapid.T, *request)
	// get makes the request.
	get(*request) (*lockkeeper.Lease, error)

	// together reports whether the leases of the view may be held at the same time.
	together(*world, *view) bool
	// before reports whether a connected waiter precedes a token that was granted a lease in a step. stood: the
	// token was in the queue, at this place.
	before(w *world, s *step, y waiting, token string, at float64, stood bool) bool
	// excused reports whether the step had to remove the waiter.
	excused(w *world, s *step, token string) bool
	// stepped checks what else must hold after a step.
	stepped(*world, *step)
	// owed returns connected waiters that may be granted a lease.
	owed(*world, *view) []string
	// vacant reports whether the lock is free for whoever asks.
	vacant(*view) bool
	// free reports whether a try must succeed.
	free(*view) bool
	// lingers returns how long data remains after the end of a lease.
	lingers() time.Duration
	// serverDegraded is called when the server has lost data or its clock was set. was and now are its times, in µs.
	serverDegraded(lost bool, was, now int64)
	// queuesAll reports whether all waiters are in the queue at the server, rather than one per process.
	queuesAll() bool
}

// tokenName returns the name of a token's request.
func (w *world) tokenName(token string) string {
	if t := w.terms(token); !t.foreign {
		return fmt.Sprintf("request %d", t.number)
	}
	return fmt.Sprintf("%q", token)
}

func (w *world) holdersOf(v *view) []string {
	var list []string
	for token := range v.leases {
		list = append(list, w.tokenName(token))
	}
	slices.Sort(list)
	return list
}

// firstConnected returns the first connected waiter, or nil.
func (w *world) firstConnected(v *view) *waiting {
	for i, y := range v.queue {
		if w.connected(v, y.token) {
			return &v.queue[i]
		}
	}
	return nil
}

// single is the common part of exclusive locks.
type single struct{}

func (single) leases(m *miniredis.Miniredis, k protocol.Keys, v *view) { leasesInString(m, k, v) }
func (single) settings(*rapid.T)                                       {}
func (single) actions(*world) map[string]func(*rapid.T)                { return nil }
func (single) wants(*rapid.T, *request)                                {}
func (single) together(_ *world, v *view) bool                         { return len(v.leases) <= 1 }
func (single) excused(*world, *step, string) bool                      { return false }
func (single) stepped(*world, *step)                                   {}
func (s single) free(v *view) bool                                     { return s.vacant(v) && len(v.queue) == 0 }
func (single) vacant(v *view) bool                                     { return len(v.leases) == 0 && !v.leftFree() }
func (single) lingers() time.Duration                                  { return 0 }
func (single) serverDegraded(bool, int64, int64)                       {}

// owed returns the first connected waiter, if the lock is free.
func (s single) owed(w *world, v *view) []string {
	if y := w.firstConnected(v); y != nil && s.vacant(v) {
		return []string{y.token}
	}
	return nil
}
