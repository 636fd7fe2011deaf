package proptest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
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

// singleReq is a request for a lock that one holder has at a time, or a lease of another library.
type singleReq struct {
	token   string
	keeper  string
	serial  int
	ttl     int64
	mute    bool  // it cannot be told by a message
	foreign bool  // of another library: a token that says nothing
	least   int64 // of a redlock: the least fence
	place   int64 // in line, or the last it had
}

func (q *singleReq) claimTTL() int64 {
	return min(q.ttl, life.Milliseconds())
}

// singleWord is what a keeper is told: a fence, or with a minus in how many ms to ask.
type singleWord struct {
	keeper string
	serial int
	number int64
}

// singleModel is a lock that one holder has at a time. Times are the server's ms; 0: none.
type singleModel struct {
	fair    bool
	now     int64
	within  int64           // how far the server is within this ms at the most, in µs
	hears   map[string]bool // keepers that listen
	owner   *singleReq
	end     int64                // of its lease
	seq     int64                // the fence of the lease, or the last one
	ticket  int64                // the last one
	graves  int64                // until when there are buried tokens
	longer  *singleReq           // the lease that was last extended beyond its ttl,
	longest int64                // to so many ms
	line    map[*singleReq]int64 // who waits: places
	beats   map[*singleReq]int64 // when heartbeats lapse
	buried  map[*singleReq]int64 // until when
	reach   func(string)

	lineEnd, beatsEnd, metaEnd int64 // of the keys

	asking  map[*singleReq]int64    // who asks in this step, and the lease it is to get
	granted map[*singleReq][2]int64 // what it learns by the reply: fence and end
	absent  map[string]bool         // keepers that a message of this step did not reach
	changed bool                    // the first in line may not know when to ask
	lapsed  []*singleReq            // who was taken out of line by this step because it was gone
	drew    bool                    // there is a new fence
	heard   []singleWord            // the messages
}

// begin is a step at a time.
func (m *singleModel) begin(now int64) {
	m.now, m.changed, m.drew, m.heard, m.lapsed = now, false, false, nil, nil
	m.asking, m.granted, m.absent = map[*singleReq]int64{}, map[*singleReq][2]int64{}, map[string]bool{}
	if m.owner != nil && m.end <= now {
		m.owner = nil
		m.reach("a lease ends by itself")
	}
	if m.lineEnd <= now {
		if len(m.line) > 0 {
			m.reach("the line expires")
		}
		clear(m.line)
	}
	if m.beatsEnd <= now {
		clear(m.beats)
		clear(m.buried)
	}
	if m.metaEnd != 0 && m.metaEnd <= now {
		m.loseMetadata()
	}
	m.tidy()
}

// tidy: a key goes with what is in it, and so does its expiry.
func (m *singleModel) tidy() {
	if len(m.line) == 0 {
		m.lineEnd = 0
	}
	if len(m.beats)+len(m.buried) == 0 {
		m.beatsEnd = 0
	}
}

// waiters is those who wait, in order.
func (m *singleModel) waiters() []*singleReq {
	return slices.SortedFunc(maps.Keys(m.line), func(a, b *singleReq) int {
		return cmp.Or(cmp.Compare(m.line[a], m.line[b]), cmp.Compare(a.token, b.token))
	})
}

// left is in how many ms the lease ends.
func (m *singleModel) left() int64 {
	if m.owner == nil {
		return 0
	}
	return m.end - m.now
}

// us is the server's time, or a little later.
func (m *singleModel) us() int64 { return m.now*1000 + m.within }

// draw is the next fence.
func (m *singleModel) draw() int64 {
	m.seq, m.drew = max(m.us(), m.seq+1), true
	return m.seq
}

// fence is that of the lease that is held.
func (m *singleModel) fence() int64 {
	if m.seq == 0 {
		m.reach("a lease gets another fence, as the facts were lost")
		return m.draw()
	}
	return m.seq
}

// save keeps the facts for long enough.
func (m *singleModel) save() { m.saveFor(idle.Milliseconds(), idle.Milliseconds()/2) }

// saveFor keeps the facts for keep ms, if less than least ms are left.
func (m *singleModel) saveFor(keep, least int64) {
	from := max(m.now, (m.seq+999)/1000) // fences can be ahead of the clock
	if m.metaEnd < from+least {
		m.metaEnd = from + keep
	}
}

// enqueue puts the request at the end of the line.
func (m *singleModel) enqueue(q *singleReq) {
	m.ticket = max(m.ticket+1, m.us())
	m.line[q], q.place = m.ticket, m.ticket
}

// refresh is that the request is alive.
func (m *singleModel) refresh(q *singleReq) {
	m.beats[q] = m.now + life.Milliseconds()
}

// extendQueueExpiry keeps the line for a second longer than the last heartbeat.
func (m *singleModel) extendQueueExpiry() {
	until := m.now + life.Milliseconds() + 1000
	m.lineEnd, m.beatsEnd = max(m.lineEnd, until), max(m.beatsEnd, until)
}

// dequeue takes a request out of line.
func (m *singleModel) dequeue(q *singleReq) {
	delete(m.line, q)
	delete(m.beats, q)
	m.tidy()
}

