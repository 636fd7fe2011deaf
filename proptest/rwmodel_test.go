package proptest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// rwReq is a request for a read or write lease in the model.
type rwReq struct {
	token        string
	keeper       string
	serial       int
	use          byte // r, w, u, d
	streak       int  // of a writer: the MaxWriterStreak; 0: unlimited
	unnotifiable bool // it gets no notifications
	retained     bool // its process retains the read lease
	ttl          int64
	origin       *rwReq // of an upgrade or a downgrade

	marked          bool // as a lease that is retained and was not recalled
	waits           bool
	place           int64 // in the queue, or its last one
	lapse           int64 // of its heartbeat
	end             int64 // of its lease
	fence           int64
	tombstonedUntil int64 // until
	dequeued        bool  // it was removed from the queue and may rejoin
	longer          int64 // the ttl in ms that its lease was extended to, if above its own
}

func (q *rwReq) reads() bool { return q.use == 'r' || q.use == 'd' }
func (q *rwReq) claimTTL() int64 {
	return min(q.ttl, heartbeatTimeout.Milliseconds())
}

// rwTry is the place of a try during its check: behind all, because it overtakes nobody.
const rwTry = 1 << 53

// rwModel is a model of the documented read-write lock.
type rwModel struct {
	now         int64
	all         []*rwReq
	subscribed  map[string]bool // keepers with a subscription
	streak      int             // consecutive writers granted before readers
	upTo        int64           // readers up to this place go before the next writer; 0: none
	last        *rwReq          // the latest waiting upgrade: only that may be granted
	given       []*rwReq        // granted in this step, in order
	asked       map[*rwReq]bool // those of them that learn it from the reply
	unreachable bool            // a waiter could not be notified
	notified    map[string]bool // keepers notified to retry because a heartbeat had lapsed
	recalled    []*rwReq        // in this step
	reach       func(string)
}

// holders returns the requests whose lease has not expired.
func (m *rwModel) holders() []*rwReq {
	var list []*rwReq
	for _, q := range m.all {
		if q.end > m.now {
			list = append(list, q)
		}
	}
	return list
}

// queue returns the waiters: upgrades, then writers, then readers, in order of arrival.
func (m *rwModel) queue() []*rwReq {
	var list []*rwReq
	for _, q := range m.all {
		if q.waits {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *rwReq) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.token, b.token))
	})
	return list
}

// remaining returns the ms until the last lease expires.
func (m *rwModel) remaining() int64 {
	var most int64
	for _, q := range m.holders() {
		most = max(most, q.end-m.now)
	}
	return most
}

// after reports whether the request was made later than the other.
func (q *rwReq) after(o *rwReq) bool { return q.serial > o.serial }

// room returns the ms until waiters may be granted the lock. An upgrade does not wait for its own read lease.
func (m *rwModel) room() int64 {
	held := m.holders()
	slices.SortStableFunc(held, func(a, b *rwReq) int { return cmp.Compare(b.end, a.end) })
	if m.last != nil && len(held) > 1 && held[0] == m.last.origin {
		return held[1].end - m.now
	}
	return m.remaining()
}

// fits reports whether the request is compatible with the current leases.
func (m *rwModel) fits(q *rwReq) bool {
	held := m.holders()
	switch q.use {
	case 'r':
		return len(held) == 0 || held[0].reads()
	case 'u':
		return len(held) == 1 && held[0] == q.origin
	}
	return len(held) == 0
}

// grant grants a lease until this time, or until the end of the lease that it replaces, if that is later.
func (m *rwModel) grant(q *rwReq, until int64) {
	q.longer = 0
	if o := q.origin; o != nil {
		until = max(until, min(o.end, m.now+max(o.ttl, o.longer)))
		if until-m.now > q.ttl {
			q.longer = until - m.now
		}
		o.end = 0
	}
	q.waits, q.dequeued, q.end, q.fence, q.marked = false, false, until, 0, q.retained
	m.given = append(m.given, q)
}

// recall recalls the retained leases for a request that does not fit beside readers.
func (m *rwModel) recall(q *rwReq) {
	for _, h := range m.holders() {
		if q.use != 'r' && h.marked {
			h.marked = false
			m.recalled = append(m.recalled, h)
			m.reach("recalled for: " + string(q.use))
		}
	}
}

// skip removes a waiter, which may rejoin.
func (m *rwModel) skip(q *rwReq, why string) {
	q.waits, q.dequeued = false, true
	m.reach("skipped: " + why)
}

// turn returns the next waiter to be granted the lock.
func (m *rwModel) turn() *rwReq {
	waiting := m.queue()
	if len(waiting) == 0 {
		return nil
	}
	if waiting[0].use == 'w' {
		for _, q := range waiting {
			if q.use == 'r' && q.place <= m.upTo {
				return q
			}
		}
		m.upTo = 0
	}
	return waiting[0]
}

// admit grants the lock to the waiters whose turn it is. asks are the requests of this step and the ttl to grant
// them.
func (m *rwModel) admit(asks map[*rwReq]int64) {
	for {
		if held := m.holders(); len(held) > 0 && !held[0].reads() {
			return
		}
		q := m.turn()
		if q == nil {
			return
		}
		ms, asking := asks[q]
		there := asking || q.unnotifiable || m.subscribed[q.keeper]
		switch {
		case q.use == 'u' && (q != m.last || q.origin.end <= m.now):
			m.skip(q, "its read lease has expired")
		case !asking && q.lapse <= m.now:
			m.skip(q, "its heartbeat has lapsed")
		case !there:
			if m.unreachable = true; q.use == 'u' && m.fits(q) {
				m.reach("an upgrade is skipped and keeps its read lease")
			}
			if !m.fits(q) {
				m.recall(q)
			}
			m.skip(q, "not subscribed")
		case !m.fits(q):
			m.recall(q)
			return
		default:
			if q.use == 'w' {
				m.admitWriter(q)
			}
			if asking {
				m.asked[q] = true
			} else {
				ms = min(q.claimTTL(), q.lapse-m.now)
			}
			m.grant(q, m.now+ms)
		}
	}
}

