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
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// rwReq is a request for a read or write lease, and what the model knows of it.
type rwReq struct {
	token  string
	keeper string
	serial int
	use    byte // r, w, u, d
	streak int  // of a writer: how many may pass readers that wait; 0: any number
	mute   bool // it cannot be told by a message
	ttl    int64
	origin *rwReq // of an upgrade or a downgrade

	waits  bool
	place  int64 // in line, or the last it had
	lapse  int64 // of its heartbeat
	end    int64 // of its lease
	fence  int64
	buried int64 // until
	away   bool  // it was taken out of line and may come back
	longer int64 // ms that its lease was made to last, if more than its ttl
}

func (q *rwReq) reads() bool { return q.use == 'r' || q.use == 'd' }
func (q *rwReq) claimTTL() int64 {
	return min(q.ttl, life.Milliseconds())
}

// rwTry is where a try stands while it is looked whether it need not wait: behind all, because it passes nobody.
const rwTry = 1 << 53

// rwModel is the read-write lock as it is documented.
type rwModel struct {
	now    int64
	all    []*rwReq
	hears  map[string]bool // keepers that listen
	streak int             // writers in a row that were let in past readers
	upTo   int64           // the readers up to this place go before the next writer; 0: there is no pass
	last   *rwReq          // the upgrade that has waited last: only that may be let in
	given  []*rwReq        // let in by the present step, in order,
	asked  map[*rwReq]bool // those of them that learn of it by the reply
	deaf   bool            // somebody was not there to be told
	called map[string]bool // keepers that were told to ask because a heartbeat had lapsed
	reach  func(string)
}

// holders is those whose lease is not over.
func (m *rwModel) holders() []*rwReq {
	var list []*rwReq
	for _, q := range m.all {
		if q.end > m.now {
			list = append(list, q)
		}
	}
	return list
}

// queue is those who wait: upgrades, then writers, then readers, in order of arrival.
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

// left is in how many ms the last lease ends.
func (m *rwModel) left() int64 {
	var most int64
	for _, q := range m.holders() {
		most = max(most, q.end-m.now)
	}
	return most
}

// after says whether the request was made later than the other.
func (q *rwReq) after(o *rwReq) bool {
	serial := func(q *rwReq) int {
		n, _ := strconv.Atoi(strings.Split(q.token, ":")[1])
		return n
	}
	return serial(q) > serial(o)
}

// room is in how many ms there may be room for those who wait. An upgrade does not wait for its own read lease.
func (m *rwModel) room() int64 {
	held := m.holders()
	slices.SortStableFunc(held, func(a, b *rwReq) int { return cmp.Compare(b.end, a.end) })
	if m.last != nil && len(held) > 1 && held[0] == m.last.origin {
		return held[1].end - m.now
	}
	return m.left()
}

// fits says whether the request goes with what is held now.
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

// grant is a lease that lasts until then, and no less than the one in whose place it comes would have.
func (m *rwModel) grant(q *rwReq, until int64) {
	q.longer = 0
	if o := q.origin; o != nil {
		until = max(until, min(o.end, m.now+max(o.ttl, o.longer)))
		if until-m.now > q.ttl {
			q.longer = until - m.now
		}
		o.end = 0
	}
	q.waits, q.away, q.end, q.fence = false, false, until, 0
	m.given = append(m.given, q)
}

// skip takes a waiter out of line, which may come back.
func (m *rwModel) skip(q *rwReq, why string) {
	q.waits, q.away = false, true
	m.reach("passed over: " + why)
}

// turn is whose turn it is, of those who wait.
func (m *rwModel) turn() *rwReq {
	line := m.queue()
	if len(line) == 0 {
		return nil
	}
	if line[0].use == 'w' {
		for _, q := range line {
			if q.use == 'r' && q.place <= m.upTo {
				return q
			}
		}
		m.upTo = 0
	}
	return line[0]
}

