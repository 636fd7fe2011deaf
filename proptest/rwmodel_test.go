package proptest

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"pgregory.net/rapid"
)

func (q *modelReq) reads() bool { return q.use == 'r' || q.use == 'd' }

// rwTry is the place of a try during its check: behind all, because it overtakes nobody.
const rwTry = 1 << 53

// rwModel is a model of the documented read-write lock.
type rwModel struct {
	*model
	streak int       // consecutive writers granted before readers
	upTo   int64     // readers up to this place go before the next writer; 0: none
	latest *modelReq // the latest waiting upgrade: only that may be granted
}

func (m *rwModel) has(q *modelReq) bool { return m.leased(q) }

// holders returns the requests whose lease has not expired.
func (m *rwModel) holders() []*modelReq { return m.those(m.leased) }

// remaining returns the ms until the last lease expires.
func (m *rwModel) remaining() int64 {
	var most int64
	for _, q := range m.holders() {
		most = max(most, q.end-m.now)
	}
	return most
}

// after reports whether the request was made later than the other.
func (q *modelReq) after(o *modelReq) bool { return q.serial > o.serial }

// ends returns the ms until waiters may be granted the lock. An upgrade does not wait for its own read lease.
func (m *rwModel) ends() int64 {
	held := m.holders()
	slices.SortStableFunc(held, func(a, b *modelReq) int { return cmp.Compare(b.end, a.end) })
	if m.latest != nil && len(held) > 1 && held[0] == m.latest.origin {
		return held[1].end - m.now
	}
	return m.remaining()
}

