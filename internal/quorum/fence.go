package quorum

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

const (
	// clockReadingTTL is how long a reading of a server's clock is used.
	clockReadingTTL = time.Minute
	// fenceLead is how far ahead of the servers' clocks a fence is asked for, so that no clock has passed it when the request
	// arrives.
	fenceLead = 10 * time.Millisecond
	// maxExactInt is the largest integer up to which Lua represents all integers exactly.
	maxExactInt = 1 << 53
)

// leastFence is a fence, in µs, that no server's clock will have passed when a request that is sent now arrives; 0 if the clocks
// are not known. A wrong estimate costs a round trip and nothing else.
func (m *Majority) leastFence() int64 {
	if m.need == 1 {
		return 0 // no other server has to agree
	}
	now := time.Now()
	var least int64
	for _, e := range m.spec.Keepers {
		ms, sent := e.Clock.Last()
		if since := now.Sub(sent); ms > 0 && ms < maxExactInt/1000 && since < clockReadingTTL {
			least = max(least, ms*1000+(time.Millisecond+since+fenceLead).Microseconds())
		}
	}
	if least >= maxExactInt {
		return 0
	}
	return least
}

// newToken makes the token of one attempt, the same for all servers, with the note of the caller and, if the clocks are known, the least fence of
// the lease.
func (m *Majority) newToken(note string) string {
	least := m.leastFence()
	if least == 0 {
		return m.locks[0].NewToken("", 0, note)
	}
	return m.locks[0].NewToken(protocol.FlagLeastFence, least, note)
}

// settleFenceLocked sets the fence, once a majority has granted the lease, to the largest fence of a majority. If one of these servers drops out
// before the lease is handed out, the fence may become larger. settleFenceLocked reports whether it did. The fence is larger than that of every
// earlier lease, because each earlier majority shares a server with this one, and a server gives each lease a larger fence.
func (u *Lease) settleFenceLocked(now time.Time) (larger bool) {
	if u.state == leaseHeld || u.state == leaseOver {
		return false
	}
	var fences []int64
	for i := range u.members {
		if s := &u.members[i]; s.live(now) {
			fences = append(fences, int64(s.part.Fence()))
		}
	}
	if len(fences) < u.lock.need {
		return false
	}
	slices.Sort(fences)
	before := u.fence
	u.fence = max(u.fence, fences[u.lock.need-1])
	return u.fence > before
}

// agreesLocked reports whether the server has granted the lease and gives only fences that are larger than the lease's.
func (u *Lease) agreesLocked(s *member) bool {
	return s.granted() && u.fence > 0 && s.fenceFloor >= u.fence
}

// raiseFences settles the fence if it can, and sends requests to raise it to servers that granted the lease with a smaller one.
// With MinUptime all servers are asked, because the same request checks their uptime.
func (u *Lease) raiseFences() {
	now := time.Now()
	type smaller struct {
		i    int
		part *keeper.Lease
	}
	var raise []smaller
	u.mu.Lock()
	if u.state.ended() {
		u.mu.Unlock()
		return
	}
	u.settleFenceLocked(now)
	fence := u.fence
	for i := range u.members {
		s := &u.members[i]
		if fence == 0 || s.state != memberGranted || !s.live(now) {
			continue
		}
		if u.lock.spec.MinUptime == 0 {
			s.fenceFloor = max(s.fenceFloor, int64(s.part.Fence()))
		}
		if s.fenceFloor < fence && s.raise() {
			raise = append(raise, smaller{i, s.part})
		}
	}
	u.mu.Unlock()
	for _, r := range raise {
		u.lock.raiseFence(r.i, r.part, fence, func(err error) { u.fenceRaised(r.i, r.part, fence, err) })
	}
}

// errRecentRestart means that the server has not run for as long as it was required to.
var errRecentRestart = errors.New("the server restarted recently and does not count yet")

// raiseFence makes a server give only larger fences than this one for the lock's name, provided that it still has the part and has run for
// MinUptime. It does not block. done is called with nil when the server has confirmed all of this. If the server does not have the part, the part
// is lost first, and then done is called with the reason.
func (m *Majority) raiseFence(i int, part *keeper.Lease, fence int64, done func(error)) {
	at := m.locks[i].AtServer()
	call := &transport.Call{Done: transport.Func(func(call *transport.Call) {
		r, err := server.Decode(call, func(n []int64) (protocol.RaiseFenceReply, error) { return protocol.ParseRaiseFenceReply(n, fence) })
		switch {
		case err != nil:
		case r.Code == lua.Refused:
			part.Gone(done)
			return
		case r.Code == lua.Unknown:
			err = fmt.Errorf("%w: it has run for %v", errRecentRestart, claim.Duration(r.Uptime))
		}
		done(err)
	})}
	at.SetRaiseFence(call, part.Token(), fence, m.spec.MinUptime.Milliseconds())
	at.Server().Transport.Send(call)
}

// fenceRaised handles the answer of a server that was asked to raise its fence. If it did not, its part of the lease does not
// count, and the server is asked for the lease again later.
func (u *Lease) fenceRaised(i int, part *keeper.Lease, fence int64, err error) {
	u.mu.Lock()
	s := &u.members[i]
	if s.part != part {
		u.mu.Unlock()
		return
	}
	if !s.raised(err) {
		state := s.state
		u.mu.Unlock()
		u.logBug(state.String(), "raised")
		return
	}
	ended, keep := u.state.ended(), u.keepsPartsLocked()
	switch {
	case err == nil:
		s.fenceFloor = max(s.fenceFloor, fence)
	case !ended:
		s.part, s.inDoubt = nil, true // see answered
	}
	u.mu.Unlock()
	switch {
	case err == nil:
		u.raiseFences()
	case ended && !keep:
		part.Abandon()
	default:
		part.Detach()
	}
	u.notify()
}
