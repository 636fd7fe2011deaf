package proptest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/lua"
)

// permitLimits is what a caller of a semaphore knows of it. A limit of 0 is none.
type permitLimits struct {
	atOnce, window, per int64
}

func (l permitLimits) String() string {
	return fmt.Sprintf("%d:%d:%d", l.atOnce, l.window, l.per)
}

// most is the most permits that one request can ask for.
func (l permitLimits) most() int64 {
	return min(unlimited(l.atOnce), unlimited(l.window))
}

func unlimited(limit int64) int64 {
	if limit == 0 {
		return math.MaxInt32
	}
	return limit
}

// permitReq is a request for permits, and what the model knows of it.
type permitReq struct {
	token        string
	keeper       string
	serial       int
	limits       permitLimits // that its caller knows of
	permits      int64
	holds        bool // until its lease is over
	byClock      bool // they return by the clock
	unnotifiable bool // it cannot be told by a message
	ttl          int64

	waits           bool
	place           int64 // in line, or the last it had
	lapse           int64 // of its heartbeat
	end             int64 // of its lease
	taken           int64 // when it took permits that return by the clock, unless it is known that they have; 0: it did not
	fence           int64
	tombstonedUntil int64 // until, unless it is known that it is not any more
	away            bool  // it was taken out of line and may come back
}

func (q *permitReq) claimTTL() int64 { return min(q.ttl, heartbeatTimeout.Milliseconds()) }

// permitModel is the semaphore as it is documented.
type permitModel struct {
	now             int64
	all             []*permitReq
	subscribed      map[string]bool // keepers that listen
	lastNotified    *permitLimits   // what the last caller knew; nil: that is lost, or nobody has come
	force           *permitLimits   // in force
	rules           *permitLimits   // what the present step goes by: those, or what the caller knows
	tombstonesUntil int64           // until when tokens are buried
	given           []*permitReq    // let in by the present step, in order
	asked           map[*permitReq]bool
	asks            map[*permitReq]int64 // who asks in the present step, and the lease it gets
	ineligible      map[*permitReq]bool  // who learned in the present step that it asks for too much
	unreachable     bool                 // somebody was not there to be told
	notified        map[string]bool      // keepers that were told to ask because a heartbeat had lapsed
	reach           func(string)
}

// begin is a step at a time.
func (m *permitModel) begin(now int64) {
	m.now, m.given, m.unreachable, m.rules = now, nil, false, m.force
	m.asked, m.asks, m.ineligible = map[*permitReq]bool{}, map[*permitReq]int64{}, map[*permitReq]bool{}
	m.notified = map[string]bool{}
}

// leased says whether the request's lease is not over.
func (m *permitModel) leased(q *permitReq) bool { return q.end > m.now }

// spends says whether what the request took has not returned to a window.
func (m *permitModel) spends(q *permitReq, per int64) bool {
	return q.taken != 0 && q.taken+per >= m.now
}

// has says whether the request was granted something that is not over: a lease, or else permits by the clock.
func (m *permitModel) has(q *permitReq, l permitLimits) bool {
	if q.holds {
		return m.leased(q)
	}
	return m.spends(q, l.per)
}

// counts is the permits that are held, and those that are to return.
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

// room is how many permits are left of each kind.
func (m *permitModel) room(l permitLimits) (atOnce, window int64) {
	held, spent := m.counts(l.per)
	return unlimited(l.atOnce) - held, unlimited(l.window) - spent
}

func (m *permitModel) fits(q *permitReq, l permitLimits) bool {
	atOnce, window := m.room(l)
	return (!q.holds || q.permits <= atOnce) && (!q.byClock || q.permits <= window)
}

// above says whether there are never so many.
func (q *permitReq) above(l permitLimits) bool {
	return q.holds && q.permits > unlimited(l.atOnce) || q.byClock && q.permits > unlimited(l.window)
}

// queue is those who wait.
func (m *permitModel) queue() []*permitReq {
	var list []*permitReq
	for _, q := range m.all {
		if q.waits {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *permitReq) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.token, b.token))
	})
	return list
}

// reachable says whether a waiter asks right now, or can be told.
func (m *permitModel) reachable(q *permitReq) bool {
	_, asking := m.asks[q]
	return asking || q.lapse > m.now && (q.unnotifiable || m.subscribed[q.keeper])
}

// first is in how many ms the first lease ends; 0 if there is none.
func (m *permitModel) first() int64 {
	var first int64
	for _, q := range m.all {
		if left := q.end - m.now; left > 0 && (first == 0 || left < first) {
			first = left
		}
	}
	return first
}