// admit lets in whoever may be let in. Who is not there to be told, or whose heartbeat has lapsed, is passed over. If a
// message was not heard, the next ones are looked at fifty at a time, so that some of them may be taken out early.
func (m *singleModel) admit() {
	for width := 1; ; width = 50 {
		told := m.admitWithin(width)
		if told == nil || m.hears[told.keeper] {
			if told != nil {
				m.heard = append(m.heard, singleWord{told.keeper, told.serial, m.seq})
				m.reach("let in by a message")
			}
			break
		}
		m.owner, m.absent[told.keeper] = nil, true
		m.reach("passed over: it does not listen")
	}
	if m.changed {
		m.notifyHead()
	}
	m.notifyExpired()
}

// notifyExpired tells the keepers of up to ten who have lapsed to ask, the first of them first.
func (m *singleModel) notifyExpired() {
	told := map[string]bool{}
	for _, q := range m.lapsed {
		if told[q.keeper] || m.absent[q.keeper] || len(told) == 10 {
			continue
		}
		if m.hears[q.keeper] {
			m.heard = append(m.heard, singleWord{q.keeper, q.serial, -int64(10*len(told) + 1)})
			m.reach("one that has lapsed is called")
		}
		told[q.keeper] = true
	}
}

// admitWithin is one such walk along the line; it returns who must be told of it.
func (m *singleModel) admitWithin(width int) (told *singleReq) {
	for m.owner == nil && len(m.line) > 0 {
		line := m.waiters()
		for _, q := range line[:min(width, len(line))] {
			ms, asks := m.asking[q]
			if gone := m.absent[q.keeper] || m.beats[q] <= m.now; !asks && gone {
				m.dequeue(q)
				m.changed, m.lapsed = true, append(m.lapsed, q)
				m.reach("passed over: it is gone")
				continue
			}
			if m.owner != nil {
				break
			}
			if !asks {
				ms = min(q.claimTTL(), m.beats[q]-m.now)
			}
			m.changed = m.changed || q.ttl == q.claimTTL() || ms < q.claimTTL()/2
			m.dequeue(q)
			m.owner, m.end = q, m.now+ms
			fence := m.draw()
			switch {
			case asks:
				m.granted[q] = [2]int64{fence, m.end}
			case q.mute:
				m.reach("one that is mute is let in")
			default:
				told = q
			}
		}
	}
	return told
}

// notifyHead tells the first in line when the lease ends by itself, if that is before it asks anyway.
func (m *singleModel) notifyHead() {
	for len(m.line) > 0 {
		q := m.waiters()[0]
		if _, asks := m.asking[q]; asks || q.mute || m.left() == 0 || m.end >= m.beats[q]-q.claimTTL()/2 {
			return
		}
		if m.hears[q.keeper] {
			m.heard = append(m.heard, singleWord{q.keeper, q.serial, -m.left()})
			m.reach("the first is forewarned")
			return
		}
		m.dequeue(q)
		m.reach("passed over: it was to be forewarned")
	}
}

// when is in how many ms a waiter of this rank is to ask.
func (m *singleModel) when(rank int) int64 {
	if rank > 2 {
		return 0
	}
	return m.left()
}

// acquire is acquire, and its reply.
func (m *singleModel) acquire(q *singleReq, waits bool) []int64 {
	if m.graves > m.now && m.buried[q] != 0 {
		m.reach("a buried request")
		return []int64{lua.Tombstoned}
	}
	until := m.now + q.ttl
	taken := m.owner == nil && (!m.fair || len(m.line) == 0)
	switch {
	case taken:
		if m.line[q] != 0 {
			m.reach("it is let in past the line that it stands in")
		} else if len(m.line) > 0 {
			m.reach("a newcomer passes those who wait")
		}
		m.owner, m.end = q, until
		m.draw()
		m.reach("let in at once")
	case m.owner == q:
		m.end = max(m.end, until)
		m.fence()
		m.reach("a copy of a request")
	}
	if m.owner == q {
		m.seq = max(m.seq, q.least)
		m.save()
		return []int64{lua.Granted, m.seq, m.now, until, 0}
	}
	if !waits && m.owner != nil {
		m.reach("a try is refused")
		m.repair()
		return []int64{lua.Refused, m.now, m.left(), 0}
	}
	if m.line[q] == 0 {
		m.enqueue(q)
	}
	if waits {
		m.refresh(q)
	}
	m.asking[q] = q.ttl
	m.admit()
	got, done := m.granted[q]
	if !done && waits {
		m.extendQueueExpiry()
	}
	m.save()
	switch {
	case done:
		m.reach("let in past those who are not there")
		return []int64{lua.Granted, got[0], m.now, got[1], 0}
	case !waits:
		m.dequeue(q)
		m.reach("a try lets another in")
		return []int64{lua.Refused, m.now, m.left(), 0}
	}
	rank := slices.Index(m.waiters(), q)
	return []int64{lua.Waiting, m.now, m.seq, m.line[q], int64(rank), m.when(rank), 0}
}

// release is release, and its reply.
func (m *singleModel) release(q *singleReq, bury int64) []int64 {
	code := int64(lua.Refused)
	if m.owner == q {
		m.owner, code = nil, lua.Granted
	}
	if bury == 0 && len(m.line) == 0 {
		return []int64{code, 2}
	}
	if m.line[q] != 0 && (code == lua.Refused || bury > 0) {
		if m.changed = true; code == lua.Refused {
			code = lua.Left
		} else {
			m.reach("one that held leaves the line as well")
		}
		m.dequeue(q)
	}
	if bury > 0 {
		m.graves = m.now + bury
		m.buried[q] = m.graves
		m.beatsEnd = max(m.beatsEnd, m.graves)
	}
	m.admit()
	m.save()
	return []int64{code, 0}
}

