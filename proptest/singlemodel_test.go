package proptest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// singleModel is a model of an exclusive lock, to the millisecond.
type singleModel struct {
	*model
	fair        bool
	within      int64 // the maximum offset of the server within this ms, in µs
	owner       *modelReq
	last        int64     // the fence of the lease, or the last one
	ticket      int64     // the last one
	extended    *modelReq // the last lease that was extended beyond its ttl
	extendedTTL int64     // the ms to which it was extended
	kept        int64     // the last fence as it is stored: negative while there may be tombstones

	freeUntil, freeFor int64 // until when the key was last left free for other libraries, and for how many ms

	queueExpiry, tombstonesExpiry, metaExpiry int64 // of the keys

	absent   map[string]bool // keepers that a message of this step did not reach
	changed  bool            // the head may not know when to retry
	lapsed   []*modelReq     // waiters that this step removed because they had lapsed
	freed    bool            // this step has released the lock, and does not leave the key free
	newFence bool            // a new fence was issued
	sent     []message       // the messages of this step
}

func (m *singleModel) begin(now int64) {
	m.model.begin(now)
	m.changed, m.freed, m.newFence, m.sent, m.lapsed, m.absent = false, false, false, nil, nil, map[string]bool{}
	if m.owner != nil && m.owner.end == 0 {
		m.owner = nil
	}
	if m.queueExpiry <= now {
		for _, q := range m.queue() {
			m.drop(q)
			m.reach("the queue expires")
		}
		m.queueExpiry = 0
	}
	if m.tombstonesExpiry <= now {
		m.tombstonesExpiry = 0
	}
	if m.metaExpiry != 0 && m.metaExpiry <= now {
		m.loseMetadata()
	}
}

func (m *singleModel) has(q *modelReq) bool { return m.owner == q }

// remaining returns the ms until the lease expires, or until the key is not left free any more.
func (m *singleModel) remaining() int64 {
	if m.owner == nil {
		return m.leftFree()
	}
	return m.owner.end - m.now
}

// leftFree returns for how many ms more the key is left free for other libraries.
func (m *singleModel) leftFree() int64 {
	left := m.freeUntil - m.now
	if m.tombstonesUntil <= m.now || left > m.freeFor {
		return 0
	}
	return max(left, 0)
}

// us returns the server's time in µs, or a little later.
func (m *singleModel) us() int64 { return m.now*1000 + m.within }

// draw issues the next fence.
func (m *singleModel) draw() int64 {
	m.last, m.newFence = max(m.us(), m.last+1), true
	return m.last
}

// fenceOfLease returns the fence of the current lease.
func (m *singleModel) fenceOfLease() int64 {
	if m.last == 0 {
		m.reach("a lease gets a new fence after the metadata was lost")
		return m.draw()
	}
	return m.last
}

// save extends the expiry of the metadata.
func (m *singleModel) save() {
	if m.kept < m.epoch() || m.last > m.us() {
		m.saveFor(idle.Milliseconds(), idle.Milliseconds()*3/4)
		return
	}
	m.store()
}

// saveFor extends the expiry of the metadata to keep ms, if less than least ms remain.
func (m *singleModel) saveFor(keep, least int64) {
	m.store()
	from := max(m.now, (m.last+999)/1000) // fences can be ahead of the clock
	if m.metaExpiry < from+least {
		m.metaExpiry = from + keep
	}
}

// store writes the last fence.
func (m *singleModel) store() {
	m.kept = m.last
	if m.tombstonesUntil > m.now {
		m.kept = -m.last
	}
}

// epoch returns the beginning of the present epoch in µs. The first fence of each extends the expiry of the metadata.
func (m *singleModel) epoch() int64 {
	us := m.now * 1000
	return us - us%protocol.EpochOf(idle.Milliseconds())
}

// enqueue appends the request to the queue, unless it is there already.
func (m *singleModel) enqueue(q *modelReq) {
	m.ticket = max(m.ticket+1, m.us())
	if !q.waits {
		q.waits, q.place = true, m.ticket
	}
}

