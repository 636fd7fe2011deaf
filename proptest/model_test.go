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

// modelReq is a request in a model. Times are the server's ms; 0 means none.
type modelReq struct {
	token        string
	keeper       string
	serial       int
	ttl          int64
	unnotifiable bool // it gets no notifications

	waits           bool
	away            bool  // it was removed from the queue and may rejoin
	place           int64 // in the queue, or its last one
	lapse           int64 // of its heartbeat
	end             int64 // of its lease
	told            int64 // the end of its lease as a reply to a heartbeat says it
	fence           int64
	tombstonedUntil int64 // unless the tombstone is known to be lost

	// Of an exclusive lock.
	foreign  bool  // of another library: its token has another format
	minFence int64 // of a redlock: the smallest fence that it accepts

	// Of a read-write lock.
	use      byte      // r, w, u, d
	streak   int       // of a writer: the MaxWriterStreak; 0: unlimited
	retained bool      // its process retains the read lease
	marked   bool      // as a lease that is retained and was not recalled
	origin   *modelReq // of an upgrade or a downgrade
	longer   int64     // the ttl in ms that its lease was extended to, if above its own

	// Of a semaphore.
	limits  permitLimits // known to its caller
	permits int64
	holds   bool  // until its lease expires
	byClock bool  // they return by the clock
	taken   int64 // when it took permits that return by the clock, until they are known to have returned
}

func (q *modelReq) claimTTL() int64 { return min(q.ttl, heartbeatTimeout.Milliseconds()) }

// model is what the models of all primitives have.
type model struct {
	now         int64
	all         []*modelReq
	subscribed  map[string]bool     // keepers with a subscription
	given       []*modelReq         // granted in this step, in order
	asks        map[*modelReq]int64 // requests of this step, and the ttl to grant them
	asked       map[*modelReq]bool  // those that learn from the reply that they are granted
	unreachable bool                // a waiter could not be notified
	notified    map[string]bool     // keepers notified to retry because a heartbeat had lapsed
	recalled    []*modelReq         // in this step

	tombstonesUntil int64 // until when there are tombstones
	reach           func(string)
}

func (m *model) begin(now int64) {
	m.now, m.given, m.unreachable, m.recalled = now, nil, false, nil
	m.asks, m.asked, m.notified = map[*modelReq]int64{}, map[*modelReq]bool{}, map[string]bool{}
	for _, q := range m.all {
		if q.end != 0 && q.end <= now {
			q.end = 0
			m.reach("a lease expires")
		}
	}
}

// those returns the requests that satisfy is.
func (m *model) those(is func(*modelReq) bool) []*modelReq {
	var list []*modelReq
	for _, q := range m.all {
		if is(q) {
			list = append(list, q)
		}
	}
	return list
}

func (m *model) leased(q *modelReq) bool { return q.end > m.now }

// tombstoned reports whether the request is refused. A tombstone may outlive its time beside later ones.
func (m *model) tombstoned(q *modelReq) bool {
	return m.tombstonesUntil > m.now && q.tombstonedUntil != 0
}

// bury writes a tombstone.
func (m *model) bury(q *modelReq, ms int64) {
	q.tombstonedUntil = m.now + ms
	m.tombstonesUntil = max(m.tombstonesUntil, q.tombstonedUntil)
}

func waits(q *modelReq) bool { return q.waits }

// queue returns the waiters in order.
func (m *model) queue() []*modelReq {
	list := m.those(waits)
	slices.SortFunc(list, func(a, b *modelReq) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.token, b.token))
	})
	return list
}

// skip removes a waiter, which may rejoin.
func (m *model) skip(q *modelReq, why string) {
	q.waits, q.away = false, true
	m.reach("skipped: " + why)
}

// modelled is a primitive: its model, and what is special in comparing its scripts with it.
type modelled interface {
	begin(now int64)
	has(q *modelReq) bool // whether it has an unexpired grant
	ends() int64          // the ms until the head may be granted its request, as far as known
	// acquire models the script acquire, or the fast script if that has decided. within is the maximum wait in ms, 0 if unknown;
	// place that of a newcomer. It returns the code of the reply, the ms for which the request is refused, and whether it has changed
	// the limits.
	acquire(q *modelReq, waits bool, within, place int64, fast bool) (code, left int64, changed bool)
	release(q *modelReq, tombstone int64, unused int, yield int64) (code int64)
	renew(q *modelReq, ms int64, exact bool, keys int) (code int64)
	beats()                                        // begins a heartbeat
	admitsBeats()                                  // grants what waiters may have, at its end
	reports(q *modelReq, back bool) (code int64)   // what a heartbeat reports of a request that does not wait
	mayBeGone(q *modelReq) bool                    // whether the waiter may have been removed before its turn
	mayRepeat(q *modelReq) bool                    // whether it may ask again
	evalFast(q *modelReq, waits bool) []int64      // runs the fast script; nil if it decides nothing
	eval(q *modelReq, waits bool, w int64) []int64 // runs the general script
	policyArg() string                             // of the present callers
	arrives() *modelReq                            // draws a new request
	decodes(*stored)                               // what is stored, before it is compared
	compares(*stored)                              // the rest of it
}