// renew is renew with so many keys, and its reply.
func (m *singleModel) renew(q *singleReq, ms int64, exact bool, keys int) []int64 {
	if m.owner != q {
		return []int64{lua.Refused}
	}
	end := m.now + ms
	if !exact {
		end = max(end, m.end)
	}
	if end < m.end {
		m.reach("shortened")
	}
	m.end = end
	if keys == 1 {
		return []int64{lua.Granted, 0}
	}
	if ms > q.ttl {
		m.longer, m.longest = q, ms
	}
	if q.foreign {
		m.draw()
	} else {
		m.fence()
	}
	if keys == 4 {
		m.changed = true
		m.admit()
	}
	if q.foreign || ms > q.ttl { // the note of the longer ttl outlives the lease
		m.saveFor(idle.Milliseconds()+ms, ms+1000)
	} else {
		m.save()
	}
	return []int64{lua.Granted, m.seq}
}

// heartbeat is beat, and its reply; places says where those stand who come back, 0 for at the end.
func (m *singleModel) heartbeat(list []*singleReq, back bool, places []int64) []int64 {
	var told []int64
	tell := func(i int, news ...int64) { told = append(append(told, int64(i+1)), news...) }
	var held []int
	for i, q := range list {
		switch {
		case m.line[q] != 0:
		case m.owner == q:
			m.fence()
			held = append(held, i)
			continue
		case back && m.graves > m.now && m.buried[q] != 0:
			tell(i, lua.Tombstoned, 0, 0)
			continue
		case !back:
			tell(i, lua.Unknown, 0, 0)
			m.reach("unknown")
			continue
		default:
			if m.line[q], q.place = places[i], places[i]; places[i] == 0 {
				m.enqueue(q)
			}
			tell(i, lua.Waiting, q.place, 0)
			m.reach("back in line")
		}
		m.asking[q] = q.claimTTL()
		m.refresh(q)
	}
	if len(m.asking) > 0 {
		m.extendQueueExpiry()
	}
	m.sweep()
	m.repair()
	for _, i := range held {
		tell(i, lua.Held, m.seq, m.end)
		m.reach("held")
	}
	m.admit()
	first, rank := -1, -1
	line := m.waiters()
	for i, q := range list {
		if got, done := m.granted[q]; done {
			tell(i, lua.Granted, got[0], got[1])
			m.reach("let in by an answer")
		} else if at := slices.Index(line, q); at >= 0 && (first < 0 || at < rank) {
			first, rank = i, at
		}
	}
	m.save()
	reply := []int64{lua.Waiting, m.now, m.seq, 0, 0, 0, 0}
	if first >= 0 {
		reply[3], reply[5], reply[6] = m.when(rank), int64(first+1), int64(rank)
	}
	return append(reply, told...)
}

// sweep takes out whose heartbeat has lapsed, and graves that are over.
func (m *singleModel) sweep() {
	inOrder := slices.SortedFunc(maps.Keys(m.beats), func(a, b *singleReq) int {
		return cmp.Or(cmp.Compare(m.beats[a], m.beats[b]), cmp.Compare(a.token, b.token))
	})
	for _, q := range inOrder {
		if m.beats[q] <= m.now {
			m.dequeue(q)
			m.changed, m.lapsed = true, append(m.lapsed, q)
			m.reach("swept")
		}
	}
	maps.DeleteFunc(m.buried, func(_ *singleReq, until int64) bool {
		m.changed = m.changed || until <= m.now
		return until <= m.now
	})
	m.tidy()
}

// repair: no lease lasts longer than its whole ttl, and who holds it does not stand in line.
func (m *singleModel) repair() {
	q := m.owner
	if q == nil || q.foreign {
		return
	}
	ttl := q.ttl
	if m.longer == q {
		ttl = m.longest
	}
	if m.left() > max(q.ttl, ttl) {
		m.end, m.changed = m.now+ttl, true
		m.reach("a lease is cut")
	}
	if _, asks := m.asking[q]; asks {
		m.dequeue(q)
		m.granted[q], m.changed = [2]int64{m.fence(), m.end}, true
		m.reach("one that waits learns that it holds")
	}
}

// raiseFence is affirm, and its reply.
func (m *singleModel) raiseFence(q *singleReq, least int64) []int64 {
	if m.owner != q {
		m.reach("nothing to affirm")
		return []int64{lua.Refused}
	}
	if least > m.seq {
		m.seq = least
		m.reach("the fence is raised")
	}
	m.save()
	m.reach("affirmed")
	return []int64{lua.Granted, m.seq}
}

// loseMetadata is that the facts are lost.
func (m *singleModel) loseMetadata() {
	m.seq, m.ticket, m.graves, m.longer, m.metaEnd = 0, 0, 0, nil, 0
	m.reach("the facts are lost")
}

// singleBench is a server on which the scripts run beside the model.
type singleBench struct {
	*singleModel
	*scriptBench
	set   *lua.Set
	all   []*singleReq
	fence int64 // the largest so far
}

// singles is the locks that one holder has at a time, and what not all of them can reach.
var singles = []struct {
	set   *lua.Set
	reach []string
}{
	{lua.Mutex, reachedByMutexes},
	{lua.Fair, []string{"a try lets another in", "let in past those who are not there"}},
	{lua.Redlock, append([]string{"affirmed", "nothing to affirm", "the fence is raised", "the least fence is given"}, reachedByMutexes...)},
}