// extendQueueExpiry makes the queue expire a second after the last heartbeat.
func (m *singleModel) extendQueueExpiry() {
	m.queueExpiry = max(m.queueExpiry, m.now+heartbeatTimeout.Milliseconds()+1000)
}

// drop removes a request from the queue.
func (m *singleModel) drop(q *modelReq) { q.waits, q.lapse = false, 0 }

// lapses removes a waiter that is gone.
func (m *singleModel) lapses(q *modelReq) {
	m.drop(q)
	m.changed, m.lapsed = true, append(m.lapsed, q)
	m.skip(q, "its heartbeat has lapsed")
}

// admit grants the lock to the next waiters. Waiters that cannot be notified, or whose heartbeat has lapsed, are
// skipped. After an undelivered message, waiters are read fifty at a time, so that some may be removed early.
func (m *singleModel) admit() {
	for width := 1; ; width = 50 {
		granted := m.admitWithin(width)
		if granted == nil || m.subscribed[granted.keeper] {
			if granted != nil {
				m.sent = append(m.sent, message{granted.keeper, granted.serial, m.last})
				m.reach("granted by a message")
			}
			break
		}
		m.disown()
		m.absent[granted.keeper] = true
		m.skip(granted, "not subscribed")
	}
	if m.changed {
		m.notifyHead()
	}
	m.notifyExpired()
}

// notifyExpired notifies the keepers of up to ten lapsed waiters, the first one first.
func (m *singleModel) notifyExpired() {
	notified := map[string]bool{}
	for _, q := range m.lapsed {
		if notified[q.keeper] || m.absent[q.keeper] || len(notified) == 10 {
			continue
		}
		if m.subscribed[q.keeper] {
			m.sent = append(m.sent, message{q.keeper, q.serial, -int64(10*len(notified) + 1)})
			m.reach("a lapsed waiter is notified")
		}
		notified[q.keeper] = true
	}
}

// admitWithin is one pass over the first waiters. It returns the waiter to notify.
func (m *singleModel) admitWithin(width int) (granted *modelReq) {
	for m.owner == nil && len(m.queue()) > 0 && (m.freed || m.leftFree() == 0) {
		line := m.queue()
		for _, q := range line[:min(width, len(line))] {
			ms, asks := m.asks[q]
			if gone := m.absent[q.keeper] || q.lapse <= m.now; !asks && gone {
				m.lapses(q)
				continue
			}
			if m.owner != nil {
				break
			}
			if !asks {
				ms = min(q.claimTTL(), q.lapse-m.now)
			}
			m.changed = m.changed || q.ttl == q.claimTTL() || ms < q.claimTTL()/2
			m.drop(q)
			m.own(q, ms)
			q.fence = m.draw()
			switch {
			case asks:
				m.asked[q] = true
			case q.unnotifiable:
				m.reach("a waiter without notifications is granted")
			default:
				granted = q
			}
		}
	}
	return granted
}

// notifyHead notifies the head when the lease expires, if that is before its next heartbeat.
func (m *singleModel) notifyHead() {
	for _, q := range m.queue() {
		if _, asks := m.asks[q]; asks || q.unnotifiable || m.remaining() == 0 || m.now+m.remaining() >= q.lapse-q.claimTTL()/2 {
			return
		}
		if m.subscribed[q.keeper] {
			m.sent = append(m.sent, message{q.keeper, q.serial, -m.remaining()})
			m.reach("the head is notified")
			return
		}
		m.drop(q)
		m.skip(q, "not subscribed for the notification of the head")
	}
}

func (m *singleModel) ends() int64 { return m.remaining() }