// noReport is what a heartbeat reports of a request that is unknown, or rejoins.
const noReport = -1

// stored is what the server has stored.
type stored struct {
	owner  string // of an exclusive lock
	holder map[string]int64
	meta   map[string]string
	expiry [4]int64 // ms; -2: there is no such key
}

// modelBench runs the scripts of a primitive beside its model.
type modelBench struct {
	*scriptBench
	m      *model
	kind   modelled
	set    *lua.Set
	single bool          // an exclusive lock: one string, whose model is exact
	fence  int64         // the largest so far
	seq    int64         // the largest in the metadata
	high   map[int]int64 // the largest place so far, by the part of the queue: upgrades, writers, others
}

// models are the primitives whose scripts have a model of their own.
var models = map[*lua.Set]func(*modelBench) modelled{
	lua.Mutex: newSingleBench, lua.Fair: newSingleBench, lua.Redlock: newSingleBench, lua.RWLock: newRWBench, lua.Semaphore: newPermitBench,
}

// reachedByAll is what each model reaches.
var reachedByAll = []string{
	"granted by a message", "granted by a reply", "a waiter without notifications is granted",
	"a try is refused", "a tombstoned request", "a duplicate of a request", "a lease expires",
	"skipped: its heartbeat has lapsed", "skipped: not subscribed", "skipped: not subscribed for the notification of the head",
	"the head is notified", "a lapsed waiter is notified", "rejoined the queue", "held", "unknown",
	"left", "released", "nothing to release", "renewed", "shortened", "run to the end",
}

// matchesModel checks that for all operations on a primitive, in any order, while time passes, the scripts reply, grant, notify and
// store what the model does; that fences rise with each lease; and that no waiter waits forever if all are alive.
func matchesModel(t *testing.T, set *lua.Set, part float64, reach ...string) {
	rdb, mini := miniServer(t)
	run := newRun(t)
	run.explore(part, func(r *rapid.T) { modelSequence(r, run, set, rdb, mini) }, append(reach, reachedByAll...)...)
}

// matchesModelOnRealServer checks a part of the same on a real server, whose clock cannot be set.
func matchesModelOnRealServer(t *testing.T, set *lua.Set, part float64) {
	rdb := redistest.Start(t).Client()
	checkPart(t, part, func(r *rapid.T) { modelSequence(r, &run{tally: map[string]int{}}, set, rdb, nil) })
}

func modelSequence(r *rapid.T, u *run, set *lua.Set, rdb *redis.Client, mini *miniredis.Miniredis) {
	b := &modelBench{scriptBench: newScriptBench(r, rdb, mini, set.KeyKind), set: set, high: map[int]int64{}}
	defer b.close()
	b.m = &model{subscribed: b.listening, reach: func(what string) { u.tally[what]++ }}
	b.onHandOn = func() { b.m.reach("handed on by the fast script") }
	b.state = func() string {
		var held strings.Builder
		for _, q := range b.m.those(b.kind.has) {
			fmt.Fprintf(&held, " %s until %d", q.token, q.end)
		}
		return fmt.Sprintf("%s hold it,%s wait; %v", &held, tokensOf(b.m.queue()), b.kind)
	}
	b.kind = models[set](b)
	commands := map[string]func(*rapid.T){
		"":                               func(*rapid.T) {},
		"a waiter arrives":               func(*rapid.T) { b.asks(b.kind.arrives(), true, 0) },
		"several waiters arrive":         b.severalArrive,
		"several more waiters arrive":    b.severalArrive,
		"a try":                          func(*rapid.T) { b.asks(b.kind.arrives(), false, 0) },
		"another try":                    func(*rapid.T) { b.asks(b.kind.arrives(), false, 0) },
		"a duplicate arrives":            b.duplicateArrives,
		"a holder releases":              b.holderReleases,
		"another releases":               b.holderReleases,
		"all holders release":            b.allRelease,
		"a waiter leaves":                func(*rapid.T) { b.releases(b.some("waiter", waits), 1) },
		"an unknown request is released": b.strangerLeaves,
		"a lease is renewed":             b.renewsSome,
		"a keeper heartbeats":            b.heartbeats,
		"another keeper heartbeats":      b.heartbeats,
		"waiters rejoin":                 b.rejoins,
		"a subscription changes":         b.toggleSubscription,
	}
	if mini != nil {
		commands["time passes"] = b.timePasses
		commands["something ends"] = b.somethingEnds
	}
	maps.Copy(commands, b.kind.(interface {
		commands() map[string]func(*rapid.T)
	}).commands())
	if permits, is := b.kind.(*permitBench); is && rapid.Bool().Draw(r, "tries first") {
		permits.severalTry(r)
	}
	b.severalArrive(r)
	r.Repeat(commands)
	if mini != nil && rapid.IntRange(0, 7).Draw(r, "run to the end") == 0 {
		b.runToEnd()
	}
}

func tokensOf(list []*modelReq) string {
	var b strings.Builder
	for _, q := range list {
		fmt.Fprintf(&b, " %s@%d", q.token, q.place)
	}
	return b.String()
}

func yes(is bool) int {
	if is {
		return 1
	}
	return 0
}