// admitWriter counts a writer that waited.
func (m *rwModel) admitWriter(w *rwReq) {
	var reader *rwReq
	for _, q := range m.queue() {
		if q.use == 'r' && q.place != rwTry {
			reader = q
		}
	}
	if reader == nil {
		m.streak = 0
		return
	}
	if m.streak++; w.streak > 0 && m.streak >= w.streak {
		m.streak, m.upTo = 0, reader.place
		m.reach("a streak of writers ends")
	}
}

// begin begins a step at this time.
func (m *rwModel) begin(now int64) {
	m.now, m.given, m.asked, m.unreachable, m.notified, m.recalled = now, nil, map[*rwReq]bool{}, false, map[string]bool{}, nil
}

// acquire models the script acquire with ms for the lease; a try if it does not wait. place is that of a newcomer.
// It returns the code of the reply.
func (m *rwModel) acquire(q *rwReq, waits bool, place int64) int64 {
	if q.tombstonedUntil > m.now {
		return lua.Tombstoned
	}
	asks := map[*rwReq]int64{q: q.ttl}
	if q.end > m.now { // a duplicate of its request
		q.end = max(q.end, m.now+q.ttl)
		if q.use == 'd' {
			m.admit(nil)
		}
		return lua.Granted
	}
	if q.origin != nil {
		held := m.holders()
		if !slices.Contains(held, q.origin) || q.use == 'd' && q.origin.reads() {
			return lua.Refused
		}
		if q.use == 'd' || len(held) == 1 {
			m.grant(q, m.now+q.ttl)
			m.asked[q] = true
			if q.use == 'd' {
				m.admit(nil)
			}
			return lua.Granted
		}
		if m.last != nil && (m.last.origin != q.origin || m.last.after(q)) && m.last.waits && m.last.lapse > m.now && m.last.origin.end > m.now {
			return lua.Conflict
		}
		if waits {
			if m.last != nil && m.last != q && m.last.waits && m.last.origin.end > m.now {
				m.skip(m.last, "a later upgrade waits")
			}
			m.last = q
		}
	} else if len(m.queue()) == 0 && m.fits(q) {
		m.grant(q, m.now+q.ttl)
		m.asked[q] = true
		return lua.Granted
	}
	if !q.waits {
		q.waits, q.place = true, place
	}
	if waits {
		q.lapse = m.now + heartbeatTimeout.Milliseconds()
	} else if q.origin == nil {
		q.place = rwTry
	}
	if waits || q.origin == nil {
		m.admit(asks)
	} else {
		q.waits = false
		m.admit(nil)
	}
	switch {
	case q.end > m.now:
		return lua.Granted
	case !waits:
		q.waits, q.dequeued = false, false
		return lua.Refused
	case !q.waits:
		return -1 // it was skipped for good
	}
	return lua.Waiting
}

// release models the script release.
func (m *rwModel) release(q *rwReq, tombstone int64) int64 {
	code := int64(lua.Refused)
	switch {
	case q.end > m.now:
		code = lua.Granted
	case q.waits:
		code = lua.Left
	}
	q.waits, q.end, q.dequeued = false, 0, false
	if tombstone > 0 {
		q.tombstonedUntil = m.now + tombstone
	}
	m.admit(nil)
	return code
}

// renew models the script renew.
func (m *rwModel) renew(q *rwReq, ms int64, exact bool) int64 {
	if q.end <= m.now {
		return lua.Refused
	}
	if end := m.now + ms; exact || end > q.end {
		q.end = end
	}
	return lua.Granted
}

// heartbeat models the script heartbeat. places are those of rejoining waiters. It returns the changes by request.
func (m *rwModel) heartbeat(list []*rwReq, back bool, places []int64) map[*rwReq][]int64 {
	changes := map[*rwReq][]int64{}
	asks := map[*rwReq]int64{}
	for i, q := range list {
		switch {
		case q.waits:
		case q.end > m.now:
			changes[q] = append(changes[q], lua.Held)
			continue
		case back && q.tombstonedUntil > m.now:
			changes[q] = append(changes[q], lua.Tombstoned)
			continue
		case q.use == 'u' && (m.last == nil || m.last.origin.end <= m.now):
			changes[q] = append(changes[q], lua.Refused)
			continue
		case q.use == 'u' && m.last != q:
			m.reach("an upgrade yields")
			changes[q] = append(changes[q], lua.Conflict)
			continue
		case !back:
			changes[q] = append(changes[q], lua.Unknown)
			continue
		default:
			q.waits, q.dequeued, q.place = true, false, places[i]
			changes[q] = append(changes[q], lua.Waiting)
		}
		q.lapse = m.now + heartbeatTimeout.Milliseconds()
		asks[q] = q.claimTTL()
	}
	for _, q := range m.queue() {
		if q.lapse <= m.now {
			m.skip(q, "its heartbeat has lapsed")
		}
	}
	m.admit(asks)
	for q := range m.asked {
		changes[q] = append(changes[q], lua.Granted)
	}
	return changes
}