// fits reports whether the request is compatible with the current leases.
func (m *rwModel) fits(q *modelReq) bool {
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
func (m *rwModel) grant(q *modelReq, until int64) {
	q.longer = 0
	if o := q.origin; o != nil {
		until = max(until, min(o.end, m.now+max(o.ttl, o.longer)))
		if until-m.now > q.ttl {
			q.longer = until - m.now
		}
		o.end = 0
	}
	q.waits, q.away, q.end, q.fence, q.marked = false, false, until, 0, q.retained
	m.given = append(m.given, q)
}

// recall recalls the retained leases for a request that does not fit beside readers.
func (m *rwModel) recall(q *modelReq) {
	for _, h := range m.holders() {
		if q.use != 'r' && h.marked {
			h.marked = false
			m.recalled = append(m.recalled, h)
			m.reach("recalled for: " + string(q.use))
		}
	}
}

// turn returns the next waiter to be granted the lock.
func (m *rwModel) turn() *modelReq {
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

// admit grants the lock to the waiters whose turn it is.
func (m *rwModel) admit() {
	for {
		if held := m.holders(); len(held) > 0 && !held[0].reads() {
			return
		}
		q := m.turn()
		if q == nil {
			return
		}
		ms, asking := m.asks[q]
		there := asking || q.unnotifiable || m.subscribed[q.keeper]
		switch {
		case q.use == 'u' && (q != m.latest || q.origin.end <= m.now):
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
func (m *rwModel) admitWriter(w *modelReq) {
	var reader *modelReq
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

// acquire models the script acquire.
func (m *rwModel) acquire(q *modelReq, waits bool, _, place int64, fast bool) (code, left int64, changed bool) {
	if fast && !m.leased(q) && !m.fits(q) { // it does not look at tombstones
		return lua.Refused, m.ends(), false
	}
	if code = m.acquires(q, waits, place); code != lua.Refused || q.use == 'd' || q.origin != nil && q.origin.end <= m.now {
		return code, 0, false
	}
	return code, m.ends(), false
}

func (m *rwModel) acquires(q *modelReq, waits bool, place int64) int64 {
	if m.tombstoned(q) {
		return lua.Tombstoned
	}
	if q.end > m.now { // a duplicate of its request
		q.end = max(q.end, m.now+q.ttl)
		if q.use == 'd' {
			m.admit()
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
				m.admit()
			}
			return lua.Granted
		}
		if m.latest != nil && (m.latest.origin != q.origin || m.latest.after(q)) && m.latest.waits && m.latest.lapse > m.now && m.latest.origin.end > m.now {
			return lua.Conflict
		}
		if waits {
			if m.latest != nil && m.latest != q && m.latest.waits && m.latest.origin.end > m.now {
				m.skip(m.latest, "a later upgrade waits")
			}
			m.latest = q
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
		m.asks[q] = q.ttl
		m.admit()
	} else {
		q.waits = false
		m.admit()
	}
	switch {
	case q.end > m.now:
		return lua.Granted
	case !waits:
		q.waits, q.away = false, false
		return lua.Refused
	case !q.waits:
		return -1 // it was skipped for good
	}
	return lua.Waiting
}

// release models the script release.
func (m *rwModel) release(q *modelReq, tombstone int64, _ int, _ int64) int64 {
	code := int64(lua.Refused)
	switch {
	case q.end > m.now:
		code = lua.Granted
	case q.waits:
		code = lua.Left
	}
	q.waits, q.end, q.away = false, 0, false
	if tombstone > 0 {
		m.bury(q, tombstone)
	}
	m.admit()
	return code
}

// renew models the script renew.
func (m *rwModel) renew(q *modelReq, ms int64, exact bool, keys int) int64 {
	if q.end <= m.now {
		return lua.Refused
	}
	if end := m.now + ms; exact || end > q.end {
		q.end = end
	}
	if keys > 1 && ms > q.ttl {
		q.longer = ms
	}
	if keys == 4 {
		m.admit()
	}
	return lua.Granted
}

func (m *rwModel) admitsBeats() { m.admit() }

// reports is what a heartbeat reports of a request that does not wait.
func (m *rwModel) reports(q *modelReq, back bool) int64 {
	switch {
	case m.leased(q):
		q.told = q.end // before others are granted, an upgrade in place of one of them
		return lua.Held
	case back && m.tombstoned(q):
		return lua.Tombstoned
	case q.use == 'u' && (m.latest == nil || m.latest.origin.end <= m.now):
		return lua.Refused
	case q.use == 'u' && m.latest != q:
		m.reach("an upgrade yields")
		return lua.Conflict
	}
	return noReport
}

// rwFurther is the offset of the places of readers.
const rwFurther = 4500000000000000

// rwEndless is the end of the scores of leases. The fence of a retained lease is stored rwFurther - rwEndless larger.
const rwEndless = 900000000000000

// rwBench runs the scripts beside the model.
type rwBench struct {
	*rwModel
	*modelBench
}

func newRWBench(b *modelBench) modelled { return &rwBench{&rwModel{model: b.m}, b} }

// TestRWLockScriptsMatchModel checks read-write locks, with upgrades, downgrades and retained leases.
func TestRWLockScriptsMatchModel(t *testing.T) {
	matchesModel(t, lua.RWLock, 0.6,
		"granted at once: r", "granted at once: w", "granted at once: u", "granted at once: d",
		"granted by the fast script", "handed on by the fast script", "refused by the fast script", "left to the general script",
		"granted by a message: r", "granted by a message: w", "granted by a message: u",
		"granted by a reply: r", "granted by a reply: w", "granted by a reply: u",
		"several are admitted together", "a try is granted past waiters that are gone",
		"a conflict", "a conversion is refused", "a writer and readers wait", "a streak of writers ends", "readers pass a writer",
		"skipped: its read lease has expired", "an upgrade is skipped and keeps its read lease", "rejoined the queue and granted",
		"recalled for: w", "recalled for: u", "a recall is received", "a retained lease is granted by a message",
		"a renewal replies that the lease was recalled", "recalled before the message about its grant",
	)
}

func TestRWLockScriptsMatchModelOnRealServer(t *testing.T) {
	matchesModelOnRealServer(t, lua.RWLock, 0.1)
}

func (b *rwBench) commands() map[string]func(*rapid.T) {
	list := map[string]func(*rapid.T){
		"a writer arrives":       func(*rapid.T) { b.asks(b.newOf('w'), true, 0) },
		"an upgrade":             func(*rapid.T) { b.converts('u') },
		"another upgrade":        func(*rapid.T) { b.converts('u') },
		"an upgrade's turn":      b.upgradesTurn,
		"another upgrade's turn": b.upgradesTurn,
		"a downgrade":            func(*rapid.T) { b.converts('d') },
	}
	if b.mini != nil {
		list["the other leases expire"] = func(*rapid.T) { b.endButFor(b.some("lease", b.leased)) }
	}
	return list
}

// beats: without readers, a pass remains until the next check, and holds for those that rejoin.
func (b *rwBench) beats() {
	if b.upTo == 0 {
		b.upTo, _ = b.rdb.HGet(scriptCtx, b.keys[1], "pass").Int64()
	}
}

// mayBeGone: perhaps nobody received the message when the head should retry, or the queue has expired, a second after the last
// heartbeat.
func (b *rwBench) mayBeGone(q *modelReq) bool {
	held := b.holders()
	return !b.subscribed[q.keeper] && !q.unnotifiable && len(held) > 0 && !held[0].reads() || q.lapse <= b.now-1000
}

func (b *rwBench) mayRepeat(*modelReq) bool { return true }
func (b *rwBench) policyArg() string        { return "" }
func (b *rwBench) compares(*stored)         {}

func (b *rwBench) arrives() *modelReq {
	return b.newOf(rapid.SampledFrom([]byte("rrw")).Draw(b.r, "use"))
}

// newOf draws a request of a use.
func (b *rwBench) newOf(use byte) *modelReq {
	return b.newReq(func(q *modelReq) string {
		q.use = use
		flags := string(use) + strings.Repeat("s", yes(q.unnotifiable))
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
		return flags
	})
}

// evalFast runs the fast script. It may not leave to the general one what it can decide.
func (b *rwBench) evalFast(q *modelReq, _ bool) []int64 {
	if q.origin != nil || q.retained {
		return nil
	}
	seq, _ := b.rdb.HGet(scriptCtx, b.keys[1], "seq").Int64()
	epoch, us := protocol.EpochOf(idle.Milliseconds()), b.now*1000
	expired := b.rdb.ZCount(scriptCtx, b.keys[0], "1", strconv.FormatInt(b.now, 10)).Val()
	got, _ := b.evalFastAcquire(lua.RWLock, q.token, q.ttl, "")
	held := b.holders()
	grants := b.fits(q) && !b.tombstoned(q) && seq >= us-us%epoch
	refuses := !b.fits(q) && !held[0].reads() && held[0].end-b.now <= held[0].ttl
	if got == nil && b.mini != nil && expired == 0 && len(b.queue()) == 0 && !b.leased(q) && (grants || refuses) {
		b.failf("the fast script has not decided it")
	}
	return got
}

func (b *rwBench) eval(q *modelReq, waits bool, _ int64) []int64 {
	policyArg := ""
	if q.origin != nil {
		policyArg = q.origin.token
	}
	if q.retained {
		policyArg = protocol.PolicyArgRetain
	}
	return b.modelBench.scriptBench.eval(lua.RWLock.Acquire, acquireArgs(q.token, q.ttl, heartbeatTimeout.Milliseconds()*int64(yes(waits)), policyArg, 0))
}

// converts requests a lease in place of another, mostly a valid one.
func (b *rwBench) converts(use byte) {
	odd := rapid.IntRange(0, 5).Draw(b.r, "odd") == 0
	from := b.some("origin", func(q *modelReq) bool { return odd || b.leased(q) && q.reads() == (use == 'u') })
	if use == 'u' && !from.reads() {
		b.r.Skip("it is a write lease")
	}
	waits := use == 'd' || rapid.IntRange(0, 3).Draw(b.r, "try") > 0
	q := b.newOf(use)
	q.origin = from
	b.asks(q, waits, 0)
}

// upgradesTurn lets an upgrade wait until it is alone, when its process may be gone.
func (b *rwBench) upgradesTurn(*rapid.T) {
	held := b.holders()
	if len(held) < 2 {
		b.r.Skip("none")
	}
	var q *modelReq
	if b.latest != nil && b.latest.waits && b.leased(b.latest.origin) {
		q = b.latest
	} else {
		origin := draw(b.r, held, "origin")
		q = b.newOf('u')
		q.origin = origin
		if b.asks(q, true, 0); !q.waits {
			return
		}
	}
	if rapid.IntRange(0, 2).Draw(b.r, "another") == 0 {
		other := b.newOf('u')
		other.origin = draw(b.r, held, "origin")
		b.asks(other, true, 0)
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
			b.releases(other, 0)
		}
	}
}

// endButFor advances time, with all heartbeats and one lease kept, until the other leases have expired.
func (b *rwBench) endButFor(keep *modelReq) {
	for left := b.remaining() + 1; left > 0; left -= 5000 {
		b.renewed(keep, 30000, 1, 4)
		b.allHeartbeat()
		b.pass(min(left, 5000))
	}
	b.allHeartbeat()
}

func (b *rwBench) allHeartbeat() {
	for _, k := range keepers {
		b.heartbeatFor(b.those(func(q *modelReq) bool { return q.waits && q.keeper == k }), false, nil)
	}
}

// decodes compares which leases are stored as retained and not recalled, and takes that from the fences.
func (b *rwBench) decodes(s *stored) {
	b.r.Helper()
	for _, q := range b.all {
		fence := s.holder["#"+q.token]
		marked := fence >= rwFurther
		if b.leased(q) && marked != q.marked {
			b.failf("%s is stored as retained: %v, want %v", q.token, marked, q.marked)
		}
		if marked {
			s.holder["#"+q.token] = fence - rwFurther + rwEndless
		}
	}
	for member := range s.holder {
		if _, is := s.holder[strings.TrimLeft(member, "#+")]; !is {
			b.failf("%s is left of a lease that is over", member)
		}
	}
}