// starts begins a step at the server's current time.
func (b *modelBench) starts(format string, args ...any) {
	b.r.Helper()
	b.kind.begin(b.time(format, args...))
}

// newReq draws a request, whose token ends in what flags returns.
func (b *modelBench) newReq(flags func(*modelReq) string) *modelReq {
	q := &modelReq{serial: len(b.m.all) + 1}
	q.keeper = keepers[rapid.SampledFrom([]int{0, 1, 2, 0, 1, 2, 3}).Draw(b.r, "keeper")]
	q.unnotifiable = q.keeper == "mute"
	q.ttl = rapid.SampledFrom([]int64{30000, 2000, 6000}).Draw(b.r, "ttl")
	q.token = fmt.Sprintf("%s:%d:%d.%d", q.keeper, q.serial, q.ttl, q.claimTTL()) + flags(q)
	b.m.all = append(b.m.all, q)
	return q
}

// some draws a request that satisfies is.
func (b *modelBench) some(what string, is func(*modelReq) bool) *modelReq {
	return draw(b.r, b.m.those(is), what)
}

// class returns the part of the queue that a request belongs to.
func (q *modelReq) class() int { return strings.IndexByte("uw", q.use) & 3 }

// leastPlace is the least place in each part of the queue, but for a downgrade and permits those of writers.
func (b *modelBench) leastPlace(class int) int64 {
	if class == 3 && b.set == lua.RWLock {
		return 5e15
	}
	return []int64{1, 1e15, 0, 1e15}[class]
}

// behind returns a place behind all others of the request's part of the queue, until the server has assigned one. Upgrades of the same
// millisecond share a place.
func (b *modelBench) behind(q *modelReq) int64 {
	if q.class() == 0 && b.mini != nil {
		return max(b.high[0], b.m.now)
	}
	return max(b.high[q.class()], b.leastPlace(q.class())) + 1
}

// queuedAt adopts the place that the server assigned to a newcomer, behind all others of its part.
func (b *modelBench) queuedAt(q *modelReq, place int64) {
	b.r.Helper()
	class := q.class()
	if high := b.high[class]; place < high || place == high && class > 0 {
		b.failf("place %d after %d", place, high)
	}
	if low := b.leastPlace(class); place < low || place > low*6 && class > 0 {
		b.failf("place %d of %s", place, q.token)
	}
	if rw, is := b.kind.(*rwBench); is && rw.upTo == q.place {
		rw.upTo = place
	}
	if b.single && b.mini != nil && place != q.place {
		b.failf("place %d, want %d", place, q.place)
	}
	q.place, b.high[class] = place, place
}

func (b *modelBench) severalArrive(*rapid.T) {
	for range rapid.IntRange(2, 5).Draw(b.r, "how many") {
		b.asks(b.kind.arrives(), true, 0)
	}
}

// asks runs acquire: sometimes the fast script, and the general one unless that has granted the request, or refused a try.
func (b *modelBench) asks(q *modelReq, waits bool, within int64) {
	b.r.Helper()
	of := ""
	if q.origin != nil {
		of = " in place of " + q.origin.token
	}
	b.starts("acquire %s%s, waits %v within %d", q.token, of, waits, within)
	newcomer, had, others := !q.waits, b.kind.has(q), len(b.m.queue()) > 0
	var got []int64
	if rapid.Bool().Draw(b.r, "fast") {
		got = b.kind.evalFast(q, waits)
		switch {
		case got == nil:
			b.m.reach("left to the general script")
		case got[0] == lua.Granted:
			b.m.reach("granted by the fast script")
		default:
			b.m.reach("refused by the fast script")
		}
		if waits && got != nil && got[0] != lua.Granted {
			got = nil
		}
	}
	code, left, changed := b.kind.acquire(q, waits, within, b.behind(q), got != nil)
	if got == nil {
		got = b.kind.eval(q, waits, within)
	}
	changes := int64(2 * yes(changed))
	if got[0] != code {
		b.failf("reply %v, want code %d", got, code)
	}
	permits, _ := b.kind.(*permitBench)
	if permits != nil && permits.allowed != nil {
		permits.remains()
	}
	if changed {
		b.m.reach("a caller changes the limits")
	}
	switch code {
	case lua.Granted:
		if short := got[2] == 0; !short && (got[3]-got[2] != q.ttl || !b.near(got[2], b.m.now)) || got[4] != changes {
			b.failf("reply %v, want a lease of %d ms, change %d", got, q.ttl, changes)
		}
		if again := had && !slices.Contains(b.m.given, q); again || b.single {
			if got[1] != q.fence && !(b.single && b.alike(got[1], q.fence)) {
				b.failf("reply %v, want the fence %d", got, q.fence)
			}
			if again {
				b.m.reach("a duplicate of a request")
			}
		} else if b.m.reach("granted at once: " + b.sort(q)); others && !waits && q.origin == nil {
			b.m.reach("a try is granted past waiters that are gone")
		}
		q.fence = got[1]
	case lua.Waiting:
		if newcomer {
			b.queuedAt(q, got[3])
		} else if got[3] != q.place {
			b.failf("it moved from %d to %d", q.place, got[3])
		}
		if within > 0 {
			b.m.reach("it can wait so long")
		}
	case lua.Refused:
		// Behind more than fifty waiters, the script estimates it from below.
		estimated := q.byClock && len(b.m.queue()) > 50 && got[2] > 0 && got[2] < left
		if !b.near(got[2], left) && !estimated || got[3] != changes {
			b.failf("reply %v, want %d ms, change %d", got, left, changes)
		}
		switch {
		case q.origin != nil:
			b.m.reach("a conversion is refused")
		case waits:
			b.m.reach("it cannot wait so long")
		case q.byClock && left > 0:
			b.m.reach("a try is refused until a time")
		default:
			b.m.reach("a try is refused")
		}
	case lua.Conflict:
		b.m.reach("a conflict")
	case lua.Tombstoned:
		b.m.reach("a tombstoned request")
	case lua.AboveLimit:
		b.m.reach("more than the limit is asked for")
	}
	b.compare()
	if code == lua.Waiting {
		line := b.m.queue()
		rank, ask := slices.Index(line, q), b.kind.ends()
		if rank > 2 {
			ask = 0
		}
		if !b.near(got[1], b.m.now) || got[4] != int64(rank) || !b.near(got[5], ask) || got[6] != changes || got[2] < b.seq {
			b.failf("reply %v, want rank %d, %d ms, change %d", got, rank, ask, changes)
		}
		if line[0].class() != 3 && q.class() == 3 {
			b.m.reach("a writer and readers wait")
		}
		if permits != nil && permits.fitsNow(q) {
			b.m.reach("a light one waits behind a heavy one")
		}
	}
}