// rwBench runs the scripts beside the model.
type rwBench struct {
	*rwModel
	*scriptBench
	fence int64         // the largest so far
	high  map[int]int64 // the largest place so far of upgrades, writers, readers
}

// rwFurther is the offset of the places of readers.
const rwFurther = 4500000000000000

// rwEndless is the end of the scores of leases. The fence of a retained lease is stored rwFurther - rwEndless larger.
const rwEndless = 900000000000000

// TestRWLockScriptsMatchModel checks that for all operations on a read-write lock, in any order, while time passes,
// the scripts reply, grant, notify and store what the model does.
func TestRWLockScriptsMatchModel(t *testing.T) {
	rdb, mini := miniServer(t)
	run := newRun(t)
	run.explore(0.6, func(r *rapid.T) { rwSequence(r, run, rdb, mini) },
		"granted at once: r", "granted at once: w", "granted at once: u", "granted at once: d",
		"granted by the fast script: r", "granted by the fast script: w", "refused by the fast script", "left to the general script",
		"granted by a message: r", "granted by a message: w", "granted by a message: u",
		"handed on by the fast script", "granted by a reply: r", "granted by a reply: w", "granted by a reply: u",
		"several readers are admitted together", "a try is refused", "a try is granted past waiters that are gone",
		"a conflict", "a conversion is refused", "a tombstoned request", "a duplicate of a request", "a writer and readers wait",
		"a lease expires", "a streak of writers ends", "readers pass a writer",
		"skipped: its read lease has expired", "skipped: its heartbeat has lapsed", "skipped: not subscribed",
		"skipped: not subscribed for the notification of the head", "the head is notified", "an upgrade is skipped and keeps its read lease",
		"a lapsed waiter is notified", "rejoined the queue", "rejoined the queue and granted", "held", "unknown", "a waiter without notifications is granted",
		"left", "released", "renewed", "shortened",
		"recalled for: w", "recalled for: u", "a recall is received", "a retained lease is granted by a message",
		"a renewal replies that the lease was recalled", "recalled before the message about its grant",
	)
}

// TestRWLockScriptsMatchModelOnRealServer runs a part of the same on a real server.
func TestRWLockScriptsMatchModelOnRealServer(t *testing.T) {
	rdb := redistest.Start(t).Client()
	checkPart(t, 0.1, func(r *rapid.T) { rwSequence(r, &run{tally: map[string]int{}}, rdb, nil) })
}

func rwSequence(r *rapid.T, u *run, rdb *redis.Client, mini *miniredis.Miniredis) {
	b := &rwBench{
		rwModel:     &rwModel{reach: func(what string) { u.tally[what]++ }},
		scriptBench: newScriptBench(r, rdb, mini, "rwlock"),
		high:        map[int]int64{},
	}
	b.rwModel.subscribed = b.scriptBench.subscribed
	b.state = func() string {
		b.onHandOn = func() { b.reach("handed on by the fast script") }
		return fmt.Sprintf("%s hold it,%s wait; streak %d, a pass up to %d",
			rwTokens(b.holders()), rwTokens(b.queue()), b.streak, b.upTo)
	}
	defer b.close()
	actions := map[string]func(*rapid.T){
		"":                               func(*rapid.T) {},
		"a reader arrives":               func(*rapid.T) { b.arrives('r', true) },
		"a writer arrives":               func(*rapid.T) { b.arrives('w', true) },
		"several waiters arrive":         b.severalArrive,
		"several more waiters arrive":    b.severalArrive,
		"a reader tries":                 func(*rapid.T) { b.arrives('r', false) },
		"a writer tries":                 func(*rapid.T) { b.arrives('w', false) },
		"a duplicate arrives":            b.duplicateArrives,
		"an upgrade":                     func(*rapid.T) { b.converts('u') },
		"another upgrade":                func(*rapid.T) { b.converts('u') },
		"an upgrade's turn":              b.upgradesTurn,
		"another upgrade's turn":         b.upgradesTurn,
		"a downgrade":                    func(*rapid.T) { b.converts('d') },
		"a holder releases":              b.holderReleases,
		"another releases":               b.holderReleases,
		"all holders release":            b.allRelease,
		"a waiter leaves":                b.waiterLeaves,
		"an unknown request is released": b.strangerLeaves,
		"a lease is renewed":             b.renews,
		"a keeper heartbeats":            b.heartbeats,
		"another keeper heartbeats":      b.heartbeats,
		"waiters rejoin":                 b.rejoins,
		"a subscription changes":         b.toggleSubscription,
	}
	if mini != nil {
		actions["time passes"] = b.timePasses
		actions["a lease expires"] = b.leaseEnds
		actions["the other leases expire"] = b.othersEnd
	}
	b.severalArrive(r)
	r.Repeat(actions)
}

// begin begins a step, at the time that the server has now.
func (b *rwBench) begin(format string, args ...any) {
	now := b.time(format, args...)
	b.rwModel.begin(now)
	for _, q := range b.all {
		if q.end != 0 && q.end <= now {
			b.reach("a lease expires")
			q.end = 0
		}
	}
}