// acquire models the script acquire.
func (m *singleModel) acquire(q *modelReq, waits bool, _, _ int64, fast bool) (code, left int64, changed bool) {
	if fast && m.owner == nil && m.kept > 0 && m.kept >= m.epoch() && (!m.fair || len(m.queue()) == 0) {
		m.own(q, q.ttl)
		m.last, m.newFence = max(m.now*1000, m.last+1), true // the fast script takes the time from an expiry, in ms
		m.kept, q.fence = m.last, m.last
		return lua.Granted, 0, false
	}
	if fast && m.owner != nil && m.owner != q && (m.owner.foreign || m.remaining() <= m.owner.ttl) {
		return lua.Refused, m.remaining(), false
	}
	if m.tombstoned(q) {
		return lua.Tombstoned, 0, false
	}
	taken := m.owner == nil && m.leftFree() == 0 && (!m.fair || len(m.queue()) == 0)
	switch {
	case taken:
		if q.waits {
			m.reach("a waiter is granted the lock ahead of others")
		} else if len(m.queue()) > 0 {
			m.reach("a newcomer is granted the lock before waiters")
		}
		m.own(q, q.ttl)
		m.draw()
	case m.owner == q:
		q.end = max(q.end, m.now+q.ttl)
		m.fenceOfLease()
	}
	if m.owner == q {
		if q.minFence > m.last {
			m.reach("the least fence is given")
		}
		m.last = max(m.last, q.minFence)
		q.fence = m.last
		m.save()
		return lua.Granted, 0, false
	}
	if !waits && (m.owner != nil || m.leftFree() > 0) {
		if m.owner == nil {
			m.reach("a try is refused while the key is left free")
		}
		m.repair()
		return lua.Refused, m.remaining(), false
	}
	m.enqueue(q)
	if waits {
		q.lapse = m.now + heartbeatTimeout.Milliseconds()
	}
	m.asks[q] = q.ttl
	m.admit()
	done := m.asked[q]
	if !done && waits {
		m.extendQueueExpiry()
	}
	m.save()
	switch {
	case done:
		m.reach("granted past waiters that are gone")
		return lua.Granted, 0, false
	case !waits:
		m.drop(q)
		m.reach("a try admits a waiter")
		return lua.Refused, m.remaining(), false
	}
	if m.owner == nil && m.leftFree() > 0 {
		m.reach("a waiter arrives while the key is left free")
	}
	return lua.Waiting, 0, false
}

// release models the script release. With a yield it leaves the key free for so many ms, at most once in ten times
// as long.
func (m *singleModel) release(q *modelReq, tombstone int64, _ int, yield int64) int64 {
	code := int64(lua.Refused)
	if m.owner == q {
		m.disown()
		code = lua.Granted
	}
	if tombstone == 0 && yield == 0 && len(m.queue()) == 0 {
		return code
	}
	switch due := m.now >= m.freeUntil+9*yield || m.freeUntil > m.now+yield; {
	case code != lua.Granted:
	case yield > 0 && due:
		m.freeUntil, m.freeFor, m.changed = m.now+yield, yield, true
		m.tombstonesUntil = max(m.tombstonesUntil, m.freeUntil)
		m.reach("the key is left free")
	default:
		if m.freed = true; yield > 0 {
			m.reach("the key is not left free again so soon")
		}
	}
	if q.waits && (code == lua.Refused || tombstone > 0) {
		if m.changed = true; code == lua.Refused {
			code = lua.Left
		} else {
			m.reach("a holder leaves the queue as well")
		}
		m.drop(q)
	}
	if tombstone > 0 {
		m.bury(q, tombstone)
		m.tombstonesExpiry = max(m.tombstonesExpiry, q.tombstonedUntil)
	}
	m.admit()
	m.save()
	return code
}

// renew models the script renew with this number of keys.
func (m *singleModel) renew(q *modelReq, ms int64, exact bool, keys int) int64 {
	if m.owner != q {
		return lua.Refused
	}
	if end := m.now + ms; exact || end > q.end {
		q.end = end
	}
	if keys == 1 {
		return lua.Granted
	}
	if ms > q.ttl {
		m.extended, m.extendedTTL = q, ms
	}
	if q.foreign {
		m.draw()
	} else {
		m.fenceOfLease()
	}
	q.fence = m.last
	if keys == 4 {
		m.changed = true
		m.admit()
	}
	if q.foreign || ms > q.ttl { // the record of the longer ttl outlives the lease
		m.saveFor(idle.Milliseconds()+ms, ms+1000)
	} else {
		m.save()
	}
	return lua.Granted
}