// sort returns what a lease is for: h, c or hc of permits, r, w, u or d.
func (b *modelBench) sort(q *modelReq) string {
	if q.use != 0 {
		return string(q.use)
	}
	return q.limits.kind()
}

// duplicateArrives repeats a request that was granted, waits or is tombstoned, and sometimes one that has ended. No read lease that was
// converted comes back.
func (b *modelBench) duplicateArrives(*rapid.T) {
	late := rapid.IntRange(0, 3).Draw(b.r, "late") == 0 && b.set != lua.RWLock
	q := b.some("request", func(q *modelReq) bool {
		return b.kind.mayRepeat(q) && (late || b.kind.has(q) || q.waits || q.tombstonedUntil > b.m.now)
	})
	b.asks(q, !b.single || rapid.IntRange(0, 3).Draw(b.r, "try") > 0, 0)
}

// releases runs release.
func (b *modelBench) releases(q *modelReq, unused int) {
	yield, tombstone := int64(0), rapid.SampledFrom([]int64{0, 0, 60000}).Draw(b.r, "tombstone ms")
	if b.set == lua.Mutex && unused == 0 {
		if yield = rapid.SampledFrom([]int64{0, 2000, 20_000, 500}).Draw(b.r, "yield"); b.mini == nil {
			yield *= 1000 // so that it does not end meanwhile
		}
	}
	b.released(q, tombstone, unused, yield)
}

func (b *modelBench) released(q *modelReq, tombstone int64, unused int, yield int64) {
	b.starts("%s is released, tombstone %d, unused %d, yield %d", q.token, tombstone, unused, yield)
	took := q.taken != 0
	code := b.kind.release(q, tombstone, unused, yield)
	var got []int64
	if yield > 0 {
		got = b.scriptBench.eval(b.set.Release, protocol.ReleaseArgs(nil, q.token, scriptSettings, tombstone, unused, yield))
	} else {
		got = b.evalRelease(b.set, q.limits.of(b.set), q.token, tombstone, unused)
	}
	if len(got) != 2 || got[0] != code || got[1] != 0 && (got[1] != 2 || len(b.m.queue()) > 0) {
		b.failf("reply %v, want code %d", got, code)
	}
	b.m.reach(map[int64]string{lua.Granted: "released", lua.Left: "left", lua.Refused: "nothing to release"}[code])
	if unused > 0 && took {
		b.m.reach("released unused")
	}
	b.compare()
}

func (b *modelBench) holderReleases(*rapid.T) {
	b.releases(b.some("holder", b.m.leased), rapid.IntRange(0, 2).Draw(b.r, "unused")*yes(b.single))
}

func (b *modelBench) allRelease(*rapid.T) {
	for _, q := range b.m.those(b.m.leased) {
		b.releases(q, 0)
	}
}

func (b *modelBench) strangerLeaves(*rapid.T) {
	q := b.some("stranger", func(q *modelReq) bool { return !q.waits && !b.m.leased(q) })
	b.releases(q, rapid.IntRange(0, 1).Draw(b.r, "unused"))
}

func (b *modelBench) renewsSome(*rapid.T) {
	odd := rapid.IntRange(0, 5).Draw(b.r, "odd") == 0
	b.renews(b.some("lease", func(q *modelReq) bool { return odd || b.m.leased(q) }))
}

// renews runs renew.
func (b *modelBench) renews(q *modelReq) {
	ms, exact, keys := q.ttl, 0, rapid.IntRange(1, 2).Draw(b.r, "keys")
	if q.foreign || rapid.Bool().Draw(b.r, "extended") {
		ms, exact, keys = rapid.SampledFrom([]int64{1000, 2500, 60000}).Draw(b.r, "ms"), 1, 4
		if b.single {
			keys = rapid.SampledFrom([]int{2, 4}).Draw(b.r, "keys of an extension")
		}
	}
	b.renewed(q, ms, exact, keys)
}