// newReq draws a new request.
func (b *rwBench) newReq(use byte) *rwReq {
	q := &rwReq{serial: len(b.all) + 1, use: use}
	q.keeper = keepers[rapid.SampledFrom([]int{0, 1, 2, 0, 1, 2, 3}).Draw(b.r, "keeper")]
	q.unnotifiable = q.keeper == "mute"
	q.ttl = rapid.SampledFrom([]int64{30000, 2000, 6000}).Draw(b.r, "ttl")
	flags := string(use)
	if q.unnotifiable {
		flags += "s"
	}
	if q.retained = use == 'r' && !q.unnotifiable && rapid.Bool().Draw(b.r, "retained"); q.retained {
		flags += protocol.FlagRetained
	}
	if use == 'w' {
		if q.streak = rapid.SampledFrom([]int{1, 2, 0, 16}).Draw(b.r, "streak"); q.streak > 0 {
			flags += strconv.Itoa(q.streak)
		}
	}
	if use == 'u' {
		flags += strconv.Itoa(q.serial)
	}
	q.token = fmt.Sprintf("%s:%d:%d.%d%s", q.keeper, q.serial, q.ttl, q.claimTTL(), flags)
	b.all = append(b.all, q)
	return q
}

// class returns the part of the queue that a request belongs to.
func (q *rwReq) class() int { return strings.IndexByte("uwr", q.use) }

// behind returns a place behind all others of the request's part of the queue, until the server has assigned one.
// Upgrades of the same millisecond share a place.
func (b *rwBench) behind(q *rwReq) int64 {
	if q.use == 'u' && b.mini != nil {
		return max(b.high[0], b.now)
	}
	return max(b.high[q.class()], [...]int64{1e6, 1e15, 5e15}[max(q.class(), 0)]) + 1
}

// queuedAt adopts the place that the server assigned to a newcomer, behind all others of its part.
func (b *rwBench) queuedAt(q *rwReq, place int64) {
	b.r.Helper()
	class := q.class()
	if high := b.high[class]; place < high || place == high && q.use != 'u' {
		b.failf("place %d after %d", place, high)
	}
	if low := [...]int64{1, 1e15, 5e15}[class]; place < low || place > low*6 && class > 0 {
		b.failf("place %d of a %c", place, q.use)
	}
	if b.upTo == q.place {
		b.upTo = place
	}
	q.place, b.high[class] = place, place
}

func (b *rwBench) arrives(use byte, waits bool) { b.asks(b.newReq(use), waits) }

func (b *rwBench) severalArrive(*rapid.T) {
	for range rapid.IntRange(2, 5).Draw(b.r, "how many") {
		b.arrives(rapid.SampledFrom([]byte("rrw")).Draw(b.r, "use"), true)
	}
}

// fastAcquire models the fast script of the script acquire: what it may do, a grant or a refusal, or neither.
func (m *rwModel) fastAcquire(q *rwReq) (grants, refuses bool) {
	if q.origin != nil || len(m.queue()) > 0 || slices.Contains(m.holders(), q) {
		return false, false
	}
	if m.fits(q) {
		return q.tombstonedUntil <= m.now, false
	}
	held := m.holders()[0]
	return false, !held.reads() && held.end-m.now <= held.ttl
}

// asksFast runs the fast script of acquire, and reports whether it has decided the request. While the metadata or expired
// leases need it, the general script may have to; otherwise the fast script decides what it can.
func (b *rwBench) asksFast(q *rwReq) bool {
	b.begin("acquire %s by the fast script", q.token)
	grants, refuses := b.fastAcquire(q)
	seq, _ := b.rdb.HGet(scriptCtx, b.keys[1], "seq").Int64()
	epoch, us := protocol.EpochOf(idle.Milliseconds()), b.now*1000
	expired := b.rdb.ZCount(scriptCtx, b.keys[0], "1", strconv.FormatInt(b.now, 10)).Val()
	got, _ := b.evalFastAcquire(lua.RWLock, q.token, q.ttl, "")
	switch {
	case len(got) == 5 && grants:
		if seq < us-us%epoch && b.mini != nil {
			b.failf("reply %v after the fence %d of an earlier epoch, or a tombstone", got, seq)
		}
		b.grant(q, b.now+q.ttl)
		b.asked[q], q.fence = true, got[1]
		b.reach("granted by the fast script: " + string(q.use))
	case len(got) == 4 && refuses:
		if !b.near(got[2], b.room()) {
			b.failf("reply %v, want %d ms", got, b.room())
		}
		b.reach("refused by the fast script")
	case got != nil:
		b.failf("reply %v; it may grant %v, refuse %v", got, grants, refuses)
	case b.mini != nil && expired == 0 && (refuses || grants && seq >= us-us%epoch):
		b.failf("the fast script has not decided it; it may grant %v, refuse %v", grants, refuses)
	default:
		b.reach("left to the general script")
	}
	b.compare()
	return got != nil
}