var reachedByMutexes = []string{
	"a foreign holder", "a foreign lease is renewed", "a newcomer passes those who wait",
	"it is let in past the line that it stands in", "one that held leaves the line as well",
	"one that waits learns that it holds",
}

// TestSingleScriptsMatchModel: whatever is done to a lock that one holder has at a time, in whatever order, and while
// time passes, the scripts answer, let in, tell and leave behind what the model does, to the millisecond; fences rise
// with each lease; and if all are alive, nobody waits for ever. A newcomer passes those who wait for a mutex that is
// free, and nobody who waits for a fair lock.
func TestSingleScriptsMatchModel(t *testing.T) {
	for _, kind := range singles {
		t.Run(kind.set.Kind, func(t *testing.T) {
			rdb, mini := miniServer(t)
			run := newRun(t)
			run.explore(0.35, func(r *rapid.T) { singleSequence(r, run, kind.set, rdb, mini) },
				append(slices.Clone(kind.reach),
					"let in at once", "let in by a message", "let in by an answer", "one that is mute is let in",
					"a try is refused", "a buried request", "a copy of a request",
					"a lease ends by itself", "the line expires", "swept", "a lease is cut",
					"passed over: it is gone", "passed over: it does not listen", "passed over: it was to be forewarned",
					"the first is forewarned", "one that has lapsed is called", "back in line", "held", "unknown", "left", "released", "nothing to release",
					"renewed", "shortened", "not renewed", "holders are told", "waiters are told",
					"the facts are lost", "a lease gets another fence, as the facts were lost", "played to its end",
				)...)
		})
	}
}

// TestSingleScriptsMatchModelOnRealServer is the same on a real server, for a moment. What ends there is ended.
func TestSingleScriptsMatchModelOnRealServer(t *testing.T) {
	for _, kind := range singles {
		t.Run(kind.set.Kind, func(t *testing.T) {
			rdb := redistest.Start(t).Client()
			run := &run{tally: map[string]int{}}
			checkPart(t, 0.06, func(r *rapid.T) { singleSequence(r, run, kind.set, rdb, nil) })
		})
	}
}

func singleSequence(r *rapid.T, u *run, set *lua.Set, rdb *redis.Client, mini *miniredis.Miniredis) {
	b := &singleBench{
		singleModel: &singleModel{
			fair:   set == lua.Fair,
			line:   map[*singleReq]int64{},
			beats:  map[*singleReq]int64{},
			buried: map[*singleReq]int64{},
			reach:  func(what string) { u.tally[what]++ },
		},
		scriptBench: newScriptBench(r, rdb, mini, set.Keys),
		set:         set,
	}
	b.singleModel.hears = b.scriptBench.hears
	b.state = func() string {
		owner := "nobody"
		if b.owner != nil {
			owner = b.owner.token
		}
		return fmt.Sprintf(" %s holds it until %d,%s wait", owner, b.end, singleTokens(b.waiters()))
	}
	defer b.close()
	if mini == nil {
		b.within = 999
	}
	actions := map[string]func(*rapid.T){
		"":                          func(*rapid.T) {},
		"one comes":                 func(*rapid.T) { b.asks(b.newReq(), true) },
		"several come":              b.severalArrive,
		"one tries":                 func(*rapid.T) { b.asks(b.newReq(), false) },
		"a copy arrives":            b.duplicateArrives,
		"the free lock is asked":    b.acquiresWhenFree,
		"it is asked again":         b.acquiresWhenFree,
		"the holder releases":       b.holderReleases,
		"it releases again":         b.holderReleases,
		"a waiter leaves":           b.waiterLeaves,
		"a stranger leaves":         b.strangerLeaves,
		"the lease is renewed":      b.renews,
		"a keeper heartbeats":       b.keeperHeartbeats,
		"another keeper heartbeats": b.keeperHeartbeats,
		"some come back":            b.rejoins,
		"a keeper's ear changes":    b.toggleSubscription,
		"another's ear changes":     b.toggleSubscription,
		"somebody looks":            b.inspects,
		"the lease ends":            b.leaseEnds,
		"heartbeats lapse":          b.heartbeatsLapse,
		"the clock was set back":    b.clockWasSetBack,
		"the facts are lost":        b.metadataIsLost,
	}
	if set.Keys == "mutex" { // whose key is that of other libraries, too
		b.keys[0] = "lock:x"
		actions["a foreigner comes"] = b.foreignerComes
		actions["a foreigner goes"] = b.foreignerGoes
	}
	if set.RaiseFence != nil {
		actions["the lease is affirmed"] = b.raisesFence
	}
	if mini != nil {
		actions["time passes"] = b.timePasses
	}
	b.severalArrive(r)
	r.Repeat(actions)
	if mini != nil && rapid.IntRange(0, 7).Draw(r, "played to its end") == 0 {
		b.runToEnd()
	}
}

// starts begins a step, at the time that the server has now.
func (b *singleBench) starts(format string, args ...any) {
	b.r.Helper()
	b.begin(b.time(format, args...))
}