func (b *modelBench) renewed(q *modelReq, ms int64, exact, keys int) {
	b.starts("%s is renewed for %d ms, exact %d, with %d keys", q.token, ms, exact, keys)
	before, marked := q.end, q.marked
	code := b.kind.renew(q, ms, exact == 1, keys)
	var ask []any
	if q.retained {
		ask = []any{1}
	}
	got := b.evalRenew(b.set, keys, q.token, ms, exact, ask...)
	if got[0] != code {
		b.failf("reply %v, want code %d", got, code)
	}
	if code != lua.Granted {
		b.m.reach("not renewed")
		b.compare()
		return
	}
	switch {
	case !q.retained:
		if len(got) != 2 {
			b.failf("reply %v to a lease that is not retained", got)
		}
	case len(got) != 3 || got[2] >= 0 && marked != (got[2] == 0):
		b.failf("reply %v; was it recalled before? %v", got, !marked)
	case !marked:
		b.m.reach("a renewal replies that the lease was recalled")
	}
	if fence := q.fence * int64(min(keys, 2)-1); got[1] != fence && !(b.single && b.alike(got[1], fence)) {
		b.failf("reply %v, want fence %d", got, fence)
	}
	if b.m.reach("renewed"); q.foreign {
		b.m.reach("a foreign lease is renewed")
	}
	if q.end < before {
		b.m.reach("shortened")
	}
	b.compare()
}

// heartbeats runs the heartbeat of some of a keeper's requests, seldom with those that have ended.
func (b *modelBench) heartbeats(*rapid.T) {
	b.heartbeatsOf(rapid.SampledFrom(keepers).Draw(b.r, "keeper"))
}

func (b *modelBench) heartbeatsOf(k string) {
	b.heartbeatFor(b.m.those(func(q *modelReq) bool {
		lives := q.waits || q.away || b.kind.has(q) || q.taken != 0 || b.single && q.tombstonedUntil != 0
		if !lives && !b.single {
			return false
		}
		return q.keeper == k && (rapid.IntRange(0, 9).Draw(b.r, "heartbeats") < 1+7*yes(lives))
	}), false, nil)
}

// rejoins is the heartbeat of a keeper that has learned that some of its waiters are unknown: they were skipped, or their leases have
// expired.
func (b *modelBench) rejoins(*rapid.T) {
	odd := rapid.IntRange(0, 3).Draw(b.r, "odd") == 0
	back := func(q *modelReq) bool { return b.kind.mayRepeat(q) && (q.away || odd && q.place != 0 && q.use == 0) }
	k := b.some("who", back).keeper
	list := b.m.those(func(q *modelReq) bool {
		return q.keeper == k && (back(q) || q.waits || q.tombstonedUntil > b.m.now && b.kind.mayRepeat(q)) && rapid.IntRange(0, 4).Draw(b.r, "comes") > 0
	})
	var places []int64
	for _, q := range list {
		places = append(places, q.place*int64(rapid.SampledFrom([]int{1, 1, 0}).Draw(b.r, "keeps its place")))
	}
	b.heartbeatFor(list, true, places)
}

// heartbeat models the script heartbeat. places are those of rejoining waiters. It returns the changes by token.
func (b *modelBench) heartbeat(list []*modelReq, back bool, places []int64) map[string][]int64 {
	changes := map[string][]int64{}
	report := func(q *modelReq, code int64) { changes[q.token] = append(changes[q.token], code) }
	for i, q := range list {
		code := int64(noReport)
		if !q.waits {
			code = b.kind.reports(q, back)
		}
		switch {
		case q.waits:
		case code != noReport:
			report(q, code)
			continue
		case !back:
			report(q, lua.Unknown)
			continue
		default:
			single, is := b.kind.(*singleBench)
			switch {
			case places[i] != 0:
				q.place = places[i]
			case is:
				single.enqueue(q)
			default:
				q.place = b.behind(q) + int64(i*min(q.class(), 1))
			}
			q.waits, q.away = true, false
			report(q, lua.Waiting)
		}
		q.lapse = b.m.now + heartbeatTimeout.Milliseconds()
		b.m.asks[q] = q.claimTTL()
	}
	lapsed := b.m.those(func(q *modelReq) bool { return q.waits && q.lapse <= b.m.now })
	slices.SortFunc(lapsed, func(q, o *modelReq) int {
		return cmp.Or(cmp.Compare(q.lapse, o.lapse), cmp.Compare(q.token, o.token))
	})
	for _, q := range lapsed {
		if single, is := b.kind.(*singleBench); is {
			single.lapses(q)
			continue
		}
		b.m.skip(q, "its heartbeat has lapsed")
	}
	b.kind.admitsBeats()
	for q := range b.m.asked {
		report(q, lua.Granted)
	}
	return changes
}