// asks runs acquire: sometimes the fast script, and the general script unless that has granted the request, or refused a try.
func (b *rwBench) asks(q *rwReq, waits bool) {
	if q.origin == nil && !q.retained && rapid.Bool().Draw(b.r, "fast") && b.asksFast(q) && (!waits || b.holds(q)) {
		return
	}
	b.begin("acquire %s, waits %v", q.token, waits)
	newcomer, held := !q.waits, q.end > b.now
	could := len(b.queue()) > 0
	code := b.acquire(q, waits, b.behind(q))
	patience, origin := int64(0), ""
	if waits {
		patience = heartbeatTimeout.Milliseconds()
	}
	if q.origin != nil {
		origin = q.origin.token
	}
	if q.retained {
		origin = protocol.PolicyArgRetain
	}
	got := b.eval(lua.RWLock.Acquire, acquireArgs(q.token, q.ttl, patience, origin, 0))
	if code == -1 {
		b.r.Fatalf("%s: the model has lost it", b.currentStep)
	}
	if got[0] != code {
		b.failf("reply %v, want code %d", got, code)
	}
	switch code {
	case lua.Granted:
		if short := got[2] == 0; !short && (got[3]-got[2] != q.ttl || !b.near(got[2], b.now)) || got[4] != 0 {
			b.failf("reply %v, want a lease of %d ms", got, q.ttl)
		}
		if held {
			b.reach("a duplicate of a request")
			if got[1] != q.fence {
				b.failf("the fence %d became %d", q.fence, got[1])
			}
		} else {
			q.fence = got[1]
			b.reach("granted at once: " + string(q.use))
			if could && !waits && q.origin == nil {
				b.reach("a try is granted past waiters that are gone")
			}
		}
	case lua.Waiting:
		if newcomer {
			b.queuedAt(q, got[3])
		} else if got[3] != q.place {
			b.failf("it moved from %d to %d", q.place, got[3])
		}
	case lua.Refused:
		left := b.room()
		if q.origin != nil {
			b.reach("a conversion is refused")
			if q.use == 'd' || q.origin.end <= b.now {
				left = 0
			}
		} else {
			b.reach("a try is refused")
		}
		if !b.near(got[2], left) {
			b.failf("reply %v, want %d ms", got, left)
		}
	case lua.Conflict:
		b.reach("a conflict")
	case lua.Tombstoned:
		b.reach("a tombstoned request")
	}
	b.compare()
	if code == lua.Waiting {
		waiting := b.queue()
		rank, ask := slices.Index(waiting, q), b.room()
		if rank > 2 {
			ask = 0
		}
		if got[4] != int64(rank) || !b.near(got[5], ask) || got[6] != 0 || got[2] < b.fence {
			b.failf("reply %v, want rank %d, %d ms", got, rank, ask)
		}
		if waiting[0].use != 'r' && q.use == 'r' {
			b.reach("a writer and readers wait")
		}
	}
}

// some draws a request that satisfies is.
func (b *rwBench) some(what string, is func(*rwReq) bool) *rwReq {
	var list []*rwReq
	for _, q := range b.all {
		if is(q) {
			list = append(list, q)
		}
	}
	return draw(b.r, list, what)
}

func (b *rwBench) holds(q *rwReq) bool { return q.end > b.now }

func (b *rwBench) duplicateArrives(*rapid.T) {
	q := b.some("request", func(q *rwReq) bool { return b.holds(q) || q.waits || q.tombstonedUntil > b.now })
	b.asks(q, true)
}

// converts requests a lease in place of another, mostly a valid one.
func (b *rwBench) converts(use byte) {
	odd := rapid.IntRange(0, 5).Draw(b.r, "odd") == 0
	from := b.some("origin", func(q *rwReq) bool { return odd || b.holds(q) && q.reads() == (use == 'u') })
	if use == 'u' && !from.reads() {
		b.r.Skip("it is a write lease")
	}
	waits := use == 'd' || rapid.IntRange(0, 3).Draw(b.r, "try") > 0
	q := b.newReq(use)
	q.origin = from
	b.asks(q, waits)
}

// upgradesTurn lets an upgrade wait until it is alone, when its process may be gone.
func (b *rwBench) upgradesTurn(*rapid.T) {
	held := b.holders()
	if len(held) < 2 {
		b.r.Skip("none")
	}
	var q *rwReq
	if b.last != nil && b.last.waits && b.holds(b.last.origin) {
		q = b.last
	} else {
		origin := draw(b.r, held, "origin")
		q = b.newReq('u')
		q.origin = origin
		if b.asks(q, true); !q.waits {
			return
		}
	}
	if rapid.IntRange(0, 2).Draw(b.r, "another") == 0 {
		other := b.newReq('u')
		other.origin = draw(b.r, held, "origin")
		b.asks(other, true)
	}
	if !q.unnotifiable {
		b.listen(q.keeper, rapid.Bool().Draw(b.r, "listens"))
	}
	if b.mini != nil && rapid.Bool().Draw(b.r, "the others end") {
		b.endButFor(q.origin)
		return
	}
	for _, other := range held {
		if other != q.origin {
			b.releases(other)
		}
	}
}

// releases runs release.
func (b *rwBench) releases(q *rwReq) {
	tombstone := rapid.SampledFrom([]int64{0, 0, 60000}).Draw(b.r, "tombstone ms")
	b.begin("%s is released, tombstone %d", q.token, tombstone)
	code := b.release(q, tombstone)
	got := b.evalRelease(lua.RWLock, "", q.token, tombstone, 0)
	if len(got) != 2 || got[0] != code || got[1] != 0 && (got[1] != 2 || len(b.queue()) > 0) {
		b.failf("reply %v, want code %d", got, code)
	}
	b.reach(map[int64]string{lua.Granted: "released", lua.Left: "left", lua.Refused: "nothing to release"}[code])
	b.compare()
}

func (b *rwBench) holderReleases(*rapid.T) { b.releases(b.some("holder", b.holds)) }
func (b *rwBench) allRelease(*rapid.T) {
	list := b.holders()
	if len(list) == 0 {
		b.r.Skip("none")
	}
	for _, q := range list {
		b.releases(q)
	}
}
func (b *rwBench) waiterLeaves(*rapid.T) {
	b.releases(b.some("waiter", func(q *rwReq) bool { return q.waits }))
}
func (b *rwBench) strangerLeaves(*rapid.T) {
	b.releases(b.some("stranger", func(q *rwReq) bool { return !q.waits && !b.holds(q) }))
}