// newReq draws a request.
func (b *singleBench) newReq() *singleReq {
	q := &singleReq{serial: len(b.all) + 1}
	q.keeper = keepers[rapid.SampledFrom([]int{0, 1, 2, 0, 1, 2, 3}).Draw(b.r, "keeper")]
	q.mute = q.keeper == "mute"
	q.ttl = rapid.SampledFrom([]int64{30000, 2000, 6000, 2000}).Draw(b.r, "ttl")
	q.token = fmt.Sprintf("%s:%d:%d.%d%s", q.keeper, q.serial, q.ttl, q.claimTTL(), strings.Repeat("s", yes(q.mute)))
	if b.set == lua.Redlock && rapid.Bool().Draw(b.r, "names a fence") {
		q.least = b.least()
		q.token += "f" + strconv.FormatInt(q.least, 10)
	}
	b.all = append(b.all, q)
	return q
}

// least draws a fence that is mostly ahead of the server's.
func (b *singleBench) least() int64 {
	t, err := b.rdb.Time(scriptCtx).Result()
	if err != nil {
		b.r.Fatal(err)
	}
	return max(b.fence, t.UnixMicro()) + rapid.SampledFrom([]int64{10000, 1, -1, -100000}).Draw(b.r, "least")
}

// some draws one of those for whom it is so.
func (b *singleBench) some(what string, is func(*singleReq) bool) *singleReq {
	var list []*singleReq
	for _, q := range b.all {
		if is(q) {
			list = append(list, q)
		}
	}
	return draw(b.r, list, what)
}

func (b *singleBench) waits(q *singleReq) bool { return b.line[q] != 0 }

func (b *singleBench) holder() *singleReq {
	if b.owner == nil {
		b.r.Skip("none")
	}
	return b.owner
}

func (b *singleBench) severalArrive(*rapid.T) {
	for range rapid.IntRange(2, 4).Draw(b.r, "how many") {
		b.asks(b.newReq(), true)
	}
}

// asks is acquire.
func (b *singleBench) asks(q *singleReq, waits bool) {
	b.starts("%s asks, waits %v", q.token, waits)
	want := b.acquire(q, waits)
	if want[0] == lua.Granted && want[1] == q.least {
		b.reach("the least fence is given")
	}
	patience := life.Milliseconds() * int64(yes(waits))
	args := lua.AcquireArgs(nil, q.token, q.ttl, idle.Milliseconds(), patience, scriptWake, 0, "", 0)
	b.replies(want, b.eval(b.set.Acquire, 4, args))
	b.compare()
}

// duplicateArrives: of a request that waits, holds or was buried; sometimes of one that is over.
func (b *singleBench) duplicateArrives(*rapid.T) {
	late := rapid.IntRange(0, 3).Draw(b.r, "late") == 0
	q := b.some("request", func(q *singleReq) bool {
		return !q.foreign && (late || b.waits(q) || b.owner == q || b.buried[q] != 0)
	})
	b.asks(q, rapid.IntRange(0, 3).Draw(b.r, "try") > 0)
}

// acquiresWhenFree: when nobody holds the lock any more, somebody asks before those who wait do: a newcomer, or one of them,
// by a copy of its request, which goes on as one that waits.
func (b *singleBench) acquiresWhenFree(*rapid.T) {
	old := b.some("waiter", b.waits)
	if b.owner != nil {
		b.ends(0)
	}
	if rapid.Bool().Draw(b.r, "newcomer") {
		b.asks(b.newReq(), rapid.Bool().Draw(b.r, "waits"))
		return
	}
	b.asks(old, rapid.Bool().Draw(b.r, "waits"))
	if rapid.Bool().Draw(b.r, "releases") {
		b.released(old, 60000)
	} else {
		b.heartbeatFor([]*singleReq{old}, false, nil)
	}
}

// releases is release.
func (b *singleBench) releases(q *singleReq) {
	b.released(q, rapid.SampledFrom([]int64{0, 0, 60000}).Draw(b.r, "bury"))
}

func (b *singleBench) released(q *singleReq, bury int64) {
	unused := rapid.IntRange(0, 2).Draw(b.r, "unused")
	b.starts("%s is released, bury %d, unused %d", q.token, bury, unused)
	want := b.release(q, bury)
	b.replies(want, b.eval(b.set.Release, 4, lua.ReleaseArgs(nil, q.token, idle.Milliseconds(), scriptWake, 0, bury, unused)))
	b.reach(map[int64]string{lua.Granted: "released", lua.Left: "left", lua.Refused: "nothing to release"}[want[0]])
	b.compare()
}

func (b *singleBench) holderReleases(*rapid.T) { b.releases(b.holder()) }
func (b *singleBench) waiterLeaves(*rapid.T)   { b.releases(b.some("waiter", b.waits)) }
func (b *singleBench) strangerLeaves(*rapid.T) {
	b.releases(b.some("stranger", func(q *singleReq) bool { return !b.waits(q) && b.owner != q }))
}

// renews is renew.
func (b *singleBench) renews(*rapid.T) {
	odd := rapid.IntRange(0, 5).Draw(b.r, "odd") == 0
	b.renewed(b.some("lease", func(q *singleReq) bool { return odd || b.owner == q }))
}

func (b *singleBench) renewed(q *singleReq) {
	ms, exact, keys := q.ttl, 0, rapid.IntRange(1, 2).Draw(b.r, "keys")
	if q.foreign || rapid.Bool().Draw(b.r, "extended") {
		ms, exact = rapid.SampledFrom([]int64{1000, 2500, 60000}).Draw(b.r, "ms"), 1
		keys = rapid.SampledFrom([]int{2, 4}).Draw(b.r, "keys of an extension")
	}
	b.starts("%s is renewed for %d ms, exact %d, with %d keys", q.token, ms, exact, keys)
	want := b.renew(q, ms, exact == 1, keys)
	b.replies(want, b.eval(b.set.Renew, keys, lua.RenewArgs(nil, q.token, ms, idle.Milliseconds(), exact, scriptWake, 0)))
	switch {
	case want[0] == lua.Refused:
		b.reach("not renewed")
	case q.foreign:
		b.reach("a foreign lease is renewed")
	default:
		b.reach("renewed")
	}
	b.compare()
}