// admit lets in whoever may be let in. Asks is who asks right now, and how long the lease is to be that it gets.
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
		there := asking || q.mute || m.hears[q.keeper]
		switch {
		case q.use == 'u' && (q != m.last || q.origin.end <= m.now):
			m.skip(q, "its read lease is over")
		case !asking && q.lapse <= m.now:
			m.skip(q, "its heartbeat has lapsed")
		case !there:
			if m.deaf = true; q.use == 'u' && m.fits(q) {
				m.reach("an upgrade is given its read lease back")
			}
			m.skip(q, "it does not listen")
		case !m.fits(q):
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

// admitWriter counts a writer that has waited.
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

// begin is a step at a time.
func (m *rwModel) begin(now int64) {
	m.now, m.given, m.asked, m.deaf, m.called = now, nil, map[*rwReq]bool{}, false, map[string]bool{}
}

// acquire is acquire, with ms for the lease; a try if it does not wait. Place is where a newcomer comes to stand. It returns
// the code of the reply.
func (m *rwModel) acquire(q *rwReq, waits bool, place int64) int64 {
	if q.buried > m.now {
		return lua.Tombstoned
	}
	asks := map[*rwReq]int64{q: q.ttl}
	if q.end > m.now { // a copy of its request
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
				m.skip(m.last, "another upgrade has come")
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
		q.lapse = m.now + life.Milliseconds()
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
		q.waits, q.away = false, false
		return lua.Refused
	case !q.waits:
		return -1 // it was not its turn and never will be
	}
	return lua.Waiting
}

// release is release.
func (m *rwModel) release(q *rwReq, bury int64) int64 {
	code := int64(lua.Refused)
	switch {
	case q.end > m.now:
		code = lua.Granted
	case q.waits:
		code = lua.Left
	}
	q.waits, q.end, q.away = false, 0, false
	if bury > 0 {
		q.buried = m.now + bury
	}
	m.admit(nil)
	return code
}

// renew is renew.
func (m *rwModel) renew(q *rwReq, ms int64, exact bool) int64 {
	if q.end <= m.now {
		return lua.Refused
	}
	if end := m.now + ms; exact || end > q.end {
		q.end = end
	}
	return lua.Granted
}

// heartbeat is beat; places says where those stand who come back. It returns what is told of each.
func (m *rwModel) heartbeat(list []*rwReq, back bool, places []int64) map[*rwReq][]int64 {
	told := map[*rwReq][]int64{}
	asks := map[*rwReq]int64{}
	for i, q := range list {
		switch {
		case q.waits:
		case q.end > m.now:
			told[q] = append(told[q], lua.Held)
			continue
		case back && q.buried > m.now:
			told[q] = append(told[q], lua.Tombstoned)
			continue
		case q.use == 'u' && (m.last == nil || m.last.origin.end <= m.now):
			told[q] = append(told[q], lua.Refused)
			continue
		case q.use == 'u' && m.last != q:
			m.reach("an upgrade gives way")
			told[q] = append(told[q], lua.Conflict)
			continue
		case !back:
			told[q] = append(told[q], lua.Unknown)
			continue
		default:
			q.waits, q.away, q.place = true, false, places[i]
			told[q] = append(told[q], lua.Waiting)
		}
		q.lapse = m.now + life.Milliseconds()
		asks[q] = q.claimTTL()
	}
	for _, q := range m.queue() {
		if q.lapse <= m.now {
			m.skip(q, "its heartbeat has lapsed")
		}
	}
	m.admit(asks)
	for q := range m.asked {
		told[q] = append(told[q], lua.Granted)
	}
	return told
}

// rwBench is a server on which the scripts run beside the model.
type rwBench struct {
	*rwModel
	*scriptBench
	fence int64         // the largest so far
	high  map[int]int64 // the largest place so far of upgrades, writers, readers
}

// rwFurther is how much further back readers stand.
const rwFurther = 4500000000000000

// TestRWLockScriptsMatchModel: whatever is done to a read-write lock, in whatever order, and while time passes, the
// scripts answer, let in, tell and leave behind what the model does.
func TestRWLockScriptsMatchModel(t *testing.T) {
	rdb, mini := miniServer(t)
	run := newRun(t)
	run.explore(0.6, func(r *rapid.T) { rwSequence(r, run, rdb, mini) },
		"let in at once: r", "let in at once: w", "let in at once: u", "let in at once: d",
		"let in by a message: r", "let in by a message: w", "let in by a message: u",
		"let in by an answer: r", "let in by an answer: w", "let in by an answer: u",
		"several readers are let in together", "a try is refused", "a try is granted past those who are not there",
		"a conflict", "a conversion is refused", "a buried request", "a copy of a request", "a writer and readers wait",
		"a lease ends by itself", "a streak of writers ends", "a pass is used",
		"passed over: its read lease is over", "passed over: its heartbeat has lapsed", "passed over: it does not listen",
		"passed over: it was to be forewarned", "the first is forewarned", "an upgrade is given its read lease back",
		"one that has lapsed is called", "back in line", "back in line, and let in", "held", "unknown", "one that is mute is let in",
		"left", "released", "renewed", "shortened",
	)
}

// TestRWLockScriptsMatchModelOnRealServer is the same on a real server, for a moment.
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
	b.rwModel.hears = b.scriptBench.hears
	b.state = func() string {
		return fmt.Sprintf("%s hold it,%s wait; streak %d, a pass up to %d",
			rwTokens(b.holders()), rwTokens(b.queue()), b.streak, b.upTo)
	}
	defer b.close()
	actions := map[string]func(*rapid.T){
		"":                          func(*rapid.T) {},
		"a reader comes":            func(*rapid.T) { b.arrives('r', true) },
		"a writer comes":            func(*rapid.T) { b.arrives('w', true) },
		"several come":              b.severalArrive,
		"several more come":         b.severalArrive,
		"a reader tries":            func(*rapid.T) { b.arrives('r', false) },
		"a writer tries":            func(*rapid.T) { b.arrives('w', false) },
		"a copy arrives":            b.duplicateArrives,
		"an upgrade":                func(*rapid.T) { b.converts('u') },
		"another upgrade":           func(*rapid.T) { b.converts('u') },
		"an upgrade's turn":         b.upgradesTurn,
		"another upgrade's turn":    b.upgradesTurn,
		"a downgrade":               func(*rapid.T) { b.converts('d') },
		"a holder releases":         b.holderReleases,
		"another releases":          b.holderReleases,
		"all holders release":       b.allRelease,
		"a waiter leaves":           b.waiterLeaves,
		"a stranger leaves":         b.strangerLeaves,
		"a lease is renewed":        b.renews,
		"a keeper heartbeats":       b.heartbeats,
		"another keeper heartbeats": b.heartbeats,
		"some come back":            b.rejoins,
		"a keeper's ear changes":    b.toggleSubscription,
	}
	if mini != nil {
		actions["time passes"] = b.timePasses
		actions["a lease is let end"] = b.leaseEnds
		actions["the other leases are let end"] = b.othersEnd
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
			b.reach("a lease ends by itself")
			q.end = 0
		}
	}
}