// own makes the request the holder for ms.
func (m *singleModel) own(q *modelReq, ms int64) {
	m.owner, q.end, q.told, q.away = q, m.now+ms, m.now+ms, false
	m.given = append(m.given, q)
}

// disown ends the lease.
func (m *singleModel) disown() {
	m.owner.end = 0
	m.owner = nil
}

func (m *singleModel) beats() {}

// admitsBeats ends a heartbeat.
func (m *singleModel) admitsBeats() {
	if len(m.asks) > 0 {
		m.extendQueueExpiry()
	}
	m.repair()
	m.admit()
	m.save()
}

// reports is what a heartbeat reports of a request that does not wait.
func (m *singleModel) reports(q *modelReq, back bool) int64 {
	switch {
	case m.owner == q:
		m.fenceOfLease()
		m.shorten()
		q.fence, q.told = m.last, q.end
		return lua.Held
	case back && m.tombstoned(q):
		return lua.Tombstoned
	}
	return noReport
}

// shorten shortens a lease that exceeds its ttl.
func (m *singleModel) shorten() {
	q := m.owner
	if q == nil || q.foreign {
		return
	}
	ttl := q.ttl
	if m.extended == q {
		ttl = m.extendedTTL
	}
	if m.remaining() > max(q.ttl, ttl) {
		q.end, m.changed = m.now+ttl, true
		m.reach("a lease is shortened to its ttl")
	}
}

// repair shortens a lease that exceeds its ttl, and removes its holder from the queue.
func (m *singleModel) repair() {
	m.shorten()
	q := m.owner
	if _, asks := m.asks[q]; asks {
		m.drop(q)
		m.asked[q], q.fence, q.told, m.changed = true, m.fenceOfLease(), q.end, true
		m.reach("a waiter learns that it is the holder")
	}
}

// raiseFence models the script raise_fence and returns its reply.
func (m *singleModel) raiseFence(q *modelReq, least int64) []int64 {
	if m.owner != q {
		m.reach("no lease whose fence could be raised")
		return []int64{lua.Refused}
	}
	if least > m.last {
		m.last = least
		m.reach("the fence is raised")
	}
	q.fence = m.last
	m.save()
	m.reach("the fence is confirmed")
	return []int64{lua.Granted, m.last}
}

// loseMetadata deletes the metadata.
func (m *singleModel) loseMetadata() {
	m.last, m.ticket, m.tombstonesUntil, m.extended, m.metaExpiry, m.kept, m.freeUntil, m.freeFor = 0, 0, 0, nil, 0, 0, 0, 0
	m.reach("the metadata is lost")
}

// singleBench runs the scripts beside the model.
type singleBench struct {
	*singleModel
	*modelBench
}

func newSingleBench(b *modelBench) modelled {
	b.single = true
	m := &singleModel{model: b.m, fair: b.set == lua.Fair}
	if b.mini == nil {
		m.within = 999
	}
	if b.set.KeyKind == "mutex" { // the key has the format of other libraries
		b.keys[0] = "lock:x"
	}
	return &singleBench{m, b}
}

// singleKinds are the exclusive locks, and what not all of them can reach.
var singleKinds = []struct {
	set   *lua.Set
	reach []string
}{
	{lua.Mutex, append([]string{
		"granted by the fast script", "refused by the fast script", "handed on by the fast script", "the key is left free", "the key is not left free again so soon", "a try is refused while the key is left free",
		"a waiter arrives while the key is left free", "the key is not left free any more",
	}, reachedByMutexes...)},
	{lua.Fair, []string{"granted by the fast script", "refused by the fast script", "handed on by the fast script", "a try admits a waiter", "granted past waiters that are gone"}},
	{lua.Redlock, append([]string{"the fence is confirmed", "no lease whose fence could be raised", "the fence is raised", "the least fence is given"}, reachedByMutexes...)},
}

