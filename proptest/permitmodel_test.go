package proptest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/lua"
)

// permitLimits are the limits that a caller knows. 0 means no limit.
type permitLimits struct {
	atOnce, window, per int64
}

func (l permitLimits) String() string {
	return fmt.Sprintf("%d:%d:%d", l.atOnce, l.window, l.per)
}

// most returns the maximum number of permits of one request.
func (l permitLimits) most() int64 {
	return min(unlimited(l.atOnce), unlimited(l.window))
}

func unlimited(limit int64) int64 {
	if limit == 0 {
		return math.MaxInt32
	}
	return limit
}

// kind returns h, c or hc, as in tokens with permits under these limits.
func (l permitLimits) kind() string {
	return strings.Repeat("h", yes(l.atOnce > 0)) + strings.Repeat("c", yes(l.window > 0))
}

// permitReq is a request in the model. Times are the server's ms; 0 means none.
type permitReq struct {
	token        string
	keeper       string
	serial       int
	ttl          int64
	unnotifiable bool         // it gets no notifications
	limits       permitLimits // known to its caller
	permits      int64
	holds        bool // until its lease expires
	byClock      bool // they return by the clock

	waits           bool
	away            bool  // it was removed from the queue and may rejoin
	place           int64 // in the queue, or its last one
	lapse           int64 // of its heartbeat
	end             int64 // of its lease
	told            int64 // the end of its lease as a reply to a heartbeat says it
	fence           int64
	taken           int64 // when it took permits that return by the clock, until they are known to have returned
	tombstonedUntil int64 // unless the tombstone is known to be lost
}

func (q *permitReq) claimTTL() int64 { return min(q.ttl, heartbeatTimeout.Milliseconds()) }

// permitModel is a model of the documented semaphore.
type permitModel struct {
	now         int64
	all         []*permitReq
	subscribed  map[string]bool      // keepers with a subscription
	given       []*permitReq         // granted in this step, in order
	asks        map[*permitReq]int64 // requests of this step, and the ttl to grant them
	asked       map[*permitReq]bool  // those that learn from the reply that they are granted
	unreachable bool                 // a waiter could not be notified in this step
	notified    map[string]bool      // keepers notified to retry because a heartbeat had lapsed

	callers         permitLimits        // of the present callers
	lastNotified    *permitLimits       // the limits of the last caller; nil: lost, or there was none
	force           *permitLimits       // in force
	rules           *permitLimits       // the limits of this step: those in force, or the caller's
	pausedUntil     int64               // until when nothing is granted by the clock
	ineligible      map[*permitReq]bool // requests above the limit in this step
	tombstonesUntil int64               // until when there are tombstones
	reach           func(string)
}

func (m *permitModel) begin(now int64) {
	m.now, m.given, m.unreachable, m.rules = now, nil, false, m.force
	m.asks, m.asked, m.notified, m.ineligible = map[*permitReq]int64{}, map[*permitReq]bool{}, map[string]bool{}, map[*permitReq]bool{}
	for _, q := range m.all {
		if q.end != 0 && q.end <= now {
			q.end = 0
			m.reach("a lease expires")
		}
	}
	if m.pausedUntil != 0 && m.pausedUntil <= now {
		m.reach("a pause has ended")
		m.pausedUntil = 0
	}
}

// those returns the requests that satisfy is.
func (m *permitModel) those(is func(*permitReq) bool) []*permitReq {
	var list []*permitReq
	for _, q := range m.all {
		if is(q) {
			list = append(list, q)
		}
	}
	return list
}

func (m *permitModel) leased(q *permitReq) bool { return q.end > m.now }

// tombstoned reports whether the request is refused. A tombstone may outlive its time beside later ones.
func (m *permitModel) tombstoned(q *permitReq) bool {
	return m.tombstonesUntil > m.now && q.tombstonedUntil != 0
}

func waits(q *permitReq) bool { return q.waits }

// queue returns the waiters in order.
func (m *permitModel) queue() []*permitReq {
	list := m.those(waits)
	slices.SortFunc(list, func(a, b *permitReq) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.token, b.token))
	})
	return list
}

// skip removes a waiter, which may rejoin.
func (m *permitModel) skip(q *permitReq, why string) {
	q.waits, q.away = false, true
	m.reach("skipped: " + why)
}

// spends reports whether the permits that the request took have not returned to a window.
func (m *permitModel) spends(q *permitReq, per int64) bool {
	return q.taken != 0 && q.taken+per >= m.now
}

// has reports whether the request has an unexpired grant: a lease, or else permits by the clock.
func (m *permitModel) has(q *permitReq) bool {
	if q.holds {
		return m.leased(q)
	}
	return m.rules != nil && m.spends(q, m.rules.per)
}