// newReq draws a request.
func (b *rwBench) newReq(use byte) *rwReq {
	q := &rwReq{serial: len(b.all) + 1, use: use}
	q.keeper = keepers[rapid.SampledFrom([]int{0, 1, 2, 0, 1, 2, 3}).Draw(b.r, "keeper")]
	q.mute = q.keeper == "mute"
	q.ttl = rapid.SampledFrom([]int64{30000, 2000, 6000}).Draw(b.r, "ttl")
	flags := string(use)
	if q.mute {
		flags += "s"
	}
	if use == 'w' {
		if q.streak = rapid.SampledFrom([]int{1, 2, 0, 16}).Draw(b.r, "streak"); q.streak > 0 {
			flags += strconv.Itoa(q.streak)
		}
	}
	q.token = fmt.Sprintf("%s:%d:%d.%d%s", q.keeper, q.serial, q.ttl, q.claimTTL(), flags)
	b.all = append(b.all, q)
	return q
}

// class is which part of the line a request stands in.
func (q *rwReq) class() int { return strings.IndexByte("uwr", q.use) }

// behind is a place behind all of the request's part of the line, until the server has given it one. Upgrades of one
// millisecond have the same.
func (b *rwBench) behind(q *rwReq) int64 {
	if q.use == 'u' && b.mini != nil {
		return max(b.high[0], b.now)
	}
	return max(b.high[q.class()], [...]int64{1e6, 1e15, 5e15}[max(q.class(), 0)]) + 1
}