var reachedByMutexes = []string{
	"a foreign holder", "a foreign lease is renewed", "a newcomer is granted the lock before waiters",
	"a waiter is granted the lock ahead of others", "a holder leaves the queue as well",
	"a waiter learns that it is the holder",
}

// TestSingleScriptsMatchModel checks exclusive locks. A newcomer may overtake the waiters for a free mutex, but not those for a fair
// lock.
func TestSingleScriptsMatchModel(t *testing.T) {
	for _, kind := range singleKinds {
		t.Run(kind.set.Kind, func(t *testing.T) {
			matchesModel(t, kind.set, 0.35, append(slices.Clone(kind.reach),
				"the queue expires", "a lease is shortened to its ttl",
				"not renewed", "holders are listed", "waiters are listed",
				"the metadata is lost", "a lease gets a new fence after the metadata was lost")...)
		})
	}
}

// TestSingleScriptsMatchModelOnRealServer ends leases and heartbeats by hand.
func TestSingleScriptsMatchModelOnRealServer(t *testing.T) {
	for _, kind := range singleKinds {
		t.Run(kind.set.Kind, func(t *testing.T) { matchesModelOnRealServer(t, kind.set, 0.06) })
	}
}

func (b *singleBench) commands() map[string]func(*rapid.T) {
	list := map[string]func(*rapid.T){
		"the free lock is acquired":       b.acquiresWhenFree,
		"the free lock is acquired again": b.acquiresWhenFree,
		"the lock is inspected":           b.inspects,
		"the lease ends":                  b.leaseEnds,
		"heartbeats lapse":                b.heartbeatsLapse,
		"the clock was set back":          b.clockWasSetBack,
		"the metadata is lost":            b.metadataIsLost,
		"another subscription changes":    b.toggleSubscription,
	}
	if b.set.KeyKind == "mutex" {
		list["another library acquires it"] = b.foreignerComes
		list["another library releases it"] = b.foreignerGoes
	}
	if b.set.RaiseFence != nil {
		list["the fence is raised by request"] = b.raisesFence
	}
	if b.set == lua.Mutex && b.mini != nil {
		list["the key is not left free any more"] = b.yieldEnds
		list["the key may be left free again"] = b.yieldsAgain
	}
	return list
}

func (b *singleBench) policyArg() string          { return "" }
func (b *singleBench) mayBeGone(*modelReq) bool   { return false }
func (b *singleBench) mayRepeat(q *modelReq) bool { return !q.foreign }
func (b *singleBench) decodes(*stored)            {}

func (b *singleBench) arrives() *modelReq {
	return b.newReq(func(q *modelReq) string {
		flags := strings.Repeat("s", yes(q.unnotifiable))
		if b.set == lua.Redlock && rapid.Bool().Draw(b.r, "names a fence") {
			q.minFence = b.least()
			flags += "f" + strconv.FormatInt(q.minFence, 10)
		}
		return flags
	})
}

func (b *singleBench) evalFast(q *modelReq, _ bool) []int64 {
	if b.set.Fast.Acquire == nil {
		return nil
	}
	got, _ := b.evalFastAcquire(b.set, q.token, q.ttl, "")
	return got
}

func (b *singleBench) eval(q *modelReq, waits bool, _ int64) []int64 {
	return b.modelBench.scriptBench.eval(b.set.Acquire, acquireArgs(q.token, q.ttl, heartbeatTimeout.Milliseconds()*int64(yes(waits)), "", 0))
}