// keeperHeartbeats is the heartbeat of some of a keeper's requests, also of some that are over.
func (b *singleBench) keeperHeartbeats(*rapid.T) {
	b.heartbeatOf(rapid.SampledFrom(keepers).Draw(b.r, "keeper"), false)
}

// rejoins is the same of a keeper that has learned that some of them are not known.
func (b *singleBench) rejoins(*rapid.T) {
	b.heartbeatOf(b.some("who", func(q *singleReq) bool { return !q.foreign && !b.waits(q) }).keeper, true)
}

func (b *singleBench) heartbeatOf(keeper string, back bool) {
	var list []*singleReq
	var places []int64
	for _, q := range b.all {
		most := 9
		if b.waits(q) || b.owner == q || b.buried[q] != 0 {
			most = 1
		}
		if q.keeper == keeper && rapid.IntRange(0, most).Draw(b.r, "heartbeats") == 0 {
			list = append(list, q)
			places = append(places, q.place*int64(rapid.SampledFrom([]int{1, 1, 0}).Draw(b.r, "keeps its place")))
		}
	}
	b.heartbeatFor(list, back, places)
}

func (b *singleBench) heartbeatFor(list []*singleReq, back bool, places []int64) {
	b.starts("%s beat, back %v", singleTokens(list), back)
	args := lua.HeartbeatArgs(nil, idle.Milliseconds(), life.Milliseconds(), scriptWake, 0, yes(back), "")
	for i, q := range list {
		if args = append(args, q.token); back {
			args = append(args, places[i])
		}
	}
	want := b.heartbeat(list, back, places)
	got := b.eval(b.set.Heartbeat, 4, args)
	b.replies(want[:7], got[:min(7, len(got))])
	b.replies(byIndex(want[7:]), byIndex(got[7:]))
	b.compare()
}

// byIndex is what a beat tells of tokens, in their order.
func byIndex(told []int64) []int64 {
	if len(told)%4 != 0 {
		return told
	}
	news := slices.Collect(slices.Chunk(told, 4))
	slices.SortStableFunc(news, func(a, b []int64) int { return cmp.Compare(a[0], b[0]) })
	return slices.Concat(news...)
}

// toggleSubscription: a keeper's subscription comes or goes.
func (b *singleBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.scriptBench.hears[k])
}

// inspects is inspect.
func (b *singleBench) inspects(*rapid.T) {
	what := rapid.IntRange(lua.InspectHolders, lua.InspectWaiters).Draw(b.r, "what")
	after, most := int64(0), rapid.IntRange(1, 5).Draw(b.r, "most")
	if rapid.IntRange(0, 2).Draw(b.r, "after") == 0 {
		after = 1
		if what == lua.InspectWaiters {
			after = b.line[b.some("waiter", b.waits)]
		}
	}
	b.starts("somebody looks at %d after %d", what, after)
	tokens, numbers := []string{}, []int64{}
	if q := b.owner; what == lua.InspectHolders && q != nil && after == 0 {
		tokens, numbers = append(tokens, q.token), append(numbers, b.seq*int64(yes(!q.foreign)), b.left())
		b.reach("holders are told")
	}
	if what == lua.InspectWaiters {
		for _, q := range b.waiters() {
			if at := b.line[q]; at > after && len(tokens) < most {
				waited := int64(math.Floor(float64(b.now*1000-at) / 1000))
				tokens, numbers = append(tokens, q.token), append(numbers, at, waited, b.beats[q]-b.now)
				b.reach("waiters are told")
			}
		}
	}
	reply, err := b.rdb.Eval(scriptCtx, b.set.Inspect.Text, b.keys, lua.InspectArgs(nil, what, after, most)...).Slice()
	if err != nil {
		b.wrong("%v", err)
	}
	gotTokens, gotNumbers := []string{}, []int64{}
	for _, x := range reply[1:] {
		switch x := x.(type) {
		case string:
			gotTokens = append(gotTokens, x)
		case int64:
			gotNumbers = append(gotNumbers, x)
		}
	}
	if !slices.Equal(gotTokens, tokens) || reply[0] != int64(len(tokens)) {
		b.wrong("reply %v, want %v", reply, tokens)
	}
	if !slices.EqualFunc(gotNumbers, numbers, b.near) {
		b.wrong("reply %v, want %v", reply, numbers)
	}
	b.compare()
}

// raisesFence is affirm. The embedded server knows no uptime, and the real one has just been started.
func (b *singleBench) raisesFence(*rapid.T) {
	odd := rapid.IntRange(0, 3).Draw(b.r, "odd") == 0
	q := b.some("lease", func(q *singleReq) bool { return odd || b.owner == q })
	least, up := b.least(), time.Hour.Milliseconds()*int64(yes(b.mini == nil && rapid.Bool().Draw(b.r, "looks at its uptime")))
	b.starts("%s is affirmed with %d, up for %d ms", q.token, least, up)
	args := lua.RaiseFenceArgs(nil, q.token, least, idle.Milliseconds(), up)
	if up > 0 && b.owner == q {
		if got := b.eval(b.set.RaiseFence, 2, args); len(got) != 2 || got[0] != lua.Unknown || got[1] >= up {
			b.wrong("reply %v", got)
		}
	} else {
		b.replies(b.raiseFence(q, least), b.eval(b.set.RaiseFence, 2, args))
	}
	b.compare()
}

