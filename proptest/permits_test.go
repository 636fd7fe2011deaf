package proptest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"pgregory.net/rapid"
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

// of returns the limits as an argument of the scripts of a primitive, if it has any.
func (l permitLimits) of(set *lua.Set) string {
	if set != lua.Semaphore {
		return ""
	}
	return l.String()
}

// kind returns h, c or hc, as in tokens with permits under these limits.
func (l permitLimits) kind() string {
	return strings.Repeat("h", yes(l.atOnce > 0)) + strings.Repeat("c", yes(l.window > 0))
}

// permitModel is a model of the documented semaphore.
type permitModel struct {
	*model
	callers      permitLimits       // of the present callers
	lastNotified *permitLimits      // the limits of the last caller; nil: lost, or there was none
	force        *permitLimits      // in force
	rules        *permitLimits      // the limits of this step: those in force, or the caller's
	pausedUntil  int64              // until when nothing is granted by the clock
	ineligible   map[*modelReq]bool // requests above the limit in this step
}

func (m *permitModel) begin(now int64) {
	m.model.begin(now)
	m.rules, m.ineligible = m.force, map[*modelReq]bool{}
	if m.pausedUntil != 0 && m.pausedUntil <= now {
		m.reach("a pause has ended")
		m.pausedUntil = 0
	}
}

// spends reports whether the permits that the request took have not returned to a window.
func (m *permitModel) spends(q *modelReq, per int64) bool {
	return q.taken != 0 && q.taken+per >= m.now
}