// queuedAt takes over the place of a newcomer, after all others of its part.
func (b *rwBench) queuedAt(q *rwReq, place int64) {
	b.r.Helper()
	class := q.class()
	if high := b.high[class]; place < high || place == high && q.use != 'u' {
		b.wrong("place %d after %d", place, high)
	}
	if low := [...]int64{1, 1e15, 5e15}[class]; place < low || place > low*6 && class > 0 {
		b.wrong("place %d of a %c", place, q.use)
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

// asks is acquire.
func (b *rwBench) asks(q *rwReq, waits bool) {
	b.begin("%s asks, waits %v", q.token, waits)
	newcomer, held := !q.waits, q.end > b.now
	could := len(b.queue()) > 0
	code := b.acquire(q, waits, b.behind(q))
	patience, origin := int64(0), ""
	if waits {
		patience = life.Milliseconds()
	}
	if q.origin != nil {
		origin = q.origin.token
	}
	got := b.eval(lua.RWLock.Acquire, 4, lua.AcquireArgs(nil, q.token, q.ttl, idle.Milliseconds(), patience, scriptWake, 0, origin, 0))
	if code == -1 {
		b.r.Fatalf("%s: the model has lost it", b.did)
	}
	if got[0] != code {
		b.wrong("reply %v, want code %d", got, code)
	}
	switch code {
	case lua.Granted:
		if got[3]-got[2] != q.ttl || !b.near(got[2], b.now) || got[4] != 0 {
			b.wrong("reply %v, want a lease of %d ms", got, q.ttl)
		}
		if held {
			b.reach("a copy of a request")
			if got[1] != q.fence {
				b.wrong("the fence %d became %d", q.fence, got[1])
			}
		} else {
			q.fence = got[1]
			b.reach("let in at once: " + string(q.use))
			if could && !waits && q.origin == nil {
				b.reach("a try is granted past those who are not there")
			}
		}
	case lua.Waiting:
		if newcomer {
			b.queuedAt(q, got[3])
		} else if got[3] != q.place {
			b.wrong("it moved from %d to %d", q.place, got[3])
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
			b.wrong("reply %v, want %d ms", got, left)
		}
	case lua.Conflict:
		b.reach("a conflict")
	case lua.Tombstoned:
		b.reach("a buried request")
	}
	b.compare()
	if code == lua.Waiting {
		line := b.queue()
		rank, ask := slices.Index(line, q), b.room()
		if rank > 2 {
			ask = 0
		}
		if got[4] != int64(rank) || !b.near(got[5], ask) || got[6] != 0 || got[2] < b.fence {
			b.wrong("reply %v, want rank %d, %d ms", got, rank, ask)
		}
		if line[0].use != 'r' && q.use == 'r' {
			b.reach("a writer and readers wait")
		}
	}
}

// some draws one of those for whom it is so.
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
	q := b.some("request", func(q *rwReq) bool { return b.holds(q) || q.waits || q.buried > b.now })
	b.asks(q, true)
}

// converts asks for a lease in the place of another one: mostly of one that is right.
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

// upgradesTurn: an upgrade waits until it is alone, and perhaps is not there any more then.
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
	if !q.mute {
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

// releases is release.
func (b *rwBench) releases(q *rwReq) {
	bury := rapid.SampledFrom([]int64{0, 0, 60000}).Draw(b.r, "bury")
	b.begin("%s is released, bury %d", q.token, bury)
	code := b.release(q, bury)
	got := b.eval(lua.RWLock.Release, 4, lua.ReleaseArgs(nil, q.token, idle.Milliseconds(), scriptWake, 0, bury, 0))
	if len(got) != 2 || got[0] != code || got[1] != 0 && (got[1] != 2 || len(b.queue()) > 0) {
		b.wrong("reply %v, want code %d", got, code)
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

// renews is renew.
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
	before := q.end
	code := b.renew(q, ms, exact == 1)
	if keys > 1 && code == lua.Granted && ms > q.ttl {
		q.longer = ms
	}
	if keys == 4 && code == lua.Granted {
		b.admit(nil)
	}
	got := b.eval(lua.RWLock.Renew, keys, lua.RenewArgs(nil, q.token, ms, idle.Milliseconds(), exact, scriptWake, 0))
	if got[0] != code {
		b.wrong("reply %v, want code %d", got, code)
	}
	if code == lua.Granted {
		if fence := q.fence * int64(min(keys, 2)-1); got[1] != fence {
			b.wrong("reply %v, want fence %d", got, fence)
		}
		b.reach("renewed")
		if q.end < before {
			b.reach("shortened")
		}
	}
	b.compare()
}

// heartbeats is the heartbeat of some of a keeper's requests.
func (b *rwBench) heartbeats(*rapid.T) {
	k := rapid.SampledFrom(keepers).Draw(b.r, "keeper")
	var list []*rwReq
	for _, q := range b.all {
		if q.keeper == k && (q.waits || q.away || b.holds(q)) && rapid.IntRange(0, 4).Draw(b.r, "heartbeats") > 0 {
			list = append(list, q)
		}
	}
	b.heartbeatFor(list, false, nil)
}

// rejoins is a keeper's waiters that were passed over.
func (b *rwBench) rejoins(*rapid.T) {
	k := b.some("who", func(q *rwReq) bool { return q.away }).keeper
	var list []*rwReq
	var places []int64
	for _, q := range b.all {
		if q.keeper == k && (q.away || q.buried > b.now || q.waits) && rapid.IntRange(0, 4).Draw(b.r, "comes") > 0 {
			list = append(list, q)
			places = append(places, q.place*int64(rapid.SampledFrom([]int{1, 1, 0}).Draw(b.r, "keeps its place")))
		}
	}
	b.heartbeatFor(list, true, places)
}

func (b *rwBench) heartbeatFor(list []*rwReq, back bool, places []int64) {
	b.begin("%s beat, back %v", rwTokens(list), back)
	args := lua.HeartbeatArgs(nil, idle.Milliseconds(), life.Milliseconds(), scriptWake, 0, 0, "")
	if back {
		args = lua.HeartbeatArgs(nil, idle.Milliseconds(), life.Milliseconds(), scriptWake, 0, 1, "")
	}
	if b.upTo == 0 { // a pass that nobody is left for stays until it is looked at, and holds for those who come back
		b.upTo, _ = b.rdb.HGet(scriptCtx, b.keys[1], "pass").Int64()
	}
	at := slices.Clone(places)
	ahead := map[int]int64{}
	ends := map[*rwReq]int64{} // before others are let in, an upgrade in the place of one of them
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
	told := b.heartbeat(list, back, at)
	got := b.eval(lua.RWLock.Heartbeat, 4, args)
	if got[0] != lua.Waiting || !b.near(got[1], b.now) || got[4] != 0 || (len(got)-7)%4 != 0 {
		b.wrong("reply %v", got)
	}
	heard := map[*rwReq][]int64{}
	for rest := got[7:]; len(rest) > 0; rest = rest[4:] {
		q := list[rest[0]-1]
		heard[q] = append(heard[q], rest[1])
		switch rest[1] {
		case lua.Waiting:
			if i := rest[0] - 1; places[i] != 0 && rest[2] != places[i] {
				b.wrong("reply %v: it had the place %d", got, places[i])
			} else if places[i] == 0 {
				b.queuedAt(q, rest[2])
			}
			b.reach("back in line")
			if b.asked[q] {
				b.reach("back in line, and let in")
			}
		case lua.Granted:
			q.fence = rest[2]
			if rest[3]-got[1] != q.claimTTL() {
				b.wrong("reply %v, want a claim of %d ms", got, q.claimTTL())
			}
			b.reach("let in by an answer: " + string(q.use))
		case lua.Held:
			if rest[2] != q.fence || !b.near(rest[3], ends[q]) {
				b.wrong("reply %v, want fence %d and end %d", got, q.fence, ends[q])
			}
			b.reach("held")
		case lua.Unknown:
			b.reach("unknown")
		}
	}
	if fmt.Sprint(rwCodes(heard)) != fmt.Sprint(rwCodes(told)) {
		b.wrong("reply %v tells %v, want %v", got, rwCodes(heard), rwCodes(told))
	}
	b.compare()

	// The first of them that waits.
	line := b.queue()
	first := slices.IndexFunc(line, func(q *rwReq) bool { return slices.Contains(list, q) })
	if got[5] == 0 {
		lost := func(q *rwReq) bool { return q.away } // that was the first of them
		if first >= 0 && !slices.ContainsFunc(list, lost) {
			b.wrong("reply %v, the first is %s", got, line[first].token)
		}
	} else if q := list[got[5]-1]; first < 0 || line[first].place != q.place || line[got[6]] != q {
		b.wrong("reply %v, the line is %s", got, rwTokens(line))
	} else if first < 3 && !b.near(got[3], b.room()) || first > 2 && got[3] != 0 {
		b.wrong("reply %v, want %d ms", got, b.room())
	}
}

func rwTokens(list []*rwReq) string {
	var b strings.Builder
	for _, q := range list {
		fmt.Fprintf(&b, " %s@%d", q.token, q.place)
	}
	return b.String()
}

func rwCodes(told map[*rwReq][]int64) map[string][]int64 {
	codes := map[string][]int64{}
	for q, list := range told {
		codes[q.token] = list
	}
	return codes
}

// toggleSubscription: a keeper's subscription comes or goes.
func (b *rwBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.rwModel.hears[k])
}

func (b *rwBench) timePasses(*rapid.T) {
	b.pass(rapid.SampledFrom([]int64{1, 500, 1999, 3000, 1, 500, 1999, 3000, 6000, 31000}).Draw(b.r, "ms"))
}

// leaseEnds lets time pass until a lease or a heartbeat ends, or a millisecond less.
func (b *rwBench) leaseEnds(*rapid.T) {
	q := b.some("lease", func(q *rwReq) bool { return b.holds(q) || q.waits && q.lapse > b.now })
	end := q.lapse
	if b.holds(q) {
		end = q.end
	}
	b.pass(end - b.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
}

func (b *rwBench) othersEnd(*rapid.T) { b.endButFor(b.some("lease", b.holds)) }

// endButFor lets time pass while all heartbeats are sent and one lease is kept, until the others are over.
func (b *rwBench) endButFor(keep *rwReq) {
	for left := b.left() + 1; left > 0; left -= 5000 {
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

// compare holds what lies at the server, and what it has told, against the model.
func (b *rwBench) compare() {
	b.r.Helper()
	pipe := b.rdb.Pipeline()
	pipe.Publish(scriptCtx, scriptMark, scriptMark)
	leases := pipe.ZRangeWithScores(scriptCtx, b.keys[0], 0, -1)
	queue := pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1)
	beats := pipe.ZRangeWithScores(scriptCtx, b.keys[3], 0, -1)
	var expiry [4]*redis.DurationCmd
	for i, k := range b.keys {
		expiry[i] = pipe.PTTL(scriptCtx, k)
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.wrong("%v", err)
	}
	scores := map[string]int64{}
	for _, z := range leases.Val() {
		scores[z.Member.(string)] = int64(z.Score)
	}
	b.messages(scores)
	b.fences(scores)

	// Leases.
	for _, q := range b.all {
		end := scores[q.token]
		switch {
		case b.holds(q):
			if !b.near(end, q.end) {
				b.wrong("the lease of %s ends at %d, want %d", q.token, end, q.end)
			}
			if fence := scores["#"+q.token]; fence != q.fence {
				b.wrong("the fence of %s is %d, want %d", q.token, fence, q.fence)
			}
			q.end = end
		case end > b.now:
			b.wrong("%s holds it until %d", q.token, end)
		}
	}

	for member := range scores {
		if _, is := scores[strings.TrimLeft(member, "#+")]; !is {
			b.wrong("%s is left of a lease that is over", member)
		}
	}

	// The line. It expires a second after the last heartbeat.
	if len(queue.Val()) == 0 && !slices.ContainsFunc(b.queue(), func(q *rwReq) bool { return q.lapse > b.now-1000 }) {
		for _, q := range b.queue() {
			b.skip(q, "the line has expired")
		}
	}
	for got := queue.Val(); ; {
		line := b.queue()
		same := len(got) == len(line)
		for i := 0; same && i < len(got); i++ {
			same = got[i].Member == line[i].token && int64(got[i].Score) == line[i].place
		}
		if same {
			break
		}
		if len(line) <= len(got) {
			b.wrong("%v wait, want %s", got, rwTokens(line))
		}
		b.headNotNotified(line[0])
	}
	lapses := map[string]int64{}
	for _, z := range beats.Val() {
		lapses[z.Member.(string)] = int64(z.Score)
	}
	for _, q := range b.queue() {
		if !b.near(lapses[q.token], q.lapse) {
			b.wrong("the heartbeat of %s lapses at %d, want %d", q.token, lapses[q.token], q.lapse)
		}
		q.lapse = lapses[q.token]
	}

	for i, d := range expiry {
		ms := d.Val().Milliseconds()
		switch {
		case d.Val() == -2: // it does not exist
		case ms <= 0:
			b.wrong("%s does not expire: %v", b.keys[i], d.Val())
		case i == 0 && ms < b.left()-b.slack:
			b.wrong("%s expires in %d ms, a lease lasts %d", b.keys[i], ms, b.left())
		}
	}
}

// headNotNotified: the first in line is not there any more. That can be because nobody heard when it should ask.
func (b *rwBench) headNotNotified(q *rwReq) {
	b.r.Helper()
	if held := b.holders(); b.rwModel.hears[q.keeper] || q.mute || len(held) == 0 || held[0].reads() {
		b.wrong("%s has left the line", q.token)
	}
	b.skip(q, "it was to be forewarned")
}

// messages is what the keepers were told by the step.
func (b *rwBench) messages(scores map[string]int64) {
	b.r.Helper()
	told := map[string][]*rwReq{}
	count := map[string]int{}
	for {
		x, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second)
		if err != nil {
			b.wrong("%v", err)
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
				b.wrong("message %q to %s", m.Payload, keeper)
			}
			q := b.all[serial-1]
			if number < 0 && !b.called[keeper] && -number%10 == 1 && q.lapse > 0 && q.lapse <= b.now {
				b.called[keeper] = true
				b.reach("one that has lapsed is called")
				continue
			}
			if number < 0 {
				for line := b.queue(); len(line) > 0 && line[0] != q; line = line[1:] {
					b.headNotNotified(line[0])
				}
				if !q.waits || !b.near(-number, b.room()) {
					b.wrong("%s was forewarned of %d ms, want %d", q.token, -number, b.room())
				}
				b.reach("the first is forewarned")
				continue
			}
			q.fence = number
			told[keeper] = append(told[keeper], q)
			if i == 0 {
				count[keeper]++
			}
		}
	}
	want := map[string][]*rwReq{}
	readers := 0
	for _, q := range b.given {
		if b.asked[q] {
			continue
		}
		if q.mute {
			q.fence = scores["#"+q.token]
			b.reach("one that is mute is let in")
			continue
		}
		want[q.keeper] = append(want[q.keeper], q)
		b.reach("let in by a message: " + string(q.use))
		if q.use == 'r' {
			readers++
			if line := b.queue(); len(line) > 0 && line[0].use == 'w' && line[0].place+rwFurther < q.place {
				b.reach("a pass is used")
			}
		}
	}
	if readers > 1 {
		b.reach("several readers are let in together")
	}
	for _, k := range keepers {
		if !slices.Equal(told[k], want[k]) {
			b.wrong("%s was told of%s, want%s", k, rwTokens(told[k]), rwTokens(want[k]))
		}
		if count[k] > 1 && !b.deaf {
			b.wrong("%s was told by %d messages", k, count[k])
		}
	}
}

// fences rise in the order in which those were let in whom the step has let in.
func (b *rwBench) fences(scores map[string]int64) {
	b.r.Helper()
	for _, q := range b.given {
		if q.end <= b.now {
			continue
		}
		if fence := scores["#"+q.token]; fence != q.fence || fence <= b.fence {
			b.wrong("%s has the fence %d and was told of %d, after %d", q.token, fence, q.fence, b.fence)
		}
		b.fence = q.fence
	}
}