func (b *modelBench) heartbeatFor(list []*modelReq, back bool, places []int64) {
	b.r.Helper()
	b.starts("heartbeats of %s, rejoin %v", tokensOf(list), back)
	b.kind.beats()
	args := heartbeatArgs(yes(back), b.kind.policyArg())
	for i, q := range list {
		if args = append(args, q.token); back {
			args = append(args, places[i])
		}
	}
	changes := b.heartbeat(list, back, places)
	got := b.scriptBench.eval(b.set.Heartbeat, args)
	if got[0] != lua.Waiting || !b.near(got[1], b.m.now) || got[4] != 0 || (len(got)-7)%4 != 0 {
		b.failf("reply %v", got)
	}
	received := map[string][]int64{}
	for rest := got[7:]; len(rest) > 0; rest = rest[4:] {
		q := list[rest[0]-1]
		received[q.token] = append(received[q.token], rest[1])
		switch rest[1] {
		case lua.Waiting:
			if i := rest[0] - 1; places[i] != 0 && rest[2] != places[i] {
				b.failf("reply %v: it had the place %d", got, places[i])
			} else if places[i] == 0 {
				b.queuedAt(q, rest[2])
			}
			b.m.reach("rejoined the queue")
			if b.m.asked[q] {
				b.m.reach("rejoined the queue and granted")
			}
		case lua.Granted, lua.Held:
			known := b.single && b.alike(rest[2], q.fence) || rest[2] == q.fence
			if fresh := rest[1] == lua.Granted && !b.single; fresh && rest[3]-got[1] != q.claimTTL() {
				b.failf("reply %v, want an unconfirmed lease of %d ms", got, q.claimTTL())
			} else if !fresh && !(known && b.near(rest[3], q.told)) {
				b.failf("reply %v of %s, want fence %d and end %d", got, q.token, q.fence, q.told)
			}
			q.fence = rest[2]
			if rest[1] == lua.Held {
				b.m.reach("held")
			} else {
				b.m.reach("granted by a reply")
				b.m.reach("granted by a reply: " + b.sort(q))
			}
		case lua.Unknown:
			b.m.reach("unknown")
		}
	}
	if permits, is := b.kind.(*permitBench); is {
		permits.alsoIneligible(list, received, changes)
	}
	if fmt.Sprint(received) != fmt.Sprint(changes) {
		b.failf("reply %v reports %v, want %v", got, received, changes)
	}
	b.compare()

	// The first of them that waits.
	line := b.m.queue()
	first := slices.IndexFunc(line, func(q *modelReq) bool { return slices.Contains(list, q) })
	if got[5] == 0 {
		lost := func(q *modelReq) bool { return b.set == lua.RWLock && q.away } // that was the first of them
		if first >= 0 && !slices.ContainsFunc(list, lost) {
			b.failf("reply %v, the first is %s", got, line[first].token)
		}
	} else if q := list[got[5]-1]; first < 0 || line[first].place != q.place || int(got[6]) >= len(line) || line[got[6]] != q {
		b.failf("reply %v, the queue is %s", got, tokensOf(line))
	} else if first < 3 && !b.near(got[3], b.kind.ends()) || first > 2 && got[3] != 0 {
		b.failf("reply %v, want %d ms", got, b.kind.ends())
	}
}

// toggleSubscription subscribes or unsubscribes a keeper.
func (b *modelBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.listening[k])
}

func (b *modelBench) timePasses(*rapid.T) {
	list := []int64{1, 50, 500, 1999, 1, 50, 500, 1999, 3000, 6000, 31000, 90000}
	if permits, is := b.kind.(*permitBench); is && permits.callers.per > 0 {
		list = append(list, permits.callers.per, permits.callers.per+1, 3*permits.callers.per)
	}
	b.pass(rapid.SampledFrom(list).Draw(b.r, "ms"))
}