// counts returns the permits that are held, and those that are to return.
func (m *permitModel) counts(per int64) (held, spent int64) {
	for _, q := range m.all {
		if m.leased(q) {
			held += q.permits
		}
		if m.spends(q, per) {
			spent += q.permits
		}
	}
	return held, spent
}

// room returns how many permits of each kind are left. In a pause there are none that return by the clock.
func (m *permitModel) room(l permitLimits) (atOnce, window int64) {
	held, spent := m.counts(l.per)
	if m.paused() > 0 {
		return unlimited(l.atOnce) - held, 0
	}
	return unlimited(l.atOnce) - held, unlimited(l.window) - spent
}

// paused returns the ms until the pause ends.
func (m *permitModel) paused() int64 { return max(m.pausedUntil-m.now, 0) }

func (m *permitModel) fits(q *permitReq, l permitLimits) bool {
	atOnce, window := m.room(l)
	return (!q.holds || q.permits <= atOnce) && (!q.byClock || q.permits <= window)
}

// above reports whether there are never so many permits.
func (q *permitReq) above(l permitLimits) bool {
	return q.holds && q.permits > unlimited(l.atOnce) || q.byClock && q.permits > unlimited(l.window)
}

// reachable reports whether a waiter asks in this step, or can be notified.
func (m *permitModel) reachable(q *permitReq) bool {
	_, asking := m.asks[q]
	return asking || q.lapse > m.now && (q.unnotifiable || m.subscribed[q.keeper])
}

// first returns the ms until the first lease expires, or 0.
func (m *permitModel) first() int64 {
	var first int64
	for _, q := range m.all {
		if left := q.end - m.now; left > 0 && (first == 0 || left < first) {
			first = left
		}
	}
	return first
}

// minWait returns the ms for which the request cannot have its permits, because those that it and the waiters before
// it need must return by the clock first. It simulates the future: each takes what it needs as soon as that has
// returned.
func (m *permitModel) minWait(q *permitReq) int64 {
	if m.rules == nil || !q.byClock {
		return 0
	}
	if m.rules.window == 0 {
		return m.paused()
	}
	l, at := *m.rules, m.now+m.paused()
	ahead := m.queue()
	if i := slices.Index(ahead, q); i >= 0 {
		ahead = ahead[:i]
	}
	type taking struct{ at, permits int64 }
	var out []taking
	for _, o := range m.all {
		if m.spends(o, l.per) {
			out = append(out, taking{o.taken, o.permits})
		}
	}
	for _, o := range append(slices.Clone(ahead), q) {
		if o != q && (!o.byClock || o.above(l) || !m.reachable(o)) {
			continue
		}
		need := o.permits
		if o.above(l) { // it learns that when any permit is free
			need = 1
		}
		for {
			spent, next := int64(0), int64(math.MaxInt64)
			for _, x := range out {
				if back := x.at + l.per + 1; back > at {
					spent, next = spent+x.permits, min(next, back)
				}
			}
			if spent+need <= l.window {
				break
			}
			at = next
		}
		out = append(out, taking{at, need})
	}
	return at - m.now
}

// ends returns the ms until the head may be granted its permits, as far as known.
func (m *permitModel) ends() int64 {
	if line := m.queue(); len(line) > 0 {
		if ms := m.minWait(line[0]); ms > 0 {
			return ms
		}
	}
	return m.first()
}

// grant grants a lease of ms, and permits that return by the clock, whatever the request had before.
func (m *permitModel) grant(q *permitReq, ms int64) {
	q.waits, q.away, q.fence = false, false, 0
	if q.holds {
		q.end = m.now + ms
	}
	if q.byClock {
		if q.taken != 0 {
			m.reach("permits are taken once more by one token")
		}
		q.taken = m.now
	}
	m.given = append(m.given, q)
}

// admit grants permits to the next waiters while at least one permit is free.
func (m *permitModel) admit() {
	for m.rules != nil {
		line := m.queue()
		if atOnce, window := m.room(*m.rules); len(line) == 0 || min(atOnce, window) < 1 {
			return
		}
		q := line[0]
		ms, asking := m.asks[q]
		switch {
		case !asking && q.lapse <= m.now:
			m.skip(q, "its heartbeat has lapsed")
		case q.above(*m.rules):
			m.dropIneligible(q)
		case !m.reachable(q):
			m.unreachable = true
			m.skip(q, "not subscribed")
		case !m.fits(q, *m.rules):
			return
		default:
			if asking {
				m.asked[q] = true
			} else {
				ms = min(q.claimTTL(), q.lapse-m.now)
			}
			m.grant(q, ms)
		}
	}
}

// dropIneligible removes a waiter that asks for more than the limit.
func (m *permitModel) dropIneligible(q *permitReq) {
	m.ineligible[q] = true
	m.skip(q, "it asks for more than the limit")
}

