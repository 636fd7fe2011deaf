package proptest

import (
	"fmt"
	"slices"
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

// permitBench runs the scripts of a semaphore or a rate limit beside their model.
type permitBench struct {
	*scriptBench
	*permitModel
	light   bool    // each request is for one permit, as the fast script of a window wants them all
	allowed []int64 // what allow has said in this step
	fence   int64   // the largest so far
	seq     int64   // the largest in the metadata
	high    int64   // the largest place so far
}

// TestSemaphoreScriptsMatchModel checks that for all operations on a semaphore or a rate limit, in any order, while time passes, the
// scripts reply, grant, notify and store what the model does; that fences rise with each lease; and that no waiter waits forever if all
// are alive. In the model never more permits are held than the limit under which they were granted, and permits by the clock are counted
// until they return.
func TestSemaphoreScriptsMatchModel(t *testing.T) {
	rdb, mini := miniServer(t)
	run := newRun(t)
	run.explore(0.6, func(r *rapid.T) { permitSequence(r, run, rdb, mini) },
		"granted by a message", "granted by a reply", "a waiter without notifications is granted",
		"a try is refused", "a tombstoned request", "a duplicate of a request", "a lease expires",
		"skipped: its heartbeat has lapsed", "skipped: not subscribed", "skipped: not subscribed for the notification of the head",
		"the head is notified", "a lapsed waiter is notified", "rejoined the queue", "held", "unknown",
		"left", "released", "nothing to release", "renewed", "shortened", "run to the end",
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

// TestSemaphoreScriptsMatchModelOnRealServer checks a part of the same on a real server, whose clock cannot be set.
func TestSemaphoreScriptsMatchModelOnRealServer(t *testing.T) {
	rdb := redistest.Start(t).Client()
	checkPart(t, 0.1, func(r *rapid.T) { permitSequence(r, &run{tally: map[string]int{}}, rdb, nil) })
}

func permitSequence(r *rapid.T, u *run, rdb *redis.Client, mini *miniredis.Miniredis) {
	b := &permitBench{scriptBench: newScriptBench(r, rdb, mini, lua.Semaphore.KeyKind), high: 1e15}
	defer b.close()
	b.permitModel = &permitModel{subscribed: b.listening, reach: func(what string) { u.tally[what]++ }}
	b.onHandOn = func() { b.reach("handed on by the fast script") }
	b.state = func() string {
		var held strings.Builder
		for _, q := range b.those(b.has) {
			fmt.Fprintf(&held, " %s until %d", q.token, q.end)
		}
		return fmt.Sprintf("%s hold it,%s wait", &held, tokensOf(b.queue()))
	}
	b.light = rapid.Bool().Draw(r, "each for one permit")
	b.callers = b.drawLimits(rapid.SampledFrom([]string{"h", "c", "hc"}).Draw(r, "kind"))
	commands := map[string]func(*rapid.T){
		"":                                  func(*rapid.T) {},
		"a waiter arrives":                  func(*rapid.T) { b.asks(b.arrives(), true, 0) },
		"several waiters arrive":            b.severalArrive,
		"several more waiters arrive":       b.severalArrive,
		"a waiter arrives with little time": b.acquiresWithin,
		"a try":                             func(*rapid.T) { b.asks(b.arrives(), false, 0) },
		"another try":                       func(*rapid.T) { b.asks(b.arrives(), false, 0) },
		"several tries":                     b.severalTry,
		"a duplicate arrives":               b.duplicateArrives,
		"a holder releases":                 b.holderReleases,
		"another releases":                  b.holderReleases,
		"all holders release":               b.allRelease,
		"a lease is released unused":        b.givenBack,
		"a waiter leaves":                   func(*rapid.T) { b.releases(b.some("waiter", waits), true) },
		"an unknown request is released":    b.strangerLeaves,
		"a lease is renewed":                b.renews,
		"a keeper heartbeats":               b.heartbeats,
		"another keeper heartbeats":         b.heartbeats,
		"waiters rejoin":                    b.rejoins,
		"a subscription changes":            b.toggleSubscription,
		"the lock is inspected":             func(*rapid.T) { b.limitIs(0) },
		"the limit is set":                  func(*rapid.T) { b.limitIs(rapid.Int64Range(1, 8).Draw(r, "limit")) },
		"the limit is paused":               b.pauses,
		"callers change":                    b.callersChange,
	}
	if mini != nil {
		commands["time passes"] = b.timePasses
		commands["something ends"] = b.somethingEnds
		commands["something else ends"] = b.somethingEnds
		commands["the metadata is lost"] = b.metadataIsLost
	}
	if rapid.Bool().Draw(r, "tries first") {
		b.severalTry(r)
	}
	b.severalArrive(r)
	r.Repeat(commands)
	if mini != nil && rapid.IntRange(0, 7).Draw(r, "run to the end") == 0 {
		b.runToEnd()
	}
}

func tokensOf(list []*permitReq) string {
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
func (b *permitBench) starts(format string, args ...any) {
	b.r.Helper()
	b.begin(b.time(format, args...))
}

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

func (b *permitBench) arrives() *permitReq {
	q := &permitReq{serial: len(b.all) + 1, limits: b.callers, holds: b.callers.atOnce > 0, byClock: b.callers.window > 0, permits: 1}
	q.keeper = keepers[rapid.SampledFrom([]int{0, 1, 2, 0, 1, 2, 3}).Draw(b.r, "keeper")]
	q.unnotifiable = q.keeper == "mute"
	q.ttl = rapid.SampledFrom([]int64{30000, 2000, 6000}).Draw(b.r, "ttl")
	if !b.light && rapid.Bool().Draw(b.r, "heavy") {
		q.permits = rapid.Int64Range(1, q.limits.most()).Draw(b.r, "permits")
	}
	flags := q.limits.kind() + strings.Repeat("s", yes(q.unnotifiable))
	q.token = fmt.Sprintf("%s:%d:%d.%d%s%d", q.keeper, q.serial, q.ttl, q.claimTTL(), flags, q.permits)
	b.all = append(b.all, q)
	return q
}

// some draws a request that satisfies is.
func (b *permitBench) some(what string, is func(*permitReq) bool) *permitReq {
	return draw(b.r, b.those(is), what)
}

// behind returns a place behind all others, until the server has assigned one.
func (b *permitBench) behind() int64 { return b.high + 1 }

// queuedAt adopts the place that the server assigned to a newcomer, behind all others.
func (b *permitBench) queuedAt(q *permitReq, place int64) {
	b.r.Helper()
	if place <= b.high {
		b.failf("place %d after %d", place, b.high)
	}
	q.place, b.high = place, place
}

func (b *permitBench) severalArrive(*rapid.T) {
	for range rapid.IntRange(2, 5).Draw(b.r, "how many") {
		b.asks(b.arrives(), true, 0)
	}
}

// asks runs acquire: sometimes the fast script, and the general one unless that has granted the request, or refused a try.
func (b *permitBench) asks(q *permitReq, waits bool, within int64) {
	b.r.Helper()
	b.starts("acquire %s, waits %v within %d", q.token, waits, within)
	newcomer, had, others := !q.waits, b.has(q), len(b.queue()) > 0
	var got []int64
	if rapid.Bool().Draw(b.r, "fast") {
		got = b.evalFast(q, waits)
		switch {
		case got == nil:
		case got[0] == lua.Granted:
			b.reach("granted by the fast script")
		case waits:
			got = nil
		}
	}
	code, left, changed := b.acquire(q, waits, within, b.behind())
	if got == nil {
		got = b.evalAcquire(q, waits, within)
	}
	changes := int64(2 * yes(changed))
	if got[0] != code {
		b.failf("reply %v, want code %d", got, code)
	}
	if b.allowed != nil {
		b.remains()
	}
	if changed {
		b.reach("a caller changes the limits")
	}
	switch code {
	case lua.Granted:
		if short := got[2] == 0; !short && (got[3]-got[2] != q.ttl || !b.near(got[2], b.now)) || got[4] != changes {
			b.failf("reply %v, want a lease of %d ms, change %d", got, q.ttl, changes)
		}
		if had && !slices.Contains(b.given, q) {
			if got[1] != q.fence {
				b.failf("reply %v, want the fence %d", got, q.fence)
			}
			b.reach("a duplicate of a request")
		} else if b.reach("granted at once: " + q.limits.kind()); others && !waits {
			b.reach("a try is granted past waiters that are gone")
		}
		q.fence = got[1]
	case lua.Waiting:
		if newcomer {
			b.queuedAt(q, got[3])
		} else if got[3] != q.place {
			b.failf("it moved from %d to %d", q.place, got[3])
		}
		if within > 0 {
			b.reach("it can wait so long")
		}
	case lua.Refused:
		// Behind more than fifty waiters, the script estimates it from below.
		estimated := q.byClock && len(b.queue()) > 50 && got[2] > 0 && got[2] < left
		if !b.near(got[2], left) && !estimated || got[3] != changes {
			b.failf("reply %v, want %d ms, change %d", got, left, changes)
		}
		switch {
		case waits:
			b.reach("it cannot wait so long")
		case q.byClock && left > 0:
			b.reach("a try is refused until a time")
		default:
			b.reach("a try is refused")
		}
	case lua.Tombstoned:
		b.reach("a tombstoned request")
	case lua.AboveLimit:
		b.reach("more than the limit is asked for")
	}
	b.compare()
	if code == lua.Waiting {
		rank, ask := slices.Index(b.queue(), q), b.ends()
		if rank > 2 {
			ask = 0
		}
		if !b.near(got[1], b.now) || got[4] != int64(rank) || !b.near(got[5], ask) || got[6] != changes || got[2] < b.seq {
			b.failf("reply %v, want rank %d, %d ms, change %d", got, rank, ask, changes)
		}
		if b.fitsNow(q) {
			b.reach("a light one waits behind a heavy one")
		}
	}
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
func (b *permitBench) evalFast(q *permitReq, waits bool) []int64 {
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
func (b *permitBench) allows(q *permitReq, waits bool) bool {
	return !waits && q.limits.kind() == "c" && rapid.Bool().Draw(b.r, "by allow")
}

// evalAcquire runs the general script, for some tries allow.
func (b *permitBench) evalAcquire(q *permitReq, waits bool, within int64) []int64 {
	if !b.allows(q, waits) {
		return b.eval(lua.Semaphore.Acquire, acquireArgs(q.token, q.ttl, heartbeatTimeout.Milliseconds()*int64(yes(waits)), q.limits.String(), within))
	}
	got := b.eval(lua.RateLimit.Allow, protocol.AllowArgs(nil, q.token, q.ttl, q.limits.String(), scriptSettings))
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
func (b *permitBench) fitsNow(q *permitReq) bool {
	atOnce, window := b.room(*b.rules)
	return min(atOnce, window) >= q.permits
}

// mayRepeat: no two kinds wait together.
func (b *permitBench) mayRepeat(q *permitReq) bool { return q.limits.kind() == b.callers.kind() }

// duplicateArrives repeats a request that was granted, waits or is tombstoned, and sometimes one that has ended.
func (b *permitBench) duplicateArrives(*rapid.T) {
	late := rapid.IntRange(0, 3).Draw(b.r, "late") == 0
	b.asks(b.some("request", func(q *permitReq) bool {
		return b.mayRepeat(q) && (late || b.has(q) || q.waits || q.tombstonedUntil > b.now)
	}), true, 0)
}

// releases runs release.
func (b *permitBench) releases(q *permitReq, unused bool) {
	tombstone := rapid.SampledFrom([]int64{0, 0, 60000}).Draw(b.r, "tombstone ms")
	b.starts("%s is released, tombstone %d, unused %v", q.token, tombstone, unused)
	took := q.taken != 0
	code := b.release(q, tombstone, unused)
	got := b.evalRelease(lua.Semaphore, q.limits.String(), q.token, tombstone, yes(unused))
	if len(got) != 2 || got[0] != code || got[1] != 0 && (got[1] != 2 || len(b.queue()) > 0) {
		b.failf("reply %v, want code %d", got, code)
	}
	b.reach(map[int64]string{lua.Granted: "released", lua.Left: "left", lua.Refused: "nothing to release"}[code])
	if unused && took {
		b.reach("released unused")
	}
	b.compare()
}

func (b *permitBench) holderReleases(*rapid.T) { b.releases(b.some("holder", b.leased), false) }

func (b *permitBench) allRelease(*rapid.T) {
	for _, q := range b.those(b.leased) {
		b.releases(q, false)
	}
}

func (b *permitBench) strangerLeaves(*rapid.T) {
	q := b.some("stranger", func(q *permitReq) bool { return !q.waits && !b.leased(q) })
	b.releases(q, rapid.Bool().Draw(b.r, "unused"))
}

// renews runs one of the scripts that renew.
func (b *permitBench) renews(*rapid.T) {
	odd := rapid.IntRange(0, 5).Draw(b.r, "odd") == 0
	q := b.some("lease", func(q *permitReq) bool { return odd || b.leased(q) })
	ms, exact, keys := q.ttl, 0, rapid.IntRange(1, 2).Draw(b.r, "keys")
	if rapid.Bool().Draw(b.r, "extended") {
		ms, exact, keys = rapid.SampledFrom([]int64{1000, 2500, 60000}).Draw(b.r, "ms"), 1, 4
	}
	b.starts("%s is renewed for %d ms, exact %d, with %d keys", q.token, ms, exact, keys)
	before := q.end
	code := b.renew(q, ms, exact == 1, keys)
	got := b.evalRenew(lua.Semaphore, keys, q.token, ms, exact)
	fence := q.fence * int64(min(keys, 2)-1)
	switch {
	case got[0] != code, code == lua.Granted && (len(got) != 2 || got[1] != fence):
		b.failf("reply %v, want code %d, fence %d", got, code, fence)
	case code == lua.Granted:
		b.reach("renewed")
	}
	if q.end < before {
		b.reach("shortened")
	}
	b.compare()
}

// heartbeats runs the heartbeat of some of a keeper's requests.
func (b *permitBench) heartbeats(*rapid.T) {
	k := rapid.SampledFrom(keepers).Draw(b.r, "keeper")
	b.heartbeatFor(b.those(func(q *permitReq) bool {
		lives := q.waits || q.away || b.has(q) || q.taken != 0
		return lives && q.keeper == k && rapid.IntRange(0, 9).Draw(b.r, "heartbeats") < 8
	}), false, nil)
}

// rejoins is the heartbeat of a keeper that has learned that some of its waiters are unknown: they were skipped, or their leases have
// expired.
func (b *permitBench) rejoins(*rapid.T) {
	odd := rapid.IntRange(0, 3).Draw(b.r, "odd") == 0
	back := func(q *permitReq) bool { return b.mayRepeat(q) && (q.away || odd && q.place != 0) }
	k := b.some("who", back).keeper
	list := b.those(func(q *permitReq) bool {
		return q.keeper == k && (back(q) || q.waits || q.tombstonedUntil > b.now && b.mayRepeat(q)) && rapid.IntRange(0, 4).Draw(b.r, "comes") > 0
	})
	var places []int64
	for _, q := range list {
		places = append(places, q.place*int64(rapid.SampledFrom([]int{1, 1, 0}).Draw(b.r, "keeps its place")))
	}
	b.heartbeatFor(list, true, places)
}

// heartbeat models the script heartbeat. places are those of rejoining waiters. It returns the changes by token.
func (b *permitBench) heartbeat(list []*permitReq, back bool, places []int64) map[string][]int64 {
	changes := map[string][]int64{}
	report := func(q *permitReq, code int64) { changes[q.token] = append(changes[q.token], code) }
	for i, q := range list {
		if !q.waits {
			if code := b.reports(q, back); code != noReport {
				report(q, code)
				continue
			}
			if !back {
				report(q, lua.Unknown)
				continue
			}
			q.waits, q.away = true, false
			if q.place = places[i]; q.place == 0 {
				q.place = b.behind() + int64(i)
			}
			report(q, lua.Waiting)
		}
		q.lapse = b.now + heartbeatTimeout.Milliseconds()
		b.permitModel.asks[q] = q.claimTTL()
	}
	for _, q := range b.those(func(q *permitReq) bool { return q.waits && q.lapse <= b.now }) {
		b.skip(q, "its heartbeat has lapsed")
	}
	b.admitBeats()
	for q := range b.asked {
		report(q, lua.Granted)
	}
	return changes
}

func (b *permitBench) heartbeatFor(list []*permitReq, back bool, places []int64) {
	b.r.Helper()
	b.starts("heartbeats of %s, rejoin %v", tokensOf(list), back)
	if limits := b.callers; b.rules == nil {
		b.rules = &limits
	}
	args := heartbeatArgs(yes(back), b.callers.String())
	for i, q := range list {
		if args = append(args, q.token); back {
			args = append(args, places[i])
		}
	}
	changes := b.heartbeat(list, back, places)
	got := b.eval(lua.Semaphore.Heartbeat, args)
	if got[0] != lua.Waiting || !b.near(got[1], b.now) || got[4] != 0 || (len(got)-7)%4 != 0 {
		b.failf("reply %v", got)
	}
	received := map[string][]int64{}
	for rest := got[7:]; len(rest) > 0; rest = rest[4:] {
		q := list[rest[0]-1]
		received[q.token] = append(received[q.token], rest[1])
		switch rest[1] {
		case lua.Waiting:
			if i := rest[0] - 1; places[i] == 0 {
				b.queuedAt(q, rest[2])
			} else if rest[2] != places[i] {
				b.failf("reply %v: it had the place %d", got, places[i])
			}
			b.reach("rejoined the queue")
			if b.asked[q] {
				b.reach("rejoined the queue and granted")
			}
		case lua.Granted:
			if rest[3]-got[1] != q.claimTTL() {
				b.failf("reply %v, want an unconfirmed lease of %d ms", got, q.claimTTL())
			}
			q.fence = rest[2]
			b.reach("granted by a reply")
			b.reach("granted by a reply: " + q.limits.kind())
		case lua.Held:
			if rest[2] != q.fence || !b.near(rest[3], q.told) {
				b.failf("reply %v of %s, want fence %d and end %d", got, q.token, q.fence, q.told)
			}
			b.reach("held")
		case lua.Unknown:
			b.reach("unknown")
		}
	}
	b.alsoIneligible(list, received, changes)
	if fmt.Sprint(received) != fmt.Sprint(changes) {
		b.failf("reply %v reports %v, want %v", got, received, changes)
	}
	b.compare()

	// The first of them that waits.
	line := b.queue()
	first := slices.IndexFunc(line, func(q *permitReq) bool { return slices.Contains(list, q) })
	if got[5] == 0 {
		if first >= 0 {
			b.failf("reply %v, the first is %s", got, line[first].token)
		}
	} else if q := list[got[5]-1]; first < 0 || line[first].place != q.place || int(got[6]) >= len(line) || line[got[6]] != q {
		b.failf("reply %v, the queue is %s", got, tokensOf(line))
	} else if first < 3 && !b.near(got[3], b.ends()) || first > 2 && got[3] != 0 {
		b.failf("reply %v, want %d ms", got, b.ends())
	}
}

// alsoIneligible takes the waiters that a heartbeat found to be above the limit from its reply.
func (b *permitBench) alsoIneligible(list []*permitReq, received, changes map[string][]int64) {
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
	b.releases(b.some("who", func(q *permitReq) bool { return b.leased(q) || q.taken != 0 }), true)
}

// limitIs runs limit.
func (b *permitBench) limitIs(limit int64) {
	b.starts("the limit is set to %d by a caller with %v", limit, b.callers)
	was := b.force
	want := b.limit(b.callers, limit, 0)
	got := b.eval(lua.Semaphore.Limit, limitArgs(b.callers.String(), int(limit), ""))
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
	b.limitReplied(b.eval(lua.Semaphore.Limit, pauseArgs(b.callers.String(), ms)), want)
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

// toggleSubscription subscribes or unsubscribes a keeper.
func (b *permitBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.listening[k])
}

func (b *permitBench) timePasses(*rapid.T) {
	list := []int64{1, 50, 500, 1999, 1, 50, 500, 1999, 3000, 6000, 31000, 90000}
	if per := b.callers.per; per > 0 {
		list = append(list, per, per+1, 3*per)
	}
	b.pass(rapid.SampledFrom(list).Draw(b.r, "ms"))
}

// somethingEnds advances time until a lease, a heartbeat or a pause ends, or permits return, or a millisecond less.
func (b *permitBench) somethingEnds(*rapid.T) {
	list := []int64{b.pausedUntil}
	for _, q := range b.all {
		list = append(list, q.end, q.lapse*int64(yes(q.waits)))
		if b.force != nil && q.taken != 0 {
			list = append(list, q.taken+b.force.per+1)
		}
	}
	list = slices.DeleteFunc(list, func(end int64) bool { return end <= b.now })
	b.pass(draw(b.r, list, "end") - b.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
}

func (b *permitBench) pass(ms int64) {
	b.starts("%d ms pass", ms)
	b.begin(b.now + ms)
	b.mini.SetTime(time.UnixMilli(b.now))
	b.compare()
}

// runToEnd checks that every waiter is granted its request, or learns that it never can be, if all are alive and nobody renews. In
// five seconds a lease without renewal ends, or a window. There are longer ones: those of some requests, and that of another library.
func (b *permitBench) runToEnd() {
	longest := int64(0)
	for _, q := range b.all {
		longest = max(longest, q.end-b.now)
	}
	most := 20 + 7*len(b.all) + int(longest/5000)
	for _, k := range keepers[:3] {
		b.listen(k, true)
	}
	for rounds := 0; ; rounds++ {
		for _, k := range keepers {
			list := b.those(func(q *permitReq) bool { return q.keeper == k && (q.waits || q.away && b.mayRepeat(q)) })
			var places []int64
			for _, q := range list {
				places = append(places, q.place)
			}
			if len(list) > 0 {
				b.heartbeatFor(list, true, places)
			}
		}
		line := b.queue()
		if len(line) == 0 {
			b.reach("run to the end")
			return
		}
		if rounds > most {
			b.failf("%s still wait", tokensOf(line))
		}
		next := int64(5000)
		if ms := b.ends(); ms > 0 {
			next = min(next, ms)
		}
		b.pass(next)
	}
}

// stored is what the server has stored.
type stored struct {
	scores map[string]int64 // of the leases
	expiry time.Duration    // of their key; -2: there is none
}

// compare compares the server's data and messages with the model.
func (b *permitBench) compare() {
	b.r.Helper()
	pipe := b.rdb.Pipeline()
	holders := pipe.ZRangeWithScores(scriptCtx, b.keys[0], 0, -1)
	queue := pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1)
	tombstones := pipe.ZRangeWithScores(scriptCtx, b.keys[3], 0, -1)
	var expiry []*redis.DurationCmd
	for _, k := range b.keys {
		expiry = append(expiry, pipe.PTTL(scriptCtx, k))
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.failf("%v", err)
	}
	for i, d := range expiry {
		if d.Val() <= 0 && d.Val() != -2 {
			b.failf("%s does not expire: %v", b.keys[i], d.Val())
		}
	}
	s := &stored{scores: map[string]int64{}, expiry: expiry[0].Val()}
	for _, z := range holders.Val() {
		s.scores[z.Member.(string)] = int64(z.Score)
	}
	takings(s.scores)
	b.queueMatches(queue.Val())
	b.messages(s)
	b.leasesMatch(s)
	until := map[string]int64{}
	for _, z := range tombstones.Val() {
		until[z.Member.(string)] = int64(z.Score)
	}
	for _, q := range b.all {
		switch until := until[q.token]; {
		case until == 0 && q.tombstonedUntil > b.now:
			b.failf("%s has no tombstone, want until %d", q.token, q.tombstonedUntil)
		case until != 0 && !b.near(until, q.tombstonedUntil):
			b.failf("%s is tombstoned until %d, want %d", q.token, until, q.tombstonedUntil)
		default:
			q.tombstonedUntil = until
		}
	}
	b.permitsMatch(s)
}

// mayBeGone: waiters that cannot be notified, or that ask for more than the limit, may be removed before their turn.
func (b *permitBench) mayBeGone(q *permitReq) bool {
	if b.rules != nil && q.above(*b.rules) {
		b.dropIneligible(q)
		return true
	}
	return !b.reachable(q)
}

// queueMatches compares the queue and the heartbeats.
func (b *permitBench) queueMatches(queue []redis.Z) {
	b.r.Helper()
	waiters, lapses := b.split(queue)
	at := map[string]int64{}
	for _, z := range waiters {
		at[z.Member.(string)] = int64(z.Score)
	}
	for _, q := range b.queue() {
		switch place, waits := at[q.token]; {
		case waits && (place != q.place || !b.near(lapses[q.token], q.lapse)):
			b.failf("%s is at place %d until %d, want %d until %d", q.token, place, lapses[q.token], q.place, q.lapse)
		case waits:
			q.lapse = lapses[q.token]
		case !b.mayBeGone(q):
			b.failf("%s has left the queue", q.token)
		default:
			b.skip(q, "not subscribed for the notification of the head")
		}
		delete(at, q.token)
	}
	if len(at) > 0 {
		b.failf("%v wait, too", at)
	}
}

// messages compares the messages of the step.
func (b *permitBench) messages(s *stored) {
	b.r.Helper()
	got, want := map[string][]*permitReq{}, map[string][]*permitReq{}
	for _, w := range b.receive() {
		q := b.all[w.serial-1]
		if w.number < 0 {
			b.headNotified(q, -w.number)
			continue
		}
		q.fence = w.number
		got[w.keeper] = append(got[w.keeper], q)
	}
	silent := 0
	for _, q := range b.given {
		switch {
		case b.asked[q]:
			silent++
		case q.unnotifiable:
			q.fence = s.scores["#"+q.token]
			b.reach("a waiter without notifications is granted")
		default:
			want[q.keeper] = append(want[q.keeper], q)
			b.reach("granted by a message")
			b.reach("granted by a message: " + q.limits.kind())
		}
	}
	if len(b.given)-silent > 1 {
		b.reach("several are admitted together")
	}
	for _, k := range keepers {
		if !slices.Equal(got[k], want[k]) {
			b.failf("%s was notified of%s, want%s", k, tokensOf(got[k]), tokensOf(want[k]))
		}
	}
}

// headNotified checks the notification of a waiter to retry after ms.
func (b *permitBench) headNotified(q *permitReq, ms int64) {
	b.r.Helper()
	// A request above the limit learns it when it asks, however soon: at once if it was the head when the limit
	// changed, or when permits are free if others before it were not subscribed.
	if b.rules != nil && q.above(*b.rules) {
		return
	}
	if !b.notified[q.keeper] && ms%10 == 1 && q.lapse > 0 && q.lapse <= b.now {
		b.notified[q.keeper] = true
		b.reach("a lapsed waiter is notified")
		return
	}
	if line := b.queue(); len(line) == 0 || line[0] != q || !b.near(ms, b.ends()) {
		b.failf("%s was notified to retry after %d ms, want%s and %d", q.token, ms, tokensOf(line), b.ends())
	}
	b.reach("the head is notified")
	if b.minWait(q) > 0 {
		b.reach("the head is notified of the clock")
	}
}

// leasesMatch compares the leases and their fences, which rise in the order in which the step granted them.
func (b *permitBench) leasesMatch(s *stored) {
	b.r.Helper()
	for _, q := range b.given {
		if fence := s.scores["#"+q.token]; fence != q.fence || fence <= b.fence {
			b.failf("%s has the fence %d and was notified of %d, after %d", q.token, fence, q.fence, b.fence)
		}
		b.fence, b.seq = q.fence, q.fence
	}
	for _, q := range b.all {
		end := s.scores[q.token]
		switch {
		case b.leased(q):
			if !b.near(end, q.end) {
				b.failf("the lease of %s ends at %d, want %d", q.token, end, q.end)
			}
			// Without limits in force, the key may end before its leases.
			if left := q.end - b.now; s.expiry.Milliseconds() < left-b.tolerance && b.force != nil {
				b.failf("the leases expire in %v, that of %s in %d ms", s.expiry, q.token, left)
			}
			q.end = end
		case end > b.now:
			b.failf("%s holds it until %d", q.token, end)
		}
	}
}

// permitsMatch compares the permits that return by the clock, and what is counted. Expired ones may still be stored, and are counted until
// they are removed; the model does not know them.
func (b *permitBench) permitsMatch(s *stored) {
	b.r.Helper()
	scores, expiry, per := s.scores, s.expiry.Milliseconds(), int64(0)
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