// renews runs renew.
func (b *rwBench) renews(*rapid.T) {
	odd := rapid.IntRange(0, 5).Draw(b.r, "odd") == 0
	q := b.some("lease", func(q *rwReq) bool { return odd || b.holds(q) })
	ms, exact, keys := q.ttl, 0, rapid.IntRange(1, 2).Draw(b.r, "keys")
	if rapid.Bool().Draw(b.r, "extended") {
		ms, exact, keys = rapid.SampledFrom([]int64{1000, 2500, 60000}).Draw(b.r, "ms"), 1, 4
	}
	b.renewed(q, ms, exact, keys)
}

func (b *rwBench) renewed(q *rwReq, ms int64, exact, keys int) {
	b.begin("%s is renewed for %d ms, exact %d", q.token, ms, exact)
	before, marked := q.end, q.marked
	code := b.renew(q, ms, exact == 1)
	if keys > 1 && code == lua.Granted && ms > q.ttl {
		q.longer = ms
	}
	if keys == 4 && code == lua.Granted {
		b.admit(nil)
	}
	var ask []any
	if q.retained {
		ask = []any{1}
	}
	got := b.evalRenew(lua.RWLock, keys, q.token, ms, exact, ask...)
	if got[0] != code {
		b.failf("reply %v, want code %d", got, code)
	}
	switch {
	case code != lua.Granted:
	case !q.retained:
		if len(got) != 2 {
			b.failf("reply %v to a lease that is not retained", got)
		}
	case len(got) != 3 || got[2] >= 0 && marked != (got[2] == 0):
		b.failf("reply %v; was it recalled before? %v", got, !marked)
	case !marked:
		b.reach("a renewal replies that the lease was recalled")
	}
	if code == lua.Granted {
		if fence := q.fence * int64(min(keys, 2)-1); got[1] != fence {
			b.failf("reply %v, want fence %d", got, fence)
		}
		b.reach("renewed")
		if q.end < before {
			b.reach("shortened")
		}
	}
	b.compare()
}

// heartbeats runs the heartbeat of some of a keeper's requests.
func (b *rwBench) heartbeats(*rapid.T) {
	k := rapid.SampledFrom(keepers).Draw(b.r, "keeper")
	var list []*rwReq
	for _, q := range b.all {
		if q.keeper == k && (q.waits || q.dequeued || b.holds(q)) && rapid.IntRange(0, 4).Draw(b.r, "heartbeats") > 0 {
			list = append(list, q)
		}
	}
	b.heartbeatFor(list, false, nil)
}

// rejoins is the heartbeat of a keeper's waiters that were skipped.
func (b *rwBench) rejoins(*rapid.T) {
	k := b.some("who", func(q *rwReq) bool { return q.dequeued }).keeper
	var list []*rwReq
	var places []int64
	for _, q := range b.all {
		if q.keeper == k && (q.dequeued || q.tombstonedUntil > b.now || q.waits) && rapid.IntRange(0, 4).Draw(b.r, "comes") > 0 {
			list = append(list, q)
			places = append(places, q.place*int64(rapid.SampledFrom([]int{1, 1, 0}).Draw(b.r, "keeps its place")))
		}
	}
	b.heartbeatFor(list, true, places)
}

func (b *rwBench) heartbeatFor(list []*rwReq, back bool, places []int64) {
	b.begin("heartbeats of %s, rejoin %v", rwTokens(list), back)
	args := heartbeatArgs(0, "")
	if back {
		args = heartbeatArgs(1, "")
	}
	if b.upTo == 0 { // without readers it remains until the next check, and holds for those that rejoin
		b.upTo, _ = b.rdb.HGet(scriptCtx, b.keys[1], "pass").Int64()
	}
	at := slices.Clone(places)
	ahead := map[int]int64{}
	ends := map[*rwReq]int64{} // before others are granted, an upgrade in place of one of them
	for i, q := range list {
		args = append(args, q.token)
		ends[q] = q.end
		if back {
			args = append(args, places[i])
			if places[i] == 0 && !q.waits {
				ahead[q.class()]++
				at[i] = b.behind(q)
				if q.use != 'u' {
					at[i] += ahead[q.class()]
				}
			}
		}
	}
	changes := b.heartbeat(list, back, at)
	got := b.eval(lua.RWLock.Heartbeat, args)
	if got[0] != lua.Waiting || !b.near(got[1], b.now) || got[4] != 0 || (len(got)-7)%4 != 0 {
		b.failf("reply %v", got)
	}
	received := map[*rwReq][]int64{}
	for rest := got[7:]; len(rest) > 0; rest = rest[4:] {
		q := list[rest[0]-1]
		received[q] = append(received[q], rest[1])
		switch rest[1] {
		case lua.Waiting:
			if i := rest[0] - 1; places[i] != 0 && rest[2] != places[i] {
				b.failf("reply %v: it had the place %d", got, places[i])
			} else if places[i] == 0 {
				b.queuedAt(q, rest[2])
			}
			b.reach("rejoined the queue")
			if b.asked[q] {
				b.reach("rejoined the queue and granted")
			}
		case lua.Granted:
			q.fence = rest[2]
			if rest[3]-got[1] != q.claimTTL() {
				b.failf("reply %v, want a claim of %d ms", got, q.claimTTL())
			}
			b.reach("granted by a reply: " + string(q.use))
		case lua.Held:
			if rest[2] != q.fence || !b.near(rest[3], ends[q]) {
				b.failf("reply %v, want fence %d and end %d", got, q.fence, ends[q])
			}
			b.reach("held")
		case lua.Unknown:
			b.reach("unknown")
		}
	}
	if fmt.Sprint(rwCodes(received)) != fmt.Sprint(rwCodes(changes)) {
		b.failf("reply %v contains %v, want %v", got, rwCodes(received), rwCodes(changes))
	}
	b.compare()

	// The first of them that waits.
	waiting := b.queue()
	first := slices.IndexFunc(waiting, func(q *rwReq) bool { return slices.Contains(list, q) })
	if got[5] == 0 {
		lost := func(q *rwReq) bool { return q.dequeued } // that was the first of them
		if first >= 0 && !slices.ContainsFunc(list, lost) {
			b.failf("reply %v, the first is %s", got, waiting[first].token)
		}
	} else if q := list[got[5]-1]; first < 0 || waiting[first].place != q.place || waiting[got[6]] != q {
		b.failf("reply %v, the queue is %s", got, rwTokens(waiting))
	} else if first < 3 && !b.near(got[3], b.room()) || first > 2 && got[3] != 0 {
		b.failf("reply %v, want %d ms", got, b.room())
	}
}