// least draws a fence, mostly ahead of the server's.
func (b *singleBench) least() int64 {
	t, err := b.rdb.Time(scriptCtx).Result()
	if err != nil {
		b.r.Fatal(err)
	}
	return max(b.fence, t.UnixMicro()) + rapid.SampledFrom([]int64{10000, 1, -1, -100000}).Draw(b.r, "least")
}

func (b *singleBench) holder() *modelReq {
	if b.owner == nil {
		b.r.Skip("none")
	}
	return b.owner
}

// acquiresWhenFree requests the free lock before the waiters do: by a newcomer, or by a duplicate of a waiter's
// request, which goes on waiting.
func (b *singleBench) acquiresWhenFree(*rapid.T) {
	old := b.some("waiter", waits)
	if b.owner != nil {
		b.leaseLasts(0)
	}
	if rapid.Bool().Draw(b.r, "newcomer") {
		b.asks(b.arrives(), rapid.Bool().Draw(b.r, "waits"), 0)
		return
	}
	b.asks(old, rapid.Bool().Draw(b.r, "waits"), 0)
	if rapid.Bool().Draw(b.r, "releases") {
		b.released(old, 60000, rapid.IntRange(0, 2).Draw(b.r, "unused"), 0)
	} else {
		b.heartbeatFor([]*modelReq{old}, false, nil)
	}
}

// inspects runs inspect.
func (b *singleBench) inspects(*rapid.T) {
	what := rapid.IntRange(protocol.InspectHolders, protocol.InspectWaiters).Draw(b.r, "what")
	after, most, last := int64(0), rapid.IntRange(1, 5).Draw(b.r, "most"), ""
	if rapid.IntRange(0, 2).Draw(b.r, "after") == 0 {
		last = "listed"
		if what == protocol.InspectWaiters {
			after = b.some("waiter", waits).place
		}
	}
	b.starts("inspect %d after %d %s", what, after, last)
	tokens, numbers, head := []string{}, []int64{}, 1
	if what == protocol.InspectHolders {
		head = 2
	}
	if q := b.owner; what == protocol.InspectHolders && q != nil && last == "" {
		tokens, numbers = append(tokens, q.token), append(numbers, b.last*int64(yes(!q.foreign)), b.remaining(), 0)
		b.reach("holders are listed")
	}
	if what == protocol.InspectWaiters {
		for _, q := range b.queue() {
			if at := q.place; at > after && len(tokens) < most {
				waited := int64(math.Floor(float64(b.now*1000-at) / 1000))
				tokens, numbers = append(tokens, q.token), append(numbers, at, waited, q.lapse-b.now)
				b.reach("waiters are listed")
			}
		}
	}
	reply, err := b.rdb.Eval(scriptCtx, b.set.Inspect.Text, b.keys, protocol.InspectArgs(nil, what, after, most, last)...).Slice()
	if err != nil {
		b.failf("%v", err)
	}
	gotTokens, gotNumbers := []string{}, []int64{}
	for _, x := range reply[head:] {
		switch x := x.(type) {
		case string:
			gotTokens = append(gotTokens, x)
		case int64:
			gotNumbers = append(gotNumbers, x)
		}
	}
	if !slices.Equal(gotTokens, tokens) || reply[0] != int64(len(tokens)) || head == 2 && reply[1] != int64(yes(b.owner != nil)) {
		b.failf("reply %v, want %v", reply, tokens)
	}
	if !slices.EqualFunc(gotNumbers, numbers, b.near) {
		b.failf("reply %v, want %v", reply, numbers)
	}
	b.compare()
}