// somethingEnds advances time until a lease or a heartbeat ends, or what else the primitive has, or a millisecond less.
func (b *modelBench) somethingEnds(*rapid.T) {
	var list []int64
	if permits, is := b.kind.(*permitBench); is {
		list = permits.returns()
	}
	for _, q := range b.m.all {
		list = append(list, q.end, q.lapse*int64(yes(q.waits)))
	}
	list = slices.DeleteFunc(list, func(end int64) bool { return end <= b.m.now })
	b.pass(draw(b.r, list, "end") - b.m.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
}

func (b *modelBench) pass(ms int64) {
	b.starts("%d ms pass", ms)
	b.kind.begin(b.m.now + ms)
	b.mini.SetTime(time.UnixMilli(b.m.now))
	b.compare()
}

// runToEnd checks that every waiter is granted its request, or learns that it never can be, if all are alive and nobody renews. In
// five seconds a lease without renewal ends, or a window. There are longer ones: those of some requests, and that of another library.
func (b *modelBench) runToEnd() {
	longest := int64(0)
	for _, q := range b.m.all {
		longest = max(longest, q.end-b.m.now)
	}
	most := 20 + 7*len(b.m.all) + int(longest/5000)
	for _, k := range keepers[:3] {
		b.listen(k, true)
	}
	for rounds := 0; ; rounds++ {
		for _, k := range keepers {
			list := b.m.those(func(q *modelReq) bool { return q.keeper == k && (q.waits || q.away && b.kind.mayRepeat(q)) })
			var places []int64
			for _, q := range list {
				places = append(places, q.place)
			}
			if len(list) > 0 {
				b.heartbeatFor(list, true, places)
			}
		}
		line := b.m.queue()
		if len(line) == 0 {
			b.m.reach("run to the end")
			return
		}
		if rounds > most {
			b.failf("%s still wait", tokensOf(line))
		}
		next := int64(5000)
		if ms := b.kind.ends(); ms > 0 {
			next = min(next, ms)
		}
		b.pass(next)
	}
}

// alike reports whether two numbers agree as far as the server's time is known: fences and places are µs.
func (b *modelBench) alike(got, want int64) bool {
	if got == want || b.mini != nil {
		return got == want
	}
	if min(got, want) > 1e15 {
		got, want = got/1000, want/1000
	}
	return min(got, want) > 64 && b.near(got, want) // smaller numbers are no times
}

// takes compares a number and adopts the server's.
func (b *modelBench) takes(want *int64, got int64, format string, args ...any) {
	b.r.Helper()
	if !b.alike(got, *want) {
		b.failf("%s: %d, want %d", fmt.Sprintf(format, args...), got, *want)
	}
	*want = got
}

// compare compares the server's data and messages with the model.
func (b *modelBench) compare() {
	b.r.Helper()
	pipe := b.rdb.Pipeline()
	pipe.Publish(scriptCtx, scriptMark, scriptMark)
	owner, holders := pipe.MGet(scriptCtx, b.keys[0]), (*redis.ZSliceCmd)(nil)
	if !b.single {
		holders = pipe.ZRangeWithScores(scriptCtx, b.keys[0], 0, -1)
	}
	meta := pipe.HGetAll(scriptCtx, b.keys[1])
	queue := pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1)
	tombstones := pipe.ZRangeWithScores(scriptCtx, b.keys[3], 0, -1)
	var expiry [4]*redis.DurationCmd
	for i, k := range b.keys {
		expiry[i] = pipe.PTTL(scriptCtx, k)
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.failf("%v", err)
	}
	s := &stored{holder: map[string]int64{}, meta: meta.Val()}
	s.owner, _ = owner.Val()[0].(string)
	if holders != nil {
		for _, z := range holders.Val() {
			s.holder[z.Member.(string)] = int64(z.Score)
		}
	}
	for i, d := range expiry {
		if s.expiry[i] = d.Val().Milliseconds(); d.Val() == -2 {
			s.expiry[i] = -2
		} else if d.Val() <= 0 {
			b.failf("%s does not expire: %v", b.keys[i], d.Val())
		}
	}
	b.kind.decodes(s)
	b.queueMatches(queue.Val())
	b.messages(s)
	if !b.single {
		b.leasesMatch(s)
	}
	until := map[string]int64{}
	for _, z := range tombstones.Val() {
		until[z.Member.(string)] = int64(z.Score)
	}
	for _, q := range b.m.all {
		switch until := until[q.token]; {
		case until == 0 && q.tombstonedUntil > b.m.now:
			b.failf("%s has no tombstone, want until %d", q.token, q.tombstonedUntil)
		case until != 0 && !b.near(until, q.tombstonedUntil):
			b.failf("%s is tombstoned until %d, want %d", q.token, until, q.tombstonedUntil)
		default:
			q.tombstonedUntil = until
		}
	}
	b.kind.compares(s)
}

// queueMatches compares the queue and the heartbeats.
func (b *modelBench) queueMatches(queue []redis.Z) {
	b.r.Helper()
	waiters, lapses := b.split(queue)
	at := map[string]int64{}
	for _, z := range waiters {
		at[z.Member.(string)] = int64(z.Score)
	}
	for _, q := range b.m.queue() {
		switch place, waits := at[q.token]; {
		case waits && (place != q.place || !b.near(lapses[q.token], q.lapse)):
			b.failf("%s is at place %d until %d, want %d until %d", q.token, place, lapses[q.token], q.place, q.lapse)
		case waits:
			q.lapse = lapses[q.token]
		case !b.kind.mayBeGone(q):
			b.failf("%s has left the queue", q.token)
		default:
			b.m.skip(q, "not subscribed for the notification of the head")
		}
		delete(at, q.token)
	}
	if len(at) > 0 {
		b.failf("%v wait, too", at)
	}
}

// message is a message to a keeper: a fence, the negative number of ms after which to retry, or a recall.
type message struct {
	keeper string
	serial int
	number int64
}

const recallNumber = math.MaxInt64

// receive returns the messages of the step, and how many of them there were to each keeper with a fence at their beginning.
func (b *modelBench) receive() (list []message, grants map[string]int) {
	b.r.Helper()
	grants = map[string]int{}
	for {
		x, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second)
		if err != nil {
			b.failf("%v", err)
		}
		m := x.(*redis.Message)
		if m.Channel == scriptMark {
			return list, grants
		}
		keeper, field := strings.TrimPrefix(m.Channel, scriptWake), strings.Fields(m.Payload)
		for i := 0; i+1 < len(field); i += 2 {
			w := message{keeper: keeper, number: recallNumber}
			w.serial, _ = strconv.Atoi(field[i])
			if field[i+1] != "recall" {
				w.number, _ = strconv.ParseInt(field[i+1], 10, 64)
			}
			if w.number == 0 || w.serial < 1 || w.serial > len(b.m.all) || b.m.all[w.serial-1].keeper != keeper {
				b.failf("message %q to %s", m.Payload, keeper)
			}
			list = append(list, w)
			grants[keeper] += yes(i == 0 && w.number > 0 && w.number != recallNumber)
		}
	}
}