// minWait is for how many ms the request cannot have its permits, because those that it and everyone before it need have
// to return by the clock first. It plays the future: each takes what it needs as soon as that has returned.
func (m *permitModel) minWait(q *permitReq) int64 {
	if m.rules == nil || m.rules.window == 0 || !q.byClock {
		return 0
	}
	l, at := *m.rules, m.now
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
		if o.above(l) { // it learns that when there is any room
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

// ends is in how many ms there may be room for the first in line, as far as that is known.
func (m *permitModel) ends() int64 {
	if line := m.queue(); len(line) > 0 {
		if ms := m.minWait(line[0]); ms > 0 {
			return ms
		}
	}
	return m.first()
}

// grant is what a request gets: a lease of ms, and permits that return by the clock, whatever it had before.
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

// skip takes a waiter out of line, which may come back.
func (m *permitModel) skip(q *permitReq, why string) {
	q.waits, q.away = false, true
	m.reach("skipped: " + why)
}

// admit lets in whoever may be let in, while there is room for one permit.
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

// dropIneligible takes a waiter out that asks for more than there ever is.
func (m *permitModel) dropIneligible(q *permitReq) {
	m.ineligible[q] = true
	m.skip(q, "it asks for more than the limit")
}

// caller is that somebody asks who knows these limits. It says whether they have changed what is in force.
func (m *permitModel) caller(l permitLimits) bool {
	if m.lastNotified != nil && *m.lastNotified == l {
		return false
	}
	changed := m.lastNotified != nil
	m.lastNotified, m.force, m.rules = &l, &l, &l
	return changed
}

// acquire is acquire. Patience is the ms that it is ready to wait at the most; 0: not said. Place is where a newcomer comes
// to stand. It returns the code of the reply, for how many ms the request is refused, and whether it has changed the
// limits.
func (m *permitModel) acquire(q *permitReq, waits bool, patience, place int64) (code, left int64, changed bool) {
	if m.tombstonesUntil > m.now && q.tombstonedUntil != 0 {
		return lua.Tombstoned, 0, false
	}
	changed = m.caller(q.limits)
	if m.has(q, *m.rules) { // a copy of its request
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
	if newcomer { // nobody learns which place it had
		q.place = 0
	}
	if !q.waits {
		return lua.Granted, 0, changed
	}
	q.waits, q.away = false, false
	return lua.Refused, left, changed
}

// release is release.
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
		m.tombstonesUntil = m.now + tombstone
	}
	m.admit()
	return code
}

// renew is renew.
func (m *permitModel) renew(q *permitReq, ms int64, exact bool) int64 {
	if !m.leased(q) {
		return lua.Refused
	}
	if end := m.now + ms; exact || end > q.end {
		q.end = end
	}
	return lua.Granted
}

// heartbeat is beat of a caller who knows limits; places says where those stand who come back. It returns what is told of
// each.
func (m *permitModel) heartbeat(list []*permitReq, limits permitLimits, back bool, places []int64) map[*permitReq][]int64 {
	changes := map[*permitReq][]int64{}
	if m.rules == nil {
		m.rules = &limits
	}
	for i, q := range list {
		switch {
		case q.waits:
		case m.has(q, *m.rules):
			changes[q] = append(changes[q], lua.Held)
			if m.spends(q, m.rules.per) {
				q.taken = m.now
			}
			continue
		case back && m.tombstonesUntil > m.now && q.tombstonedUntil != 0:
			changes[q] = append(changes[q], lua.Tombstoned)
			continue
		case q.above(*m.rules):
			changes[q] = append(changes[q], lua.AboveLimit)
			continue
		case !back:
			changes[q] = append(changes[q], lua.Unknown)
			continue
		default:
			q.waits, q.away, q.place = true, false, places[i]
			changes[q] = append(changes[q], lua.Waiting)
		}
		q.lapse = m.now + heartbeatTimeout.Milliseconds()
		m.asks[q] = q.claimTTL()
		if m.force == nil { // it was lost, and those who wait know it
			m.lastNotified, m.force = &limits, &limits
		}
	}
	for _, q := range m.queue() {
		if q.lapse <= m.now {
			m.skip(q, "its heartbeat has lapsed")
		}
	}
	m.admit()
	for q := range m.asked {
		changes[q] = append(changes[q], lua.Granted)
	}
	return changes
}

// limit is limit of a caller who knows limits. It returns the reply.
func (m *permitModel) limit(limits permitLimits, limit int64) []int64 {
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
	m.admit()
	held, spent := m.counts(after.per)
	return []int64{lua.Granted, held, after.atOnce, spent, after.window, changes}
}

func permitTokens(list []*permitReq) string {
	var b strings.Builder
	for _, q := range list {
		fmt.Fprintf(&b, " %s@%d", q.token, q.place)
	}
	return b.String()
}