// caller applies the limits of a caller, and reports whether those in force have changed.
func (m *permitModel) caller(l permitLimits) bool {
	if m.lastNotified != nil && *m.lastNotified == l {
		return false
	}
	changed := m.lastNotified != nil
	m.lastNotified, m.force, m.rules = &l, &l, &l
	return changed
}

// acquire models the script acquire.
func (m *permitModel) acquire(q *permitReq, waits bool, patience, place int64) (code, left int64, changed bool) {
	if m.tombstoned(q) {
		return lua.Tombstoned, 0, false
	}
	changed = m.caller(q.limits)
	if m.has(q) { // a duplicate of its request
		if q.holds {
			q.end = max(q.end, m.now+q.ttl)
		}
		if changed {
			m.admit()
		}
		return lua.Granted, 0, changed
	}
	if q.above(*m.rules) {
		return lua.AboveLimit, 0, changed
	}
	if len(m.queue()) == 0 && m.fits(q, *m.rules) {
		m.grant(q, q.ttl)
		m.asked[q] = true
		return lua.Granted, 0, changed
	}
	newcomer := !q.waits
	if newcomer {
		q.waits, q.place = true, place
	}
	if waits {
		q.lapse = m.now + heartbeatTimeout.Milliseconds()
	}
	m.asks[q] = q.ttl
	m.admit()
	if left = m.minWait(q); q.waits && waits && (patience == 0 || left <= patience) {
		return lua.Waiting, 0, changed
	}
	if newcomer { // its place is not reported
		q.place = 0
	}
	if !q.waits {
		return lua.Granted, 0, changed
	}
	q.waits, q.away = false, false
	return lua.Refused, left, changed
}

// release models the script release.
func (m *permitModel) release(q *permitReq, tombstone int64, unused bool) int64 {
	code := int64(lua.Refused)
	switch {
	case m.leased(q), !q.holds && unused && q.taken != 0:
		code = lua.Granted
	case q.waits:
		code = lua.Left
	}
	q.end = 0
	if unused {
		q.taken = 0
	}
	if code != lua.Granted {
		q.waits, q.away = false, false
	}
	if tombstone > 0 {
		q.tombstonedUntil = m.now + tombstone
		m.tombstonesUntil = max(m.tombstonesUntil, q.tombstonedUntil)
	}
	m.admit()
	return code
}

// renew models the script renew.
func (m *permitModel) renew(q *permitReq, ms int64, exact bool, keys int) int64 {
	if !m.leased(q) {
		return lua.Refused
	}
	if end := m.now + ms; exact || end > q.end {
		q.end = end
	}
	if keys == 4 {
		m.admit()
	}
	return lua.Granted
}

// reports is what a heartbeat reports of a request that does not wait.
func (m *permitModel) reports(q *permitReq, back bool) int64 {
	switch {
	case m.has(q):
		if q.told = q.end; !q.holds {
			q.told = m.now + q.claimTTL()
		}
		if m.spends(q, m.rules.per) {
			q.taken = m.now
		}
		return lua.Held
	case back && m.tombstoned(q):
		return lua.Tombstoned
	case q.above(*m.rules):
		return lua.AboveLimit
	}
	return noReport
}

// noReport is what a heartbeat reports of a request that is unknown, or rejoins.
const noReport = -1

// admitBeats grants what waiters may have at the end of a heartbeat.
func (m *permitModel) admitBeats() {
	if m.force == nil && len(m.asks) > 0 { // it was lost, and the waiters know it
		m.lastNotified, m.force = m.rules, m.rules
	}
	m.admit()
}

// limit models the script limit of a caller with these limits: a limit, or a pause, unless they are 0. It returns the reply.
func (m *permitModel) limit(limits permitLimits, limit, pause int64) []int64 {
	if m.rules == nil {
		m.rules = &limits
	}
	after, changes := *m.rules, int64(0)
	if limit > 0 {
		if limits.window == 0 {
			after.atOnce = limit
		} else {
			after.window = limit
			if after.per == 0 { // there was no window
				after.per = limits.per
			}
		}
		if after != *m.rules {
			changes = 2
		}
		if m.lastNotified == nil {
			m.lastNotified = &limits
		}
		m.force, m.rules = &after, &after
	}
	if pause != 0 && m.lastNotified == nil {
		m.lastNotified, m.force = &limits, &limits
	}
	if pause > 0 {
		m.pausedUntil = max(m.pausedUntil, m.now+pause)
	} else if pause < 0 {
		m.pausedUntil = 0
	}
	m.admit()
	held, spent := m.counts(after.per)
	return []int64{lua.Granted, held, after.atOnce, spent, after.window, changes, m.paused()}
}
