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
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// singleReq is a request for an exclusive lock, or a lease of another library.
type singleReq struct {
	token        string
	keeper       string
	serial       int
	ttl          int64
	unnotifiable bool  // it gets no notifications
	foreign      bool  // of another library: its token has another format
	minFence     int64 // of a redlock: the smallest fence that it accepts
	place        int64 // in the queue, or its last one
}

func (q *singleReq) claimTTL() int64 {
	return min(q.ttl, heartbeatTimeout.Milliseconds())
}

// singleMessage is a message to a keeper: a fence, or the negative number of ms after which to retry.
type singleMessage struct {
	keeper string
	serial int
	number int64
}

// singleModel is a model of an exclusive lock. Times are the server's ms; 0 means none.
type singleModel struct {
	fair            bool
	now             int64
	within          int64           // the maximum offset of the server within this ms, in µs
	subscribed      map[string]bool // keepers with a subscription
	owner           *singleReq
	end             int64                // of its lease
	seq             int64                // the fence of the lease, or the last one
	ticket          int64                // the last one
	tombstonesUntil int64                // until when there are tombstones
	extended        *singleReq           // the last lease that was extended beyond its ttl
	extendedTTL     int64                // the ms to which it was extended
	queue           map[*singleReq]int64 // waiters and their places
	heartbeats      map[*singleReq]int64 // when heartbeats lapse
	tombstones      map[*singleReq]int64 // until when
	stored          int64                // the last fence as it is stored: negative while there may be tombstones
	reach           func(string)

	freeUntil, freeFor int64 // until when the key was last left free for other libraries, and for how many ms

	queueExpiry, tombstonesExpiry, metaExpiry int64 // of the keys

	asking    map[*singleReq]int64    // requests of this step, and the ttl to grant them
	granted   map[*singleReq][2]int64 // granted by the reply: fence and end
	absent    map[string]bool         // keepers that a message of this step did not reach
	changed   bool                    // the head may not know when to retry
	lapsed    []*singleReq            // waiters that this step removed because they had lapsed
	freed     bool                    // this step has released the lock, and does not leave the key free
	newFence  bool                    // a new fence was issued
	published []singleMessage         // messages of this step
}

// begin begins a step at this time.
func (m *singleModel) begin(now int64) {
	m.now, m.changed, m.freed, m.newFence, m.published, m.lapsed = now, false, false, false, nil, nil
	m.asking, m.granted, m.absent = map[*singleReq]int64{}, map[*singleReq][2]int64{}, map[string]bool{}
	if m.owner != nil && m.end <= now {
		m.owner = nil
		m.reach("a lease expires")
	}
	if m.queueExpiry <= now {
		if len(m.queue) > 0 {
			m.reach("the queue expires")
		}
		clear(m.queue)
		clear(m.heartbeats)
	}
	if m.tombstonesExpiry <= now {
		clear(m.tombstones)
	}
	if m.metaExpiry != 0 && m.metaExpiry <= now {
		m.loseMetadata()
	}
	m.tidy()
}

// tidy clears the expiry of empty keys.
func (m *singleModel) tidy() {
	if len(m.queue) == 0 {
		m.queueExpiry = 0
	}
	if len(m.tombstones) == 0 {
		m.tombstonesExpiry = 0
	}
}

// waiters returns the waiters in order.
func (m *singleModel) waiters() []*singleReq {
	return slices.SortedFunc(maps.Keys(m.queue), func(a, b *singleReq) int {
		return cmp.Or(cmp.Compare(m.queue[a], m.queue[b]), cmp.Compare(a.token, b.token))
	})
}

// remaining returns the ms until the lease expires, or until the key is not left free any more.
func (m *singleModel) remaining() int64 {
	if m.owner == nil {
		return m.leftFree()
	}
	return m.end - m.now
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
	m.seq, m.newFence = max(m.us(), m.seq+1), true
	return m.seq
}

// fence returns the fence of the current lease.
func (m *singleModel) fence() int64 {
	if m.seq == 0 {
		m.reach("a lease gets a new fence after the metadata was lost")
		return m.draw()
	}
	return m.seq
}

// save extends the expiry of the metadata.
func (m *singleModel) save() {
	if m.stored < m.epoch() || m.seq > m.us() {
		m.saveFor(idle.Milliseconds(), idle.Milliseconds()*3/4)
		return
	}
	m.store()
}

// saveFor extends the expiry of the metadata to keep ms, if less than least ms remain.
func (m *singleModel) saveFor(keep, least int64) {
	m.store()
	from := max(m.now, (m.seq+999)/1000) // fences can be ahead of the clock
	if m.metaExpiry < from+least {
		m.metaExpiry = from + keep
	}
}

// store writes the last fence.
func (m *singleModel) store() {
	m.stored = m.seq
	if m.tombstonesUntil > m.now {
		m.stored = -m.seq
	}
}