// foreignerComes: another library takes the lock.
func (b *singleBench) foreignerComes(*rapid.T) {
	q := &singleReq{token: fmt.Sprintf("foreign-%d", len(b.all)+1), serial: len(b.all) + 1, foreign: true}
	ms := rapid.SampledFrom([]int64{30000, 1500}).Draw(b.r, "ms")
	b.starts("%s takes it for %d ms", q.token, ms)
	took, err := b.rdb.SetNX(scriptCtx, b.keys[0], q.token, time.Duration(ms)*time.Millisecond).Result()
	if err != nil || took != (b.owner == nil) {
		b.wrong("%v, %v", took, err)
	}
	if took {
		b.all = append(b.all, q)
		b.owner, b.end = q, b.now+ms
		b.reach("a foreign holder")
	}
	b.compare()
	if took && rapid.Bool().Draw(b.r, "is adopted") {
		b.renewed(q)
	}
}

// foreignerGoes: it gives the lock back, of which nobody is told.
func (b *singleBench) foreignerGoes(*rapid.T) {
	if !b.holder().foreign {
		b.r.Skip("none")
	}
	b.isFreed("%s goes", b.owner.token)
}

// isFreed ends the lease by hand.
func (b *singleBench) isFreed(format string, args ...any) {
	b.starts(format, args...)
	if err := b.rdb.Del(scriptCtx, b.keys[0]).Err(); err != nil {
		b.wrong("%v", err)
	}
	b.owner = nil
	b.compare()
}