func rwTokens(list []*rwReq) string {
	var b strings.Builder
	for _, q := range list {
		fmt.Fprintf(&b, " %s@%d", q.token, q.place)
	}
	return b.String()
}

func rwCodes(changes map[*rwReq][]int64) map[string][]int64 {
	codes := map[string][]int64{}
	for q, list := range changes {
		codes[q.token] = list
	}
	return codes
}

// toggleSubscription subscribes or unsubscribes a keeper.
func (b *rwBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.rwModel.subscribed[k])
}

func (b *rwBench) timePasses(*rapid.T) {
	b.pass(rapid.SampledFrom([]int64{1, 500, 1999, 3000, 1, 500, 1999, 3000, 6000, 31000}).Draw(b.r, "ms"))
}

// leaseEnds advances time until a lease or a heartbeat ends, or a millisecond less.
func (b *rwBench) leaseEnds(*rapid.T) {
	q := b.some("lease", func(q *rwReq) bool { return b.holds(q) || q.waits && q.lapse > b.now })
	end := q.lapse
	if b.holds(q) {
		end = q.end
	}
	b.pass(end - b.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
}

func (b *rwBench) othersEnd(*rapid.T) { b.endButFor(b.some("lease", b.holds)) }

// endButFor advances time, with all heartbeats and one lease kept, until the other leases have expired.
func (b *rwBench) endButFor(keep *rwReq) {
	for left := b.remaining() + 1; left > 0; left -= 5000 {
		b.renewed(keep, 30000, 1, 4)
		b.allHeartbeat()
		b.pass(min(left, 5000))
	}
	b.allHeartbeat()
}

func (b *rwBench) allHeartbeat() {
	for _, k := range keepers {
		var list []*rwReq
		for _, q := range b.queue() {
			if q.keeper == k {
				list = append(list, q)
			}
		}
		b.heartbeatFor(list, false, nil)
	}
}

func (b *rwBench) pass(ms int64) {
	b.begin("%d ms pass", ms)
	b.rwModel.begin(b.now + ms)
	b.mini.SetTime(time.UnixMilli(b.now))
	b.compare()
}

// compare compares the server's data and messages with the model.
func (b *rwBench) compare() {
	b.r.Helper()
	pipe := b.rdb.Pipeline()
	pipe.Publish(scriptCtx, scriptMark, scriptMark)
	leases := pipe.ZRangeWithScores(scriptCtx, b.keys[0], 0, -1)
	queue := pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1)
	var expiry [4]*redis.DurationCmd
	for i, k := range b.keys {
		expiry[i] = pipe.PTTL(scriptCtx, k)
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.failf("%v", err)
	}
	scores := map[string]int64{}
	for _, z := range leases.Val() {
		scores[z.Member.(string)] = int64(z.Score)
	}
	b.marks(scores)
	b.messages(scores)
	b.fences(scores)

	// Leases.
	for _, q := range b.all {
		end := scores[q.token]
		switch {
		case b.holds(q):
			if !b.near(end, q.end) {
				b.failf("the lease of %s ends at %d, want %d", q.token, end, q.end)
			}
			if fence := scores["#"+q.token]; fence != q.fence {
				b.failf("the fence of %s is %d, want %d", q.token, fence, q.fence)
			}
			q.end = end
		case end > b.now:
			b.failf("%s holds it until %d", q.token, end)
		}
	}

	for member := range scores {
		if _, is := scores[strings.TrimLeft(member, "#+")]; !is {
			b.failf("%s is left of a lease that is over", member)
		}
	}

	// The queue. It expires a second after the last heartbeat.
	waiters, lapses := b.split(queue.Val())
	if len(waiters) == 0 && !slices.ContainsFunc(b.queue(), func(q *rwReq) bool { return q.lapse > b.now-1000 }) {
		for _, q := range b.queue() {
			b.skip(q, "the queue has expired")
		}
	}
	for got := waiters; ; {
		waiting := b.queue()
		same := len(got) == len(waiting)
		for i := 0; same && i < len(got); i++ {
			same = got[i].Member == waiting[i].token && int64(got[i].Score) == waiting[i].place
		}
		if same {
			break
		}
		if len(waiting) <= len(got) {
			b.failf("%v wait, want %s", got, rwTokens(waiting))
		}
		b.headNotNotified(waiting[0])
	}
	for _, q := range b.queue() {
		if !b.near(lapses[q.token], q.lapse) {
			b.failf("the heartbeat of %s lapses at %d, want %d", q.token, lapses[q.token], q.lapse)
		}
		q.lapse = lapses[q.token]
	}

	for i, d := range expiry {
		ms := d.Val().Milliseconds()
		switch {
		case d.Val() == -2: // it does not exist
		case ms <= 0:
			b.failf("%s does not expire: %v", b.keys[i], d.Val())
		case i == 0 && ms < b.remaining()-b.tolerance:
			b.failf("%s expires in %d ms, a lease lasts %d", b.keys[i], ms, b.remaining())
		}
	}
}