// epoch returns the beginning of the present epoch in µs. The first fence of each extends the expiry of the metadata.
func (m *singleModel) epoch() int64 {
	us := m.now * 1000
	return us - us%protocol.EpochOf(idle.Milliseconds())
}

// enqueue appends the request to the queue, unless it is there already.
func (m *singleModel) enqueue(q *singleReq) {
	m.ticket = max(m.ticket+1, m.us())
	if m.queue[q] == 0 {
		m.queue[q], q.place = m.ticket, m.ticket
	}
}

// refresh records a heartbeat of the request.
func (m *singleModel) refresh(q *singleReq) {
	m.heartbeats[q] = m.now + heartbeatTimeout.Milliseconds()
}

// extendQueueExpiry makes the queue expire a second after the last heartbeat.
func (m *singleModel) extendQueueExpiry() {
	m.queueExpiry = max(m.queueExpiry, m.now+heartbeatTimeout.Milliseconds()+1000)
}

// dequeue removes a request from the queue.
func (m *singleModel) dequeue(q *singleReq) {
	delete(m.queue, q)
	delete(m.heartbeats, q)
	m.tidy()
}

// admit grants the lock to the next waiters. Waiters that cannot be notified, or whose heartbeat has lapsed, are
// skipped. After an undelivered message, waiters are read fifty at a time, so that some may be removed early.
func (m *singleModel) admit() {
	for width := 1; ; width = 50 {
		granted := m.admitWithin(width)
		if granted == nil || m.subscribed[granted.keeper] {
			if granted != nil {
				m.published = append(m.published, singleMessage{granted.keeper, granted.serial, m.seq})
				m.reach("granted by a message")
			}
			break
		}
		m.owner, m.absent[granted.keeper] = nil, true
		m.reach("skipped: not subscribed")
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
			m.published = append(m.published, singleMessage{q.keeper, q.serial, -int64(10*len(notified) + 1)})
			m.reach("a lapsed waiter is notified")
		}
		notified[q.keeper] = true
	}
}