// messages compares the messages of the step.
func (b *modelBench) messages(s *stored) {
	b.r.Helper()
	received, count := b.receive()
	if single, is := b.kind.(*singleBench); is {
		single.published(received)
		return
	}
	got, want := map[string][]*modelReq{}, map[string][]*modelReq{}
	recalls := map[*modelReq]int{}
	for _, w := range received {
		q := b.m.all[w.serial-1]
		switch {
		case w.number == recallNumber:
			if recalls[q]++; slices.Contains(b.m.given, q) && !slices.Contains(got[w.keeper], q) {
				b.m.reach("recalled before the message about its grant")
			}
		case w.number < 0:
			b.headNotified(q, -w.number)
		default:
			q.fence = w.number
			got[w.keeper] = append(got[w.keeper], q)
		}
	}
	for _, q := range b.m.recalled {
		if b.listening[q.keeper] {
			recalls[q]--
			b.m.reach("a recall is received")
		}
	}
	for q, n := range recalls {
		if n != 0 {
			b.failf("%d recalls of %s too many", n, q.token)
		}
	}
	silent := 0
	for _, q := range b.m.given {
		switch {
		case b.m.asked[q]:
			silent++
		case q.unnotifiable:
			q.fence = s.holder["#"+q.token]
			b.m.reach("a waiter without notifications is granted")
		default:
			want[q.keeper] = append(want[q.keeper], q)
			b.m.reach("granted by a message")
			b.m.reach("granted by a message: " + b.sort(q))
			if q.retained {
				b.m.reach("a retained lease is granted by a message")
			}
			if line := b.m.queue(); q.use == 'r' && len(line) > 0 && line[0].use == 'w' && line[0].place+rwFurther < q.place {
				b.m.reach("readers pass a writer")
			}
		}
	}
	if len(b.m.given)-silent > 1 {
		b.m.reach("several are admitted together")
	}
	for _, k := range keepers {
		if !slices.Equal(got[k], want[k]) {
			b.failf("%s was notified of%s, want%s", k, tokensOf(got[k]), tokensOf(want[k]))
		}
		if count[k] > 1 && !b.m.unreachable {
			b.failf("%s got %d messages", k, count[k])
		}
	}
}

// headNotified checks the notification of a waiter to retry after ms.
func (b *modelBench) headNotified(q *modelReq, ms int64) {
	b.r.Helper()
	permits, is := b.kind.(*permitBench)
	// A request above the limit learns it when it asks, however soon: at once if it was the head when the limit
	// changed, or when permits are free if others before it were not subscribed.
	if is && permits.rules != nil && q.above(*permits.rules) {
		return
	}
	if !b.m.notified[q.keeper] && ms%10 == 1 && q.lapse > 0 && q.lapse <= b.m.now {
		b.m.notified[q.keeper] = true
		b.m.reach("a lapsed waiter is notified")
		return
	}
	if line := b.m.queue(); len(line) == 0 || line[0] != q || !b.near(ms, b.kind.ends()) {
		b.failf("%s was notified to retry after %d ms, want%s and %d", q.token, ms, tokensOf(line), b.kind.ends())
	}
	b.m.reach("the head is notified")
	if is && permits.minWait(q) > 0 {
		b.m.reach("the head is notified of the clock")
	}
}

// leasesMatch compares the leases and their fences, which rise in the order in which the step granted them.
func (b *modelBench) leasesMatch(s *stored) {
	b.r.Helper()
	for _, q := range b.m.given {
		if b.set == lua.RWLock && !b.m.leased(q) {
			continue // it was converted
		}
		if fence := s.holder["#"+q.token]; fence != q.fence || fence <= b.fence {
			b.failf("%s has the fence %d and was notified of %d, after %d", q.token, fence, q.fence, b.fence)
		}
		b.fence, b.seq = q.fence, q.fence
	}
	for _, q := range b.m.all {
		end := s.holder[q.token]
		switch {
		case b.m.leased(q):
			if !b.near(end, q.end) {
				b.failf("the lease of %s ends at %d, want %d", q.token, end, q.end)
			}
			if fence := s.holder["#"+q.token]; fence != q.fence {
				b.failf("the fence of %s is %d, want %d", q.token, fence, q.fence)
			}
			if s.expiry[0] < q.end-b.m.now-b.tolerance && !b.mayLoseExpiry() {
				b.failf("the leases expire in %d ms, that of %s in %d", s.expiry[0], q.token, q.end-b.m.now)
			}
			q.end = end
		case end > b.m.now:
			b.failf("%s holds it until %d", q.token, end)
		}
	}
}

// mayLoseExpiry: without limits in force, the key may end before its leases.
func (b *modelBench) mayLoseExpiry() bool {
	permits, is := b.kind.(*permitBench)
	return is && permits.force == nil
}