// marks compares which leases are stored as retained and not recalled, and takes that from the fences.
func (b *rwBench) marks(scores map[string]int64) {
	b.r.Helper()
	for _, q := range b.all {
		fence := scores["#"+q.token]
		marked := fence >= rwFurther
		if b.holds(q) && marked != q.marked {
			b.failf("%s is stored as retained: %v, want %v", q.token, marked, q.marked)
		}
		if marked {
			scores["#"+q.token] = fence - rwFurther + rwEndless
		}
	}
}

// headNotNotified: the head is gone, perhaps because nobody received the message when it should retry.
func (b *rwBench) headNotNotified(q *rwReq) {
	b.r.Helper()
	if held := b.holders(); b.rwModel.subscribed[q.keeper] || q.unnotifiable || len(held) == 0 || held[0].reads() {
		b.failf("%s has left the queue", q.token)
	}
	b.skip(q, "not subscribed for the notification of the head")
}

// messages compares the messages of the step.
func (b *rwBench) messages(scores map[string]int64) {
	b.r.Helper()
	changes := map[string][]*rwReq{}
	count := map[string]int{}
	recalls := map[*rwReq]int{}
	for {
		x, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second)
		if err != nil {
			b.failf("%v", err)
		}
		m := x.(*redis.Message)
		if m.Channel == scriptMark {
			break
		}
		keeper := strings.TrimPrefix(m.Channel, scriptWake)
		field := strings.Fields(m.Payload)
		for i := 0; i+1 < len(field); i += 2 {
			serial, _ := strconv.Atoi(field[i])
			number, _ := strconv.ParseInt(field[i+1], 10, 64)
			if serial < 1 || serial > len(b.all) || b.all[serial-1].keeper != keeper {
				b.failf("message %q to %s", m.Payload, keeper)
			}
			q := b.all[serial-1]
			if field[i+1] == "recall" {
				if recalls[q]++; slices.Contains(b.given, q) && !slices.Contains(changes[keeper], q) {
					b.reach("recalled before the message about its grant")
				}
				continue
			}
			if number < 0 && !b.notified[keeper] && -number%10 == 1 && q.lapse > 0 && q.lapse <= b.now {
				b.notified[keeper] = true
				b.reach("a lapsed waiter is notified")
				continue
			}
			if number < 0 {
				for waiting := b.queue(); len(waiting) > 0 && waiting[0] != q; waiting = waiting[1:] {
					b.headNotNotified(waiting[0])
				}
				if !q.waits || !b.near(-number, b.room()) {
					b.failf("%s was notified to retry after %d ms, want %d", q.token, -number, b.room())
				}
				b.reach("the head is notified")
				continue
			}
			q.fence = number
			changes[keeper] = append(changes[keeper], q)
			if i == 0 {
				count[keeper]++
			}
		}
	}
	for _, q := range b.recalled {
		if b.rwModel.subscribed[q.keeper] {
			recalls[q]--
			b.reach("a recall is received")
		}
	}
	for q, n := range recalls {
		if n != 0 {
			b.failf("%d recalls of %s too many", n, q.token)
		}
	}
	want := map[string][]*rwReq{}
	readers := 0
	for _, q := range b.given {
		if b.asked[q] {
			continue
		}
		if q.unnotifiable {
			q.fence = scores["#"+q.token]
			b.reach("a waiter without notifications is granted")
			continue
		}
		want[q.keeper] = append(want[q.keeper], q)
		b.reach("granted by a message: " + string(q.use))
		if q.retained {
			b.reach("a retained lease is granted by a message")
		}
		if q.use == 'r' {
			readers++
			if waiting := b.queue(); len(waiting) > 0 && waiting[0].use == 'w' && waiting[0].place+rwFurther < q.place {
				b.reach("readers pass a writer")
			}
		}
	}
	if readers > 1 {
		b.reach("several readers are admitted together")
	}
	for _, k := range keepers {
		if !slices.Equal(changes[k], want[k]) {
			b.failf("%s was notified of%s, want%s", k, rwTokens(changes[k]), rwTokens(want[k]))
		}
		if count[k] > 1 && !b.unreachable {
			b.failf("%s got %d messages", k, count[k])
		}
	}
}

// fences checks that fences rise in the order in which the step granted leases.
func (b *rwBench) fences(scores map[string]int64) {
	b.r.Helper()
	for _, q := range b.given {
		if q.end <= b.now {
			continue
		}
		if fence := scores["#"+q.token]; fence != q.fence || fence <= b.fence {
			b.failf("%s has the fence %d and was notified of %d, after %d", q.token, fence, q.fence, b.fence)
		}
		b.fence = q.fence
	}
}