// raisesFence runs raise_fence. The embedded server has no uptime, and the real one has just been started.
func (b *singleBench) raisesFence(*rapid.T) {
	odd := rapid.IntRange(0, 3).Draw(b.r, "odd") == 0
	q := b.some("lease", func(q *modelReq) bool { return odd || b.owner == q })
	least, up := b.least(), time.Hour.Milliseconds()*int64(yes(b.mini == nil && rapid.Bool().Draw(b.r, "checks the uptime")))
	b.starts("the fence of %s is raised to %d, minimum uptime %d ms", q.token, least, up)
	args := protocol.RaiseFenceArgs(nil, q.token, least, scriptSettings, up)
	got := b.modelBench.scriptBench.eval(b.set.RaiseFence, args)
	if up > 0 && b.owner == q {
		if len(got) != 2 || got[0] != lua.Unknown || got[1] >= up {
			b.failf("reply %v", got)
		}
	} else if want := b.raiseFence(q, least); !slices.EqualFunc(got, want, b.alike) {
		b.failf("reply %v, want %v", got, want)
	}
	b.compare()
}

// foreignerComes acquires the lock as another library.
func (b *singleBench) foreignerComes(*rapid.T) {
	q := &modelReq{token: fmt.Sprintf("foreign-%d", len(b.all)+1), serial: len(b.all) + 1, foreign: true}
	ms := rapid.SampledFrom([]int64{30000, 1500}).Draw(b.r, "ms")
	b.starts("%s acquires it for %d ms", q.token, ms)
	took, err := b.rdb.SetNX(scriptCtx, b.keys[0], q.token, time.Duration(ms)*time.Millisecond).Result()
	if err != nil || took != (b.owner == nil) {
		b.failf("%v, %v", took, err)
	}
	if took {
		b.all = append(b.all, q)
		b.own(q, ms)
		b.reach("a foreign holder")
	}
	b.compare()
	if took && rapid.Bool().Draw(b.r, "is adopted") {
		b.renews(q)
	}
}

// foreignerGoes releases the lock as another library, which notifies nobody.
func (b *singleBench) foreignerGoes(*rapid.T) {
	if !b.holder().foreign {
		b.r.Skip("none")
	}
	b.isFreed("%s releases", b.owner.token)
}

// isFreed deletes the lease.
func (b *singleBench) isFreed(format string, args ...any) {
	b.starts(format, args...)
	if err := b.rdb.Del(scriptCtx, b.keys[0]).Err(); err != nil {
		b.failf("%v", err)
	}
	b.disown()
	b.compare()
}