func (b *singleBench) leaseEnds(*rapid.T) {
	b.holder()
	b.ends(int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
}

// ends lets time pass until the lease ends, or some ms less.
func (b *singleBench) ends(less int64) {
	if b.mini != nil {
		b.pass(b.left() - less)
	} else {
		b.isFreed("the lease of %s ends", b.owner.token)
	}
}

// heartbeatsLapse lets time pass until a heartbeat lapses, or a millisecond less.
func (b *singleBench) heartbeatsLapse(*rapid.T) {
	q := b.some("waiter", func(q *singleReq) bool { return b.waits(q) && b.beats[q] > b.now })
	if b.mini != nil {
		b.pass(b.beats[q] - b.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
		return
	}
	b.starts("the heartbeat of %s lapses", q.token)
	b.beats[q] = b.now - 1
	if err := b.rdb.ZAdd(scriptCtx, b.keys[3], redis.Z{Score: float64(b.beats[q]), Member: q.token}).Err(); err != nil {
		b.wrong("%v", err)
	}
	b.compare()
}

// clockWasSetBack: the lease ends later than it should, until somebody beats. The embedded server's expiries move with its
// clock, so this is done to the lease itself.
func (b *singleBench) clockWasSetBack(*rapid.T) {
	q := b.holder()
	b.starts("the clock was set back, and the lease of %s ends late", q.token)
	if err := b.rdb.PExpire(scriptCtx, b.keys[0], 10*time.Minute).Err(); err != nil {
		b.wrong("%v", err)
	}
	b.end = b.now + 600_000
	b.compare()
	if rapid.IntRange(0, 2).Draw(b.r, "somebody heartbeats") > 0 {
		b.heartbeatOf(cmp.Or(q.keeper, keepers[0]), false)
	}
}

// metadataIsLost: the meta hash is evicted. Fences still rise, because time has passed.
func (b *singleBench) metadataIsLost(*rapid.T) {
	if rapid.Bool().Draw(b.r, "spared") {
		b.r.Skip("not so often")
	}
	for {
		t, err := b.rdb.Time(scriptCtx).Result()
		if err != nil {
			b.wrong("%v", err)
		}
		us := t.UnixMicro()
		if us > max(b.fence, b.ticket) {
			break
		}
		if b.mini != nil {
			b.pass((max(b.fence, b.ticket)-us)/1000 + 1)
		}
	}
	b.starts("the facts are lost")
	if err := b.rdb.Del(scriptCtx, b.keys[1]).Err(); err != nil {
		b.wrong("%v", err)
	}
	b.loseMetadata()
	b.compare()
	if q := b.owner; q != nil && !q.foreign && rapid.Bool().Draw(b.r, "the holder asks") {
		b.asks(q, true)
	}
}

func (b *singleBench) timePasses(*rapid.T) {
	b.pass(rapid.SampledFrom([]int64{1, 500, 1999, 3000, 1, 500, 1999, 3000, 6000, 31000, 90000}).Draw(b.r, "ms"))
}

func (b *singleBench) pass(ms int64) {
	b.starts("%d ms pass", ms)
	b.begin(b.now + ms)
	b.mini.SetTime(time.UnixMilli(b.now))
	b.compare()
}

// runToEnd: if all are alive and nobody renews, everyone gets the lock. The lease of another library is cut by nobody,
// so it is given back.
func (b *singleBench) runToEnd() {
	if b.owner != nil && b.owner.foreign {
		b.foreignerGoes(b.r)
	}
	for _, k := range keepers[:3] {
		b.listen(k, true)
	}
	for rounds := 20 + 7*len(b.line); len(b.line) > 0; rounds-- {
		if rounds == 0 {
			b.wrong("%s still wait", singleTokens(b.waiters()))
		}
		for _, k := range keepers {
			list := slices.DeleteFunc(b.waiters(), func(q *singleReq) bool { return q.keeper != k })
			b.heartbeatFor(list, false, nil)
		}
		b.pass(5000)
	}
	b.reach("played to its end")
}

// replies compares numbers that a script has answered.
func (b *singleBench) replies(want, got []int64) {
	b.r.Helper()
	if !slices.EqualFunc(got, want, b.alike) {
		b.wrong("reply %v, want %v", got, want)
	}
}

// alike says whether two numbers are the same, as far as the server's time is known: fences and places are µs.
func (b *singleBench) alike(got, want int64) bool {
	if got == want || b.mini != nil {
		return got == want
	}
	if min(got, want) > 1e15 {
		got, want = got/1000, want/1000
	}
	return min(got, want) > 64 && b.near(got, want) // less is no time
}

// takes compares a number, and takes over the server's.
func (b *singleBench) takes(want *int64, got int64, format string, args ...any) {
	b.r.Helper()
	if !b.alike(got, *want) {
		b.wrong("%s: %d, want %d", fmt.Sprintf(format, args...), got, *want)
	}
	*want = got
}

// compare holds what lies at the server, and what it has told, against the model.
func (b *singleBench) compare() {
	b.r.Helper()
	pipe := b.rdb.Pipeline()
	pipe.Publish(scriptCtx, scriptMark, scriptMark)
	facts := []string{"seq", "ticket", "tombstones"}
	meta := pipe.HMGet(scriptCtx, b.keys[1], facts...)
	owner := pipe.MGet(scriptCtx, b.keys[0])
	queue := pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1)
	beats := pipe.ZRangeWithScores(scriptCtx, b.keys[3], 0, -1)
	var expiry [4]*redis.DurationCmd
	for i, k := range b.keys {
		expiry[i] = pipe.PTTL(scriptCtx, k)
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.wrong("%v", err)
	}
	b.messages()

	for i, want := range []*int64{&b.seq, &b.ticket, &b.graves} {
		fact, got := facts[i], int64(0)
		if text, ok := meta.Val()[i].(string); ok {
			got, _ = strconv.ParseInt(text, 10, 64)
		}
		b.takes(want, got, "%s", fact)
	}
	if b.drew && b.seq <= b.fence {
		b.wrong("the fence %d after %d", b.seq, b.fence)
	}
	b.fence = max(b.fence, b.seq)

	var token any
	if b.owner != nil {
		token = b.owner.token
	} else {
		b.end = 0
	}
	if owner.Val()[0] != token {
		b.wrong("%v holds it, want %v", owner.Val()[0], token)
	}
	for i, end := range []*int64{&b.end, &b.metaEnd, &b.lineEnd, &b.beatsEnd} {
		got := int64(0)
		if d := expiry[i].Val(); d != -2 {
			got = b.now + d.Milliseconds()
		}
		b.takes(end, got, "%s expires", b.keys[i])
	}

	byToken := map[string]*singleReq{}
	for _, q := range b.all {
		byToken[q.token] = q
	}
	line := b.waiters()
	if len(line) != len(queue.Val()) {
		b.wrong("%v wait, want%s", queue.Val(), singleTokens(line))
	}
	for i, z := range queue.Val() {
		if z.Member != line[i].token {
			b.wrong("%v wait, want%s", queue.Val(), singleTokens(line))
		}
		b.takes(&line[i].place, int64(z.Score), "the place of %s", z.Member)
		b.line[line[i]] = line[i].place
	}
	if got, want := len(beats.Val()), len(b.beats)+len(b.buried); got != want {
		b.wrong("heartbeats and graves %v, want %d", beats.Val(), want)
	}
	for _, z := range beats.Val() {
		token, in := z.Member.(string), b.beats
		if rest, dead := strings.CutPrefix(token, "-"); dead {
			token, in = rest, b.buried
		}
		q := byToken[token]
		until := in[q]
		b.takes(&until, int64(z.Score), "the heartbeat or the grave of %s", token)
		in[q] = until
	}
}

// messages is what the keepers were told by the step.
func (b *singleBench) messages() {
	b.r.Helper()
	var heard []singleWord
	for {
		x, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second)
		if err != nil {
			b.wrong("%v", err)
		}
		m := x.(*redis.Message)
		if m.Channel == scriptMark {
			break
		}
		w := singleWord{keeper: strings.TrimPrefix(m.Channel, scriptWake)}
		if n, err := fmt.Sscanf(m.Payload, "%d %d", &w.serial, &w.number); n != 2 {
			b.wrong("message %q: %v", m.Payload, err)
		}
		heard = append(heard, w)
	}
	same := func(got, want singleWord) bool {
		return got.keeper == want.keeper && got.serial == want.serial && (got.number < 0) == (want.number < 0) &&
			b.alike(max(got.number, -got.number), max(want.number, -want.number))
	}
	if !slices.EqualFunc(heard, b.heard, same) {
		b.wrong("the keepers have heard %v, want %v", heard, b.heard)
	}
}

func singleTokens(list []*singleReq) string {
	var b strings.Builder
	for _, q := range list {
		fmt.Fprintf(&b, " %s@%d", q.token, q.place)
	}
	return b.String()
}
