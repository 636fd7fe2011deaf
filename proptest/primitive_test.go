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

// primitive is what the simulation needs to know of one. The value belongs to one world. Functions that are given a
// world are called with its lock.
type primitive interface {
	scripts() *lua.Set
	bare() bool
	// leases reads those that lie at the server into the view; also such as are over.
	leases(*miniredis.Miniredis, protocol.Keys, *view)

	// settings draws what is common to the requests of a world.
	settings(*rapid.T)
	// actions is what may happen besides.
	actions(*world) map[string]func(*rapid.T)
	// wants draws what a request is for.
	wants(*rapid.T, *request)
	// get makes the request.
	get(*request) (*lockkeeper.Lease, error)

	// together says whether the leases of the view may be held at the same time.
	together(*world, *view) bool
	// before says whether a waiter who is connected goes before a token that was granted a lease in a step. Stood says
	// that the token was in line, and at where.
	before(w *world, s *step, y waiting, token string, at float64, stood bool) bool
	// excused says whether the waiter had to be taken out of line in the step.
	excused(w *world, s *step, token string) bool
	// stepped looks at what else should be so after a step.
	stepped(*world, *step)
	// owed is some of those connected who may be granted a lease.
	owed(*world, *view) []string
	// vacant says whether nobody holds the lock, and whoever asks may have it.
	vacant(*view) bool
	// free says whether a try has to succeed.
	free(*view) bool
	// lingers is for how long something stays after the end of a lease.
	lingers() time.Duration
	// serverDegraded is called when the server has lost data or thinks that time has passed; or when its clock was set back. Was
	// and now are the time there, in µs.
	serverDegraded(lost bool, was, now int64)
	// queuesAll says whether all who wait stand in line at the server; else one of each process does.
	queuesAll() bool
}

// tokenName names a token by its request.
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

// firstConnected is the first of the queue who is, or nil.
func (w *world) firstConnected(v *view) *waiting {
	for i, y := range v.queue {
		if w.connected(v, y.token) {
			return &v.queue[i]
		}
	}
	return nil
}

// single is what the locks have in common that one holder has at a time.
type single struct{}

func (single) leases(m *miniredis.Miniredis, k protocol.Keys, v *view) { leasesInString(m, k, v) }
func (single) settings(*rapid.T)                                       {}
func (single) actions(*world) map[string]func(*rapid.T)                { return nil }
func (single) wants(*rapid.T, *request)                                {}
func (single) together(_ *world, v *view) bool                         { return len(v.leases) <= 1 }
func (single) excused(*world, *step, string) bool                      { return false }
func (single) stepped(*world, *step)                                   {}
func (single) free(v *view) bool                                       { return len(v.leases) == 0 && len(v.queue) == 0 }
func (single) vacant(v *view) bool                                     { return len(v.leases) == 0 }
func (single) lingers() time.Duration                                  { return 0 }
func (single) serverDegraded(bool, int64, int64)                       {}

// owed: the first in line who is connected, if the lock is free.
func (single) owed(w *world, v *view) []string {
	if y := w.firstConnected(v); y != nil && len(v.leases) == 0 {
		return []string{y.token}
	}
	return nil
}