func (b *singleBench) leaseEnds(*rapid.T) {
	b.holder()
	b.leaseLasts(int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
}

// yieldEnds advances time until the key is not left free any more, or a millisecond less.
func (b *singleBench) yieldEnds(*rapid.T) {
	left := b.leftFree()
	if left == 0 {
		b.r.Skip("it is not")
	}
	b.pass(left - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
	b.reach("the key is not left free any more")
}

// yieldsAgain releases a lease, just when the key may be left free again, or a millisecond before.
func (b *singleBench) yieldsAgain(*rapid.T) {
	wait := b.freeUntil + 9*b.freeFor - b.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less"))
	if b.freeFor == 0 || wait <= 0 {
		b.r.Skip("it was not left free lately")
	}
	b.pass(wait)
	if b.owner == nil {
		b.asks(b.arrives(), true, 0)
	}
	if b.owner != nil && !b.owner.foreign {
		b.released(b.owner, 0, 0, b.freeFor)
	}
}

// leaseLasts advances time until the lease expires, or some ms less.
func (b *singleBench) leaseLasts(less int64) {
	if b.mini != nil {
		b.pass(b.remaining() - less)
	} else {
		b.isFreed("the lease of %s ends", b.owner.token)
	}
}

// heartbeatsLapse lets a heartbeat lapse.
func (b *singleBench) heartbeatsLapse(*rapid.T) {
	q := b.some("waiter", func(q *modelReq) bool { return q.waits && q.lapse > b.now })
	if b.mini != nil {
		b.pass(q.lapse - b.now)
		return
	}
	b.starts("the heartbeat of %s lapses", q.token)
	q.lapse = b.now - 1
	if err := b.rdb.ZAdd(scriptCtx, b.keys[2], redis.Z{Score: float64(protocol.Heartbeats + q.lapse), Member: "+" + q.token}).Err(); err != nil {
		b.failf("%v", err)
	}
	b.compare()
}

// clockWasSetBack makes the lease expire later than it should, until the next heartbeat. Expiries of the embedded
// server move with its clock, so this changes the lease itself.
func (b *singleBench) clockWasSetBack(*rapid.T) {
	q := b.holder()
	b.starts("the clock was set back, and the lease of %s ends late", q.token)
	if err := b.rdb.PExpire(scriptCtx, b.keys[0], 10*time.Minute).Err(); err != nil {
		b.failf("%v", err)
	}
	q.end = b.now + 600_000
	b.compare()
	if rapid.IntRange(0, 2).Draw(b.r, "somebody heartbeats") > 0 {
		b.heartbeatsOf(cmp.Or(q.keeper, keepers[0]))
	}
}

// metadataIsLost evicts the metadata. Fences still rise, because time has passed.
func (b *singleBench) metadataIsLost(*rapid.T) {
	if rapid.Bool().Draw(b.r, "spared") {
		b.r.Skip("not so often")
	}
	for {
		t, err := b.rdb.Time(scriptCtx).Result()
		if err != nil {
			b.failf("%v", err)
		}
		us := t.UnixMicro()
		if us > max(b.fence, b.ticket) {
			break
		}
		if b.mini != nil {
			b.pass((max(b.fence, b.ticket)-us)/1000 + 1)
		}
	}
	b.starts("the metadata is lost")
	if err := b.rdb.Del(scriptCtx, b.keys[1]).Err(); err != nil {
		b.failf("%v", err)
	}
	b.loseMetadata()
	b.compare()
	if q := b.owner; q != nil && !q.foreign && rapid.Bool().Draw(b.r, "the holder asks") {
		b.asks(q, true, 0)
	}
}

// published compares the messages of the step.
func (b *singleBench) published(received []message) {
	b.r.Helper()
	same := func(got, want message) bool {
		return got.keeper == want.keeper && got.serial == want.serial && (got.number < 0) == (want.number < 0) &&
			b.alike(max(got.number, -got.number), max(want.number, -want.number))
	}
	if !slices.EqualFunc(received, b.sent, same) {
		b.failf("messages %v, want %v", received, b.sent)
	}
}

// compares compares the owner, the metadata and when keys expire.
func (b *singleBench) compares(s *stored) {
	b.r.Helper()
	number := func(fact string) int64 {
		n, _ := strconv.ParseInt(s.meta[fact], 10, 64)
		return n
	}
	if got := number("seq"); (got < 0) != (b.kept < 0) {
		b.failf("the last fence is stored as %d, want %d", got, b.kept)
	}
	b.kept = number("seq")
	b.takes(&b.last, max(b.kept, -b.kept), "seq")
	b.takes(&b.ticket, number("ticket"), "ticket")
	b.takes(&b.tombstonesUntil, number("tombstones"), "tombstones")
	var until, ms int64
	_, _ = fmt.Sscan(s.meta["yield"], &until, &ms)
	b.takes(&b.freeUntil, until, "the key is left free until")
	b.takes(&b.freeFor, ms, "the key is left free for")
	if b.newFence && b.last <= b.fence {
		b.failf("the fence %d after %d", b.last, b.fence)
	}
	b.fence, b.seq = max(b.fence, b.last), b.last
	token, end := "", new(int64)
	if b.owner != nil {
		token, end = b.owner.token, &b.owner.end
		if !b.owner.foreign && b.last != 0 {
			b.owner.fence = b.last
		}
	}
	if s.owner != token {
		b.failf("%s holds it, want %s", s.owner, token)
	}
	if len(b.queue()) == 0 {
		b.queueExpiry = 0
	}
	for i, end := range []*int64{end, &b.metaExpiry, &b.queueExpiry, &b.tombstonesExpiry} {
		got := int64(0)
		if s.expiry[i] != -2 {
			got = b.now + s.expiry[i]
		}
		b.takes(end, got, "%s expires", b.keys[i])
	}
}