// admitWithin is one pass over the first waiters. It returns the waiter to notify.
func (m *singleModel) admitWithin(width int) (granted *singleReq) {
	for m.owner == nil && len(m.queue) > 0 && (m.freed || m.leftFree() == 0) {
		waiting := m.waiters()
		for _, q := range waiting[:min(width, len(waiting))] {
			ms, asks := m.asking[q]
			if gone := m.absent[q.keeper] || m.heartbeats[q] <= m.now; !asks && gone {
				m.dequeue(q)
				m.changed, m.lapsed = true, append(m.lapsed, q)
				m.reach("skipped: heartbeat lapsed")
				continue
			}
			if m.owner != nil {
				break
			}
			if !asks {
				ms = min(q.claimTTL(), m.heartbeats[q]-m.now)
			}
			m.changed = m.changed || q.ttl == q.claimTTL() || ms < q.claimTTL()/2
			m.dequeue(q)
			m.owner, m.end = q, m.now+ms
			fence := m.draw()
			switch {
			case asks:
				m.granted[q] = [2]int64{fence, m.end}
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
	for len(m.queue) > 0 {
		q := m.waiters()[0]
		if _, asks := m.asking[q]; asks || q.unnotifiable || m.remaining() == 0 || m.now+m.remaining() >= m.heartbeats[q]-q.claimTTL()/2 {
			return
		}
		if m.subscribed[q.keeper] {
			m.published = append(m.published, singleMessage{q.keeper, q.serial, -m.remaining()})
			m.reach("the head is notified")
			return
		}
		m.dequeue(q)
		m.reach("skipped: not subscribed for the notification of the head")
	}
}

// when returns the ms after which a waiter of this rank should retry.
func (m *singleModel) when(rank int) int64 {
	if rank > 2 {
		return 0
	}
	return m.remaining()
}

// fastAcquire models the fast script that acquires and returns its reply, or nil if it decides nothing.
func (m *singleModel) fastAcquire(q *singleReq) []int64 {
	if m.fair && len(m.queue) > 0 {
		return nil
	}
	if m.owner == nil && m.stored > 0 && m.stored >= m.epoch() {
		m.reach("granted by the fast script")
		m.owner, m.end = q, m.now+q.ttl
		m.seq, m.newFence = max(m.now*1000, m.seq+1), true // it takes the time from an expiry, in ms
		m.stored = m.seq
		return []int64{lua.Granted, m.seq, 0, 0, 0}
	}
	if m.owner != nil && m.owner != q && (m.owner.foreign || m.remaining() <= m.owner.ttl) {
		m.reach("refused by the fast script")
		return []int64{lua.Refused, 0, m.remaining(), 0}
	}
	return nil
}

// acquire models the general script of the script acquire and returns its reply.
func (m *singleModel) acquire(q *singleReq, waits bool) []int64 {
	if m.tombstonesUntil > m.now && m.tombstones[q] != 0 {
		m.reach("a tombstoned request")
		return []int64{lua.Tombstoned}
	}
	until := m.now + q.ttl
	taken := m.owner == nil && m.leftFree() == 0 && (!m.fair || len(m.queue) == 0)
	switch {
	case taken:
		if m.queue[q] != 0 {
			m.reach("a waiter is granted the lock ahead of others")
		} else if len(m.queue) > 0 {
			m.reach("a newcomer is granted the lock before waiters")
		}
		m.owner, m.end = q, until
		m.draw()
		m.reach("granted at once")
	case m.owner == q:
		m.end = max(m.end, until)
		m.fence()
		m.reach("a duplicate of a request")
	}
	if m.owner == q {
		m.seq = max(m.seq, q.minFence)
		m.save()
		return []int64{lua.Granted, m.seq, m.now, until, 0}
	}
	if !waits && (m.owner != nil || m.leftFree() > 0) {
		m.reach("a try is refused")
		if m.owner == nil {
			m.reach("a try is refused while the key is left free")
		}
		m.repair()
		return []int64{lua.Refused, m.now, m.remaining(), 0}
	}
	m.enqueue(q)
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
		m.reach("granted past waiters that are gone")
		return []int64{lua.Granted, got[0], m.now, got[1], 0}
	case !waits:
		m.dequeue(q)
		m.reach("a try admits a waiter")
		return []int64{lua.Refused, m.now, m.remaining(), 0}
	}
	if m.owner == nil && m.leftFree() > 0 {
		m.reach("a waiter arrives while the key is left free")
	}
	rank := slices.Index(m.waiters(), q)
	return []int64{lua.Waiting, m.now, m.seq, m.queue[q], int64(rank), m.when(rank), 0}
}

// release models the script release and returns its reply. With a yield it leaves the key free for so many ms, at most once in ten times
// as long.
func (m *singleModel) release(q *singleReq, tombstone, yield int64) []int64 {
	code := int64(lua.Refused)
	if m.owner == q {
		m.owner, code = nil, lua.Granted
	}
	if tombstone == 0 && yield == 0 && len(m.queue) == 0 {
		return []int64{code, 2}
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
	if m.queue[q] != 0 && (code == lua.Refused || tombstone > 0) {
		if m.changed = true; code == lua.Refused {
			code = lua.Left
		} else {
			m.reach("a holder leaves the queue as well")
		}
		m.dequeue(q)
	}
	if tombstone > 0 {
		maps.DeleteFunc(m.tombstones, func(_ *singleReq, until int64) bool { return until <= m.now })
		m.tidy()
		m.tombstones[q] = m.now + tombstone
		m.tombstonesUntil = max(m.tombstonesUntil, m.tombstones[q])
		m.tombstonesExpiry = max(m.tombstonesExpiry, m.tombstones[q])
	}
	m.admit()
	m.save()
	return []int64{code, 0}
}

// renew models the script renew with this number of keys and returns its reply.
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
		m.extended, m.extendedTTL = q, ms
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
	if q.foreign || ms > q.ttl { // the record of the longer ttl outlives the lease
		m.saveFor(idle.Milliseconds()+ms, ms+1000)
	} else {
		m.save()
	}
	return []int64{lua.Granted, m.seq}
}

// heartbeat models the script heartbeat and returns its reply. places are those of rejoining waiters, 0 for the end.
func (m *singleModel) heartbeat(list []*singleReq, back bool, places []int64) []int64 {
	var changes []int64
	report := func(i int, values ...int64) { changes = append(append(changes, int64(i+1)), values...) }
	var held []int
	for i, q := range list {
		switch {
		case m.queue[q] != 0:
		case m.owner == q:
			m.fence()
			held = append(held, i)
			continue
		case back && m.tombstonesUntil > m.now && m.tombstones[q] != 0:
			report(i, lua.Tombstoned, 0, 0)
			continue
		case !back:
			report(i, lua.Unknown, 0, 0)
			m.reach("unknown")
			continue
		default:
			if m.queue[q], q.place = places[i], places[i]; places[i] == 0 {
				m.enqueue(q)
			}
			report(i, lua.Waiting, q.place, 0)
			m.reach("rejoined the queue")
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
		report(i, lua.Held, m.seq, m.end)
		m.reach("held")
	}
	m.admit()
	first, rank := -1, -1
	waiting := m.waiters()
	for i, q := range list {
		if got, done := m.granted[q]; done {
			report(i, lua.Granted, got[0], got[1])
			m.reach("granted by a reply")
		} else if at := slices.Index(waiting, q); at >= 0 && (first < 0 || at < rank) {
			first, rank = i, at
		}
	}
	m.save()
	reply := []int64{lua.Waiting, m.now, m.seq, 0, 0, 0, 0}
	if first >= 0 {
		reply[3], reply[5], reply[6] = m.when(rank), int64(first+1), int64(rank)
	}
	return append(reply, changes...)
}

// sweep removes lapsed waiters.
func (m *singleModel) sweep() {
	inOrder := slices.SortedFunc(maps.Keys(m.heartbeats), func(a, b *singleReq) int {
		return cmp.Or(cmp.Compare(m.heartbeats[a], m.heartbeats[b]), cmp.Compare(a.token, b.token))
	})
	for _, q := range inOrder {
		if m.heartbeats[q] <= m.now {
			m.dequeue(q)
			m.changed, m.lapsed = true, append(m.lapsed, q)
			m.reach("swept")
		}
	}
}

// repair shortens a lease that exceeds its ttl, and removes its holder from the queue.
func (m *singleModel) repair() {
	q := m.owner
	if q == nil || q.foreign {
		return
	}
	ttl := q.ttl
	if m.extended == q {
		ttl = m.extendedTTL
	}
	if m.remaining() > max(q.ttl, ttl) {
		m.end, m.changed = m.now+ttl, true
		m.reach("a lease is shortened to its ttl")
	}
	if _, asks := m.asking[q]; asks {
		m.dequeue(q)
		m.granted[q], m.changed = [2]int64{m.fence(), m.end}, true
		m.reach("a waiter learns that it is the holder")
	}
}

// raiseFence models the script raise_fence and returns its reply.
func (m *singleModel) raiseFence(q *singleReq, least int64) []int64 {
	if m.owner != q {
		m.reach("no lease whose fence could be raised")
		return []int64{lua.Refused}
	}
	if least > m.seq {
		m.seq = least
		m.reach("the fence is raised")
	}
	m.save()
	m.reach("the fence is confirmed")
	return []int64{lua.Granted, m.seq}
}

// loseMetadata deletes the metadata.
func (m *singleModel) loseMetadata() {
	m.seq, m.ticket, m.tombstonesUntil, m.extended, m.metaExpiry, m.stored, m.freeUntil, m.freeFor = 0, 0, 0, nil, 0, 0, 0, 0
	m.reach("the metadata is lost")
}

// singleBench runs the scripts beside the model.
type singleBench struct {
	*singleModel
	*scriptBench
	set   *lua.Set
	all   []*singleReq
	fence int64 // the largest so far
}

// singleKinds are the exclusive locks, and what not all of them can reach.
var singleKinds = []struct {
	set   *lua.Set
	reach []string
}{
	{lua.Mutex, append([]string{
		"handed on by the fast script", "the key is left free", "the key is not left free again so soon", "a try is refused while the key is left free",
		"a waiter arrives while the key is left free", "the key is not left free any more",
	}, reachedByMutexes...)},
	{lua.Fair, []string{"handed on by the fast script", "a try admits a waiter", "granted past waiters that are gone"}},
	{lua.Redlock, append([]string{"the fence is confirmed", "no lease whose fence could be raised", "the fence is raised", "the least fence is given"}, reachedByMutexes...)},
}

var reachedByMutexes = []string{
	"a foreign holder", "a foreign lease is renewed", "a newcomer is granted the lock before waiters",
	"a waiter is granted the lock ahead of others", "a holder leaves the queue as well",
	"a waiter learns that it is the holder",
}

// TestSingleScriptsMatchModel checks that for all operations on an exclusive lock, in any order, while time passes,
// the scripts reply, grant, notify and store what the model does, to the millisecond; that fences rise with each
// lease; and that no waiter waits forever if all are alive. A newcomer may overtake the waiters for a free mutex,
// but not those for a fair lock.
func TestSingleScriptsMatchModel(t *testing.T) {
	for _, kind := range singleKinds {
		t.Run(kind.set.Kind, func(t *testing.T) {
			rdb, mini := miniServer(t)
			run := newRun(t)
			run.explore(0.35, func(r *rapid.T) { singleSequence(r, run, kind.set, rdb, mini) },
				append(slices.Clone(kind.reach),
					"granted at once", "granted by a message", "granted by a reply", "a waiter without notifications is granted",
					"a try is refused", "a tombstoned request", "a duplicate of a request",
					"a lease expires", "the queue expires", "swept", "a lease is shortened to its ttl",
					"skipped: heartbeat lapsed", "skipped: not subscribed", "skipped: not subscribed for the notification of the head",
					"the head is notified", "a lapsed waiter is notified", "rejoined the queue", "held", "unknown", "left", "released", "nothing to release",
					"renewed", "shortened", "not renewed", "holders are listed", "waiters are listed",
					"the metadata is lost", "a lease gets a new fence after the metadata was lost", "run to the end",
				)...)
		})
	}
}

// TestSingleScriptsMatchModelOnRealServer runs a part of the same on a real server, where leases and heartbeats are
// ended by hand.
func TestSingleScriptsMatchModelOnRealServer(t *testing.T) {
	for _, kind := range singleKinds {
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
			fair:       set == lua.Fair,
			queue:      map[*singleReq]int64{},
			heartbeats: map[*singleReq]int64{},
			tombstones: map[*singleReq]int64{},
			reach:      func(what string) { u.tally[what]++ },
		},
		scriptBench: newScriptBench(r, rdb, mini, set.KeyKind),
		set:         set,
	}
	b.singleModel.subscribed = b.scriptBench.subscribed
	b.state = func() string {
		b.onHandOn = func() { b.reach("handed on by the fast script") }
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
		"":                                func(*rapid.T) {},
		"a waiter arrives":                func(*rapid.T) { b.asks(b.newReq(), true) },
		"several waiters arrive":          b.severalArrive,
		"a try":                           func(*rapid.T) { b.asks(b.newReq(), false) },
		"a duplicate arrives":             b.duplicateArrives,
		"the free lock is acquired":       b.acquiresWhenFree,
		"the free lock is acquired again": b.acquiresWhenFree,
		"the holder releases":             b.holderReleases,
		"it releases again":               b.holderReleases,
		"a waiter leaves":                 b.waiterLeaves,
		"an unknown request is released":  b.strangerLeaves,
		"the lease is renewed":            b.renews,
		"a keeper heartbeats":             b.keeperHeartbeats,
		"another keeper heartbeats":       b.keeperHeartbeats,
		"waiters rejoin":                  b.rejoins,
		"a subscription changes":          b.toggleSubscription,
		"another subscription changes":    b.toggleSubscription,
		"the lock is inspected":           b.inspects,
		"the lease ends":                  b.leaseEnds,
		"heartbeats lapse":                b.heartbeatsLapse,
		"the clock was set back":          b.clockWasSetBack,
		"the metadata is lost":            b.metadataIsLost,
	}
	if set.KeyKind == "mutex" { // the key has the format of other libraries
		b.keys[0] = "lock:x"
		actions["another library acquires it"] = b.foreignerComes
		actions["another library releases it"] = b.foreignerGoes
	}
	if set.RaiseFence != nil {
		actions["the fence is raised by request"] = b.raisesFence
	}
	if mini != nil {
		actions["time passes"] = b.timePasses
		if set == lua.Mutex {
			actions["the key is not left free any more"] = b.yieldEnds
			actions["the key may be left free again"] = b.yieldsAgain
		}
	}
	b.severalArrive(r)
	r.Repeat(actions)
	if mini != nil && rapid.IntRange(0, 7).Draw(r, "run to the end") == 0 {
		b.runToEnd()
	}
}

// starts begins a step at the server's current time.
func (b *singleBench) starts(format string, args ...any) {
	b.r.Helper()
	b.begin(b.time(format, args...))
}

// newReq draws a new request.
func (b *singleBench) newReq() *singleReq {
	q := &singleReq{serial: len(b.all) + 1}
	q.keeper = keepers[rapid.SampledFrom([]int{0, 1, 2, 0, 1, 2, 3}).Draw(b.r, "keeper")]
	q.unnotifiable = q.keeper == "mute"
	q.ttl = rapid.SampledFrom([]int64{30000, 2000, 6000, 2000}).Draw(b.r, "ttl")
	q.token = fmt.Sprintf("%s:%d:%d.%d%s", q.keeper, q.serial, q.ttl, q.claimTTL(), strings.Repeat("s", yes(q.unnotifiable)))
	if b.set == lua.Redlock && rapid.Bool().Draw(b.r, "names a fence") {
		q.minFence = b.least()
		q.token += "f" + strconv.FormatInt(q.minFence, 10)
	}
	b.all = append(b.all, q)
	return q
}

// least draws a fence, mostly ahead of the server's.
func (b *singleBench) least() int64 {
	t, err := b.rdb.Time(scriptCtx).Result()
	if err != nil {
		b.r.Fatal(err)
	}
	return max(b.fence, t.UnixMicro()) + rapid.SampledFrom([]int64{10000, 1, -1, -100000}).Draw(b.r, "least")
}

// some draws a request that satisfies is.
func (b *singleBench) some(what string, is func(*singleReq) bool) *singleReq {
	var list []*singleReq
	for _, q := range b.all {
		if is(q) {
			list = append(list, q)
		}
	}
	return draw(b.r, list, what)
}

func (b *singleBench) waits(q *singleReq) bool { return b.queue[q] != 0 }

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

// asks runs acquire: sometimes the fast script, and the general one unless that has decided the request.
func (b *singleBench) asks(q *singleReq, waits bool) {
	if b.set.Fast.Acquire != nil && rapid.Bool().Draw(b.r, "fast") {
		b.starts("acquire %s by the fast script", q.token)
		want := b.fastAcquire(q)
		got, _ := b.evalFastAcquire(b.set, q.token, q.ttl, "")
		b.replies(want, got)
		b.compare()
		if want != nil && (want[0] == lua.Granted || !waits) {
			return
		}
	}
	b.starts("acquire %s, waits %v", q.token, waits)
	want := b.acquire(q, waits)
	if want[0] == lua.Granted && want[1] == q.minFence {
		b.reach("the least fence is given")
	}
	patience := heartbeatTimeout.Milliseconds() * int64(yes(waits))
	b.replies(want, b.eval(b.set.Acquire, acquireArgs(q.token, q.ttl, patience, "", 0)))
	b.compare()
}

// duplicateArrives repeats a request that waits, holds or is tombstoned, and sometimes one that has ended.
func (b *singleBench) duplicateArrives(*rapid.T) {
	late := rapid.IntRange(0, 3).Draw(b.r, "late") == 0
	q := b.some("request", func(q *singleReq) bool {
		return !q.foreign && (late || b.waits(q) || b.owner == q || b.tombstones[q] != 0)
	})
	b.asks(q, rapid.IntRange(0, 3).Draw(b.r, "try") > 0)
}

// acquiresWhenFree requests the free lock before the waiters do: by a newcomer, or by a duplicate of a waiter's
// request, which goes on waiting.
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

// releases runs release.
func (b *singleBench) releases(q *singleReq) {
	b.released(q, rapid.SampledFrom([]int64{0, 0, 60000}).Draw(b.r, "tombstone ms"))
}

func (b *singleBench) released(q *singleReq, tombstone int64) {
	unused := rapid.IntRange(0, 2).Draw(b.r, "unused")
	yield := int64(0)
	if b.set == lua.Mutex && unused == 0 {
		yield = rapid.SampledFrom([]int64{0, 2000, 20_000, 500}).Draw(b.r, "yield")
		if b.mini == nil {
			yield *= 1000 // so that it does not end meanwhile
		}
	}
	b.releasedFor(q, tombstone, unused, yield)
}

func (b *singleBench) releasedFor(q *singleReq, tombstone int64, unused int, yield int64) {
	b.starts("%s is released, tombstone %d, unused %d, yield %d", q.token, tombstone, unused, yield)
	want := b.release(q, tombstone, yield)
	var got []int64
	if yield > 0 {
		got = b.eval(b.set.Release, protocol.ReleaseArgs(nil, q.token, scriptSettings, tombstone, unused, yield))
	} else {
		got = b.evalRelease(b.set, "", q.token, tombstone, unused)
	}
	b.replies(want, got)
	b.reach(map[int64]string{lua.Granted: "released", lua.Left: "left", lua.Refused: "nothing to release"}[want[0]])
	b.compare()
}

func (b *singleBench) holderReleases(*rapid.T) { b.releases(b.holder()) }
func (b *singleBench) waiterLeaves(*rapid.T)   { b.releases(b.some("waiter", b.waits)) }
func (b *singleBench) strangerLeaves(*rapid.T) {
	b.releases(b.some("stranger", func(q *singleReq) bool { return !b.waits(q) && b.owner != q }))
}

// renews runs renew.
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
	b.replies(want, b.evalRenew(b.set, keys, q.token, ms, exact))
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

// keeperHeartbeats runs the heartbeat of some of a keeper's requests, including some that have ended.
func (b *singleBench) keeperHeartbeats(*rapid.T) {
	b.heartbeatOf(rapid.SampledFrom(keepers).Draw(b.r, "keeper"), false)
}

// rejoins is the heartbeat of a keeper that has learned that some of its requests are unknown.
func (b *singleBench) rejoins(*rapid.T) {
	b.heartbeatOf(b.some("who", func(q *singleReq) bool { return !q.foreign && !b.waits(q) }).keeper, true)
}

func (b *singleBench) heartbeatOf(keeper string, back bool) {
	var list []*singleReq
	var places []int64
	for _, q := range b.all {
		most := 9
		if b.waits(q) || b.owner == q || b.tombstones[q] != 0 {
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
	b.starts("heartbeats of %s, rejoin %v", singleTokens(list), back)
	args := heartbeatArgs(yes(back), "")
	for i, q := range list {
		if args = append(args, q.token); back {
			args = append(args, places[i])
		}
	}
	want := b.heartbeat(list, back, places)
	got := b.eval(b.set.Heartbeat, args)
	b.replies(want[:7], got[:min(7, len(got))])
	b.replies(byIndex(want[7:]), byIndex(got[7:]))
	b.compare()
}

// byIndex sorts the changes in a reply to a heartbeat by their tokens.
func byIndex(changes []int64) []int64 {
	if len(changes)%4 != 0 {
		return changes
	}
	entries := slices.Collect(slices.Chunk(changes, 4))
	slices.SortStableFunc(entries, func(a, b []int64) int { return cmp.Compare(a[0], b[0]) })
	return slices.Concat(entries...)
}

// toggleSubscription subscribes or unsubscribes a keeper.
func (b *singleBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.scriptBench.subscribed[k])
}

// inspects runs inspect.
func (b *singleBench) inspects(*rapid.T) {
	what := rapid.IntRange(protocol.InspectHolders, protocol.InspectWaiters).Draw(b.r, "what")
	after, most, last := int64(0), rapid.IntRange(1, 5).Draw(b.r, "most"), ""
	if rapid.IntRange(0, 2).Draw(b.r, "after") == 0 {
		last = "listed"
		if what == protocol.InspectWaiters {
			after = b.queue[b.some("waiter", b.waits)]
		}
	}
	b.starts("inspect %d after %d %s", what, after, last)
	tokens, numbers, head := []string{}, []int64{}, 1
	if what == protocol.InspectHolders {
		head = 2
	}
	if q := b.owner; what == protocol.InspectHolders && q != nil && last == "" {
		tokens, numbers = append(tokens, q.token), append(numbers, b.seq*int64(yes(!q.foreign)), b.remaining(), 0)
		b.reach("holders are listed")
	}
	if what == protocol.InspectWaiters {
		for _, q := range b.waiters() {
			if at := b.queue[q]; at > after && len(tokens) < most {
				waited := int64(math.Floor(float64(b.now*1000-at) / 1000))
				tokens, numbers = append(tokens, q.token), append(numbers, at, waited, b.heartbeats[q]-b.now)
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
	q := b.some("lease", func(q *singleReq) bool { return odd || b.owner == q })
	least, up := b.least(), time.Hour.Milliseconds()*int64(yes(b.mini == nil && rapid.Bool().Draw(b.r, "checks the uptime")))
	b.starts("the fence of %s is raised to %d, minimum uptime %d ms", q.token, least, up)
	args := protocol.RaiseFenceArgs(nil, q.token, least, scriptSettings, up)
	if up > 0 && b.owner == q {
		if got := b.eval(b.set.RaiseFence, args); len(got) != 2 || got[0] != lua.Unknown || got[1] >= up {
			b.failf("reply %v", got)
		}
	} else {
		b.replies(b.raiseFence(q, least), b.eval(b.set.RaiseFence, args))
	}
	b.compare()
}

// foreignerComes acquires the lock as another library.
func (b *singleBench) foreignerComes(*rapid.T) {
	q := &singleReq{token: fmt.Sprintf("foreign-%d", len(b.all)+1), serial: len(b.all) + 1, foreign: true}
	ms := rapid.SampledFrom([]int64{30000, 1500}).Draw(b.r, "ms")
	b.starts("%s acquires it for %d ms", q.token, ms)
	took, err := b.rdb.SetNX(scriptCtx, b.keys[0], q.token, time.Duration(ms)*time.Millisecond).Result()
	if err != nil || took != (b.owner == nil) {
		b.failf("%v, %v", took, err)
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
	b.owner = nil
	b.compare()
}

func (b *singleBench) leaseEnds(*rapid.T) {
	b.holder()
	b.ends(int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
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
		b.asks(b.newReq(), true)
	}
	if b.owner != nil && !b.owner.foreign {
		b.releasedFor(b.owner, 0, 0, b.freeFor)
	}
}

// ends advances time until the lease expires, or some ms less.
func (b *singleBench) ends(less int64) {
	if b.mini != nil {
		b.pass(b.remaining() - less)
	} else {
		b.isFreed("the lease of %s ends", b.owner.token)
	}
}

// heartbeatsLapse advances time until a heartbeat lapses, or a millisecond less.
func (b *singleBench) heartbeatsLapse(*rapid.T) {
	q := b.some("waiter", func(q *singleReq) bool { return b.waits(q) && b.heartbeats[q] > b.now })
	if b.mini != nil {
		b.pass(b.heartbeats[q] - b.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
		return
	}
	b.starts("the heartbeat of %s lapses", q.token)
	b.heartbeats[q] = b.now - 1
	if err := b.rdb.ZAdd(scriptCtx, b.keys[2], redis.Z{Score: float64(protocol.Heartbeats + b.heartbeats[q]), Member: "+" + q.token}).Err(); err != nil {
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
	b.end = b.now + 600_000
	b.compare()
	if rapid.IntRange(0, 2).Draw(b.r, "somebody heartbeats") > 0 {
		b.heartbeatOf(cmp.Or(q.keeper, keepers[0]), false)
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

// runToEnd checks that every waiter is granted the lock if all are alive and nobody renews. The lease of another
// library is not shortened, so it is released.
func (b *singleBench) runToEnd() {
	if b.owner != nil && b.owner.foreign {
		b.foreignerGoes(b.r)
	}
	for _, k := range keepers[:3] {
		b.listen(k, true)
	}
	for rounds := 20 + 7*len(b.queue); len(b.queue) > 0; rounds-- {
		if rounds == 0 {
			b.failf("%s still wait", singleTokens(b.waiters()))
		}
		for _, k := range keepers {
			list := slices.DeleteFunc(b.waiters(), func(q *singleReq) bool { return q.keeper != k })
			b.heartbeatFor(list, false, nil)
		}
		b.pass(5000)
	}
	b.reach("run to the end")
}

// replies compares the reply of a script.
func (b *singleBench) replies(want, got []int64) {
	b.r.Helper()
	if !slices.EqualFunc(got, want, b.alike) {
		b.failf("reply %v, want %v", got, want)
	}
}

// alike reports whether two numbers agree as far as the server's time is known: fences and places are µs.
func (b *singleBench) alike(got, want int64) bool {
	if got == want || b.mini != nil {
		return got == want
	}
	if min(got, want) > 1e15 {
		got, want = got/1000, want/1000
	}
	return min(got, want) > 64 && b.near(got, want) // smaller numbers are no times
}

// takes compares a number and adopts the server's.
func (b *singleBench) takes(want *int64, got int64, format string, args ...any) {
	b.r.Helper()
	if !b.alike(got, *want) {
		b.failf("%s: %d, want %d", fmt.Sprintf(format, args...), got, *want)
	}
	*want = got
}

// compare compares the server's data and messages with the model.
func (b *singleBench) compare() {
	b.r.Helper()
	pipe := b.rdb.Pipeline()
	pipe.Publish(scriptCtx, scriptMark, scriptMark)
	metadata := []string{"seq", "ticket", "tombstones"}
	meta := pipe.HMGet(scriptCtx, b.keys[1], metadata...)
	yield := pipe.HMGet(scriptCtx, b.keys[1], "yield")
	owner := pipe.MGet(scriptCtx, b.keys[0])
	queue := pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1)
	tombstones := pipe.ZRangeWithScores(scriptCtx, b.keys[3], 0, -1)
	var expiry [4]*redis.DurationCmd
	for i, k := range b.keys {
		expiry[i] = pipe.PTTL(scriptCtx, k)
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.failf("%v", err)
	}
	b.messages()

	for i, want := range []*int64{&b.seq, &b.ticket, &b.tombstonesUntil} {
		fact, got := metadata[i], int64(0)
		if text, ok := meta.Val()[i].(string); ok {
			got, _ = strconv.ParseInt(text, 10, 64)
		}
		if fact == "seq" {
			if (got < 0) != (b.stored < 0) {
				b.failf("the last fence is stored as %d, want %d", got, b.stored)
			}
			b.stored = got
		}
		got = max(got, -got)
		b.takes(want, got, "%s", fact)
	}
	var until, ms int64
	if text, ok := yield.Val()[0].(string); ok {
		_, _ = fmt.Sscan(text, &until, &ms)
	}
	b.takes(&b.freeUntil, until, "the key is left free until")
	b.takes(&b.freeFor, ms, "the key is left free for")
	if b.newFence && b.seq <= b.fence {
		b.failf("the fence %d after %d", b.seq, b.fence)
	}
	b.fence = max(b.fence, b.seq)

	var token any
	if b.owner != nil {
		token = b.owner.token
	} else {
		b.end = 0
	}
	if owner.Val()[0] != token {
		b.failf("%v holds it, want %v", owner.Val()[0], token)
	}
	for i, end := range []*int64{&b.end, &b.metaExpiry, &b.queueExpiry, &b.tombstonesExpiry} {
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
	waiting := b.waiters()
	waiters, lapses := b.split(queue.Val())
	if len(waiting) != len(waiters) {
		b.failf("%v wait, want%s", waiters, singleTokens(waiting))
	}
	for i, z := range waiters {
		if z.Member != waiting[i].token {
			b.failf("%v wait, want%s", waiters, singleTokens(waiting))
		}
		b.takes(&waiting[i].place, int64(z.Score), "the place of %s", z.Member)
		b.queue[waiting[i]] = waiting[i].place
	}
	for token, at := range lapses {
		q := byToken[token]
		until := b.heartbeats[q]
		b.takes(&until, at, "the heartbeat of %s", token)
		b.heartbeats[q] = until
	}
	if got, want := len(tombstones.Val()), len(b.tombstones); got != want {
		b.failf("tombstones %v, want %d", tombstones.Val(), want)
	}
	for _, z := range tombstones.Val() {
		q := byToken[z.Member.(string)]
		until := b.tombstones[q]
		b.takes(&until, int64(z.Score), "the tombstone of %s", z.Member)
		b.tombstones[q] = until
	}
}

// messages compares the messages of the step.
func (b *singleBench) messages() {
	b.r.Helper()
	var received []singleMessage
	for {
		x, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second)
		if err != nil {
			b.failf("%v", err)
		}
		m := x.(*redis.Message)
		if m.Channel == scriptMark {
			break
		}
		w := singleMessage{keeper: strings.TrimPrefix(m.Channel, scriptWake)}
		if n, err := fmt.Sscanf(m.Payload, "%d %d", &w.serial, &w.number); n != 2 {
			b.failf("message %q: %v", m.Payload, err)
		}
		received = append(received, w)
	}
	same := func(got, want singleMessage) bool {
		return got.keeper == want.keeper && got.serial == want.serial && (got.number < 0) == (want.number < 0) &&
			b.alike(max(got.number, -got.number), max(want.number, -want.number))
	}
	if !slices.EqualFunc(received, b.published, same) {
		b.failf("messages %v, want %v", received, b.published)
	}
}

func singleTokens(list []*singleReq) string {
	var b strings.Builder
	for _, q := range list {
		fmt.Fprintf(&b, " %s@%d", q.token, q.place)
	}
	return b.String()
}