// has reports whether the request has an unexpired grant: a lease, or else permits by the clock.
func (m *permitModel) has(q *modelReq) bool {
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

func (m *permitModel) fits(q *modelReq, l permitLimits) bool {
	atOnce, window := m.room(l)
	return (!q.holds || q.permits <= atOnce) && (!q.byClock || q.permits <= window)
}

// above reports whether there are never so many permits.
func (q *modelReq) above(l permitLimits) bool {
	return q.holds && q.permits > unlimited(l.atOnce) || q.byClock && q.permits > unlimited(l.window)
}

// reachable reports whether a waiter asks in this step, or can be notified.
func (m *permitModel) reachable(q *modelReq) bool {
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
func (m *permitModel) minWait(q *modelReq) int64 {
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
func (m *permitModel) grant(q *modelReq, ms int64) {
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
func (m *permitModel) dropIneligible(q *modelReq) {
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
func (m *permitModel) acquire(q *modelReq, waits bool, patience, place int64, _ bool) (code, left int64, changed bool) {
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
func (m *permitModel) release(q *modelReq, tombstone int64, cancel int, _ int64) int64 {
	code, unused := int64(lua.Refused), cancel > 0
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
		m.bury(q, tombstone)
	}
	m.admit()
	return code
}

// renew models the script renew.
func (m *permitModel) renew(q *modelReq, ms int64, exact bool, keys int) int64 {
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

func (m *permitModel) beats() {
	if limits := m.callers; m.rules == nil {
		m.rules = &limits
	}
}

// reports is what a heartbeat reports of a request that does not wait.
func (m *permitModel) reports(q *modelReq, back bool) int64 {
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

func (m *permitModel) admitsBeats() {
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

// permitBench runs the scripts beside the model.
type permitBench struct {
	*permitModel
	*modelBench
	light   bool    // each request is for one permit, as the fast script of a window wants them all
	allowed []int64 // what allow has said in this step
}

func newPermitBench(b *modelBench) modelled {
	p := &permitBench{&permitModel{model: b.m}, b, rapid.Bool().Draw(b.r, "each for one permit"), nil}
	p.callers = p.drawLimits(rapid.SampledFrom([]string{"h", "c", "hc"}).Draw(b.r, "kind"))
	return p
}

// takings replaces the scores of permits that return by the clock, which are minus the µs at which they were taken, by ms. It adds
// the fence of those without a lease, which is that time unless it is stored, and the count that a key with nothing else leaves out.
func takings(scores map[string]int64) {
	_, held := scores["used"]
	if _, counted := scores["spent"]; !counted && !held && len(scores) > 0 {
		scores["spent"] = -int64(len(scores))
	}
	for member, at := range scores {
		if token, is := strings.CutPrefix(member, "@"); is {
			scores[member] = -at / 1000
			t, _ := protocol.ParseToken(token)
			if _, stored := scores["#"+token]; !stored && !strings.Contains(t.Flags, protocol.FlagHeld) {
				scores["#"+token] = -at
			}
		}
	}
}

// TestSemaphoreScriptsMatchModel checks semaphores and rate limits: never more permits are held than the limit under which they were
// granted, and permits by the clock are counted until they return.
func TestSemaphoreScriptsMatchModel(t *testing.T) {
	matchesModel(t, lua.Semaphore, 0.6,
		"granted by the fast script", "handed on by the fast script", "allowed by the fast script",
		"granted at once: h", "granted at once: c", "granted at once: hc",
		"granted by a message: h", "granted by a message: c", "granted by a message: hc",
		"granted by a reply: h", "granted by a reply: c", "granted by a reply: hc",
		"several are admitted together", "a try is refused until a time",
		"a try is granted past waiters that are gone", "allow says what remains", "it cannot wait so long", "it can wait so long",
		"a light one waits behind a heavy one", "more than the limit is asked for", "permits are taken once more by one token",
		"permits return by the clock", "a lease outlasts its permits' window",
		"skipped: it asks for more than the limit", "the head is notified of the clock", "rejoined the queue and granted",
		"released unused", "the limit is raised", "the limit is lowered", "a caller changes the limits", "the metadata is lost",
		"a pause while others wait", "a longer pause stays", "a pause is ended, and waiters are admitted", "a pause has ended",
	)
}

func TestSemaphoreScriptsMatchModelOnRealServer(t *testing.T) {
	matchesModelOnRealServer(t, lua.Semaphore, 0.1)
}

func (b *permitBench) commands() map[string]func(*rapid.T) {
	list := map[string]func(*rapid.T){
		"a waiter arrives with little time": b.acquiresWithin,
		"several tries":                     b.severalTry,
		"a lease is released unused":        b.givenBack,
		"the lock is inspected":             func(*rapid.T) { b.limitIs(0) },
		"the limit is set":                  func(*rapid.T) { b.limitIs(rapid.Int64Range(1, 8).Draw(b.r, "limit")) },
		"the limit is paused":               b.pauses,
		"callers change":                    b.callersChange,
	}
	if b.mini != nil {
		list["something else ends"] = b.somethingEnds
		list["the metadata is lost"] = b.metadataIsLost
	}
	return list
}

func (b *permitBench) policyArg() string { return b.callers.String() }

// mayBeGone: waiters that cannot be notified, or that ask for more than the limit, may be removed before their turn.
func (b *permitBench) mayBeGone(q *modelReq) bool {
	if b.rules != nil && q.above(*b.rules) {
		b.dropIneligible(q)
		return true
	}
	return !b.reachable(q)
}

// mayRepeat: no two kinds wait together.
func (b *permitBench) mayRepeat(q *modelReq) bool { return q.limits.kind() == b.callers.kind() }

func (b *permitBench) decodes(s *stored) { takings(s.holder) }

// drawLimits draws limits of a kind.
func (b *permitBench) drawLimits(kind string) permitLimits {
	var l permitLimits
	if kind != "c" {
		l.atOnce = rapid.Int64Range(1, 6).Draw(b.r, "at once")
	}
	if kind != "h" {
		l.window = rapid.Int64Range(1, 8).Draw(b.r, "in a window")
		l.per = rapid.SampledFrom([]int64{1000, 100, 5000, 20000}).Draw(b.r, "per")
		if b.mini == nil {
			l.per = 600_000
		}
	}
	return l
}

func (b *permitBench) arrives() *modelReq {
	return b.newReq(func(q *modelReq) string {
		q.limits, q.holds, q.byClock, q.permits = b.callers, b.callers.atOnce > 0, b.callers.window > 0, 1
		if most := q.limits.most(); !b.light && rapid.Bool().Draw(b.r, "heavy") {
			q.permits = rapid.Int64Range(1, most).Draw(b.r, "permits")
		}
		return q.limits.kind() + strings.Repeat("s", yes(q.unnotifiable)) + strconv.FormatInt(q.permits, 10)
	})
}

// severalTry tries where nobody waits, which the fast scripts decide: that of a window not twice at one time.
func (b *permitBench) severalTry(*rapid.T) {
	if len(b.queue()) > 0 {
		b.r.Skip("some wait")
	}
	for range rapid.IntRange(2, 4).Draw(b.r, "how many") {
		b.asks(b.arrives(), false, 0)
		if b.mini != nil {
			b.pass(rapid.SampledFrom([]int64{1, 1, b.callers.per/2 + 1}).Draw(b.r, "between"))
		}
	}
}

// acquiresWithin is a request that cannot wait for long.
func (b *permitBench) acquiresWithin(*rapid.T) {
	per := b.callers.per
	b.asks(b.arrives(), true, rapid.SampledFrom([]int64{1, per/2 + 1, per + 1, 3 * (per + 1)}).Draw(b.r, "within"))
}

// evalFast runs the fast script, for some tries in place of allow.
func (b *permitBench) evalFast(q *modelReq, waits bool) []int64 {
	got, quota := b.evalFastAcquire(lua.Semaphore, q.token, q.ttl, q.limits.String())
	if got == nil || !b.allows(q, waits) {
		return got
	}
	b.reach("allowed by the fast script")
	if got[0] == lua.Granted {
		b.allowed = []int64{q.limits.window, quota, q.limits.per + 1}
	} else {
		b.allowed = []int64{q.limits.window, 0, quota}
	}
	return got
}

// allows draws whether a try that is granted without a lease is one by allow.
func (b *permitBench) allows(q *modelReq, waits bool) bool {
	return !waits && q.limits.kind() == "c" && rapid.Bool().Draw(b.r, "by allow")
}

func (b *permitBench) eval(q *modelReq, waits bool, within int64) []int64 {
	if !b.allows(q, waits) {
		return b.modelBench.scriptBench.eval(lua.Semaphore.Acquire, acquireArgs(q.token, q.ttl, heartbeatTimeout.Milliseconds()*int64(yes(waits)), q.limits.String(), within))
	}
	got := b.modelBench.scriptBench.eval(lua.RateLimit.Allow, protocol.AllowArgs(nil, q.token, q.ttl, q.limits.String(), scriptSettings))
	if got[0] == lua.Granted || got[0] == lua.Refused {
		b.allowed, got = got[len(got)-3:], got[:len(got)-3]
	}
	return got
}

// remains compares what allow said of the window: the limit, what remains of it, and in how many ms all have returned.
func (b *permitBench) remains() {
	b.r.Helper()
	_, left := b.room(*b.rules)
	last := int64(0)
	for _, q := range b.all {
		if b.spends(q, b.rules.per) {
			last = max(last, min(q.taken-b.now, 0)+b.rules.per+1)
		}
	}
	b.reach("allow says what remains")
	last = max(last, b.paused())
	if got := b.allowed; got[0] != b.rules.window || b.tolerance == 0 && got[1] != max(left, 0) || !b.near(got[2], last) {
		b.failf("allow says %v, want %d, %d, %d", got, b.rules.window, max(left, 0), last)
	}
	b.allowed = nil
}

// fitsNow reports whether there are as many permits as the request wants.
func (b *permitBench) fitsNow(q *modelReq) bool {
	atOnce, window := b.room(*b.rules)
	return min(atOnce, window) >= q.permits
}

// alsoIneligible takes the waiters that a heartbeat found to be above the limit from its reply.
func (b *permitBench) alsoIneligible(list []*modelReq, received, changes map[string][]int64) {
	for _, q := range list {
		if q.waits && q.above(*b.rules) && slices.Contains(received[q.token], lua.AboveLimit) {
			b.dropIneligible(q)
		}
		if b.ineligible[q] {
			changes[q.token] = append(changes[q.token], lua.AboveLimit)
		}
	}
}

func (b *permitBench) givenBack(*rapid.T) {
	b.releases(b.some("who", func(q *modelReq) bool { return b.leased(q) || q.taken != 0 }), 1)
}

// limitIs runs limit.
func (b *permitBench) limitIs(limit int64) {
	b.starts("the limit is set to %d by a caller with %v", limit, b.callers)
	was := b.force
	want := b.limit(b.callers, limit, 0)
	got := b.modelBench.scriptBench.eval(lua.Semaphore.Limit, limitArgs(b.callers.String(), int(limit), ""))
	b.limitReplied(got, want)
	if was != nil && limit > 0 {
		switch now := *b.force; {
		case now.most() > was.most():
			b.reach("the limit is raised")
		case now.most() < was.most():
			b.reach("the limit is lowered")
		}
	}
	b.compare()
}

// limitReplied compares a reply of limit with that of the model.
func (b *permitBench) limitReplied(got, want []int64) {
	b.r.Helper()
	if n := len(want) - 1; len(got) != len(want) || !slices.Equal(got[:n], want[:n]) || !b.near(got[n], want[n]) {
		b.failf("reply %v, want %v", got, want)
	}
}

// pauses sets a pause, or ends it.
func (b *permitBench) pauses(*rapid.T) {
	if b.callers.window == 0 {
		b.r.SkipNow()
	}
	lengths := []int64{1, 70, 1000, b.callers.per, 3*b.callers.per + 1, -1}
	if b.mini == nil { // none ends by itself
		lengths = []int64{600_000, 1_200_000, -1}
	}
	if b.paused() > 0 {
		lengths = append(lengths, -1, -1, -1)
	}
	ms := rapid.SampledFrom(lengths).Draw(b.r, "pause")
	b.starts("a pause of %d ms by a caller with %v", ms, b.callers)
	had, waiters := b.paused(), len(b.queue())
	want := b.limit(b.callers, 0, ms)
	b.limitReplied(b.modelBench.scriptBench.eval(lua.Semaphore.Limit, pauseArgs(b.callers.String(), ms)), want)
	switch {
	case ms < 0 && had > 0 && len(b.queue()) < waiters:
		b.reach("a pause is ended, and waiters are admitted")
	case ms > 0 && had > ms:
		b.reach("a longer pause stays")
	case ms > 0 && waiters > 0:
		b.reach("a pause while others wait")
	}
	b.compare()
}

// callersChange changes the limits that later callers know, mostly without changing the kind. No two kinds wait
// together: what is granted together then depends on what was swept before.
func (b *permitBench) callersChange(*rapid.T) {
	kind := b.callers.kind()
	if len(b.queue()) == 0 && rapid.Bool().Draw(b.r, "odd") {
		kind = rapid.SampledFrom([]string{"h", "c", "hc"}).Draw(b.r, "kind")
	}
	b.callers = b.drawLimits(kind)
	if b.callers.per == 0 && b.mini == nil {
		time.Sleep(2 * time.Millisecond) // of permits that were taken in this millisecond a real server knows the µs
	}
}

// metadataIsLost evicts the metadata. Fences still rise, because time has passed.
func (b *permitBench) metadataIsLost(*rapid.T) {
	b.pass(1)
	b.starts("the metadata is lost")
	if err := b.rdb.Del(scriptCtx, b.keys[1]).Err(); err != nil {
		b.failf("%v", err)
	}
	b.lastNotified, b.force, b.rules, b.pausedUntil, b.tombstonesUntil, b.seq = nil, nil, nil, 0, 0, 0
	b.reach("the metadata is lost")
}

// returns lists when permits return by the clock, and when a pause ends.
func (b *permitBench) returns() []int64 {
	list := []int64{b.pausedUntil}
	for _, q := range b.all {
		if b.force != nil && q.taken != 0 {
			list = append(list, q.taken+b.force.per+1)
		}
	}
	return list
}

// compares compares the permits that return by the clock, and what is counted. Expired ones may still be stored, and are counted until
// they are removed; the model does not know them.
func (b *permitBench) compares(s *stored) {
	b.r.Helper()
	scores, expiry, per := s.holder, s.expiry[0], int64(0)
	if b.rules != nil {
		per = b.rules.per
	}
	var used, spent int64
	members := map[string]bool{"used": true, "spent": true}
	for _, q := range b.all {
		_, leased := scores[q.token]
		mark, took := scores["@"+q.token]
		fence, numbered := scores["#"+q.token]
		for _, member := range []string{q.token, "@" + q.token, "#" + q.token} {
			members[member] = true
		}
		if leased {
			used += q.permits
			members["+"+q.token] = true
		}
		switch {
		case took && !b.near(mark, q.taken):
			b.failf("%s took permits at %d, want %d", q.token, mark, q.taken)
		case took:
			spent, q.taken = spent+q.permits, mark
			if b.force != nil && expiry < q.taken+per-b.now-b.tolerance {
				b.failf("what is taken expires in %d ms, what %s took returns in %d", expiry, q.token, q.taken+per-b.now)
			}
			if b.leased(q) && !b.spends(q, per) {
				b.reach("a lease outlasts its permits' window")
			}
		case b.rules != nil && b.spends(q, per) && q.taken+per-b.now >= b.tolerance: // otherwise they may have returned by now
			b.failf("nothing is left of what %s took at %d", q.token, q.taken)
		case q.taken != 0:
			b.reach("permits return by the clock")
			q.taken = 0
		}
		if numbered != (leased || took && !q.holds) {
			b.failf("%s: a lease %v, permits taken %v, a fence %v", q.token, leased, took, numbered)
		}
		if numbered && fence != q.fence {
			b.failf("the fence of %s is %d, want %d", q.token, fence, q.fence)
		}
	}
	if -scores["used"] != used || -scores["spent"] != spent {
		b.failf("the counts are %d and %d, want %d and %d", -scores["used"], -scores["spent"], used, spent)
	}
	for member := range scores {
		if !members[member] {
			b.failf("%s is left of an expired lease", member)
		}
	}
}
