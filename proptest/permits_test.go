package proptest

import (
	"fmt"
	"maps"
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

// permitBench runs the scripts beside the model.
type permitBench struct {
	*permitModel
	*scriptBench
	limits permitLimits // of the current callers
	light  bool         // each request is for one permit, as the fast script of a window wants them all
	fence  int64        // the largest so far
	seq    int64        // the largest in the metadata
	high   int64        // the largest place so far
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

// TestSemaphoreScriptsMatchModel checks that for all operations on a semaphore, in any order, while time passes, the
// scripts reply, grant, notify and store what the model does; that never more permits are held than the limit under
// which they were granted; and that permits by the clock are counted until they return.
func TestSemaphoreScriptsMatchModel(t *testing.T) {
	rdb, mini := miniServer(t)
	run := newRun(t)
	run.explore(0.6, func(r *rapid.T) { permitSequence(r, run, rdb, mini) },
		"granted by the fast script: h", "granted by the fast script: c",
		"allowed by the fast script", "handed on by the fast script",
		"granted at once: h", "granted at once: c", "granted at once: hc",
		"granted by a message: h", "granted by a message: c", "granted by a message: hc",
		"granted by a reply: h", "granted by a reply: c", "granted by a reply: hc",
		"several are admitted together", "a try is refused", "a try is refused until a time",
		"a try is granted past waiters that are gone", "allow says what remains", "it cannot wait so long", "it can wait so long",
		"a light one waits behind a heavy one", "a tombstoned request", "a duplicate of a request",
		"more than the limit is asked for", "permits are taken once more by one token",
		"a lease expires", "permits return by the clock", "a lease outlasts its permits' window",
		"skipped: its heartbeat has lapsed", "skipped: not subscribed",
		"skipped: it asks for more than the limit", "skipped: not subscribed for the notification of the head",
		"the head is notified of a lease", "the head is notified of the clock",
		"a lapsed waiter is notified", "rejoined the queue", "rejoined the queue and granted", "held", "unknown", "a waiter without notifications is granted",
		"left", "released", "released unused", "nothing to release", "renewed", "shortened",
		"the limit is raised", "the limit is lowered", "a caller changes the limits", "the metadata is lost",
		"a pause while others wait", "a longer pause stays", "a pause is ended, and waiters are admitted", "a pause has ended",
		"run to the end",
	)
}

// TestSemaphoreScriptsMatchModelOnRealServer runs a part of the same on a real server.
func TestSemaphoreScriptsMatchModelOnRealServer(t *testing.T) {
	rdb := redistest.Start(t).Client()
	checkPart(t, 0.1, func(r *rapid.T) { permitSequence(r, &run{tally: map[string]int{}}, rdb, nil) })
}

func permitSequence(r *rapid.T, u *run, rdb *redis.Client, mini *miniredis.Miniredis) {
	b := &permitBench{
		permitModel: &permitModel{reach: func(what string) { u.tally[what]++ }},
		scriptBench: newScriptBench(r, rdb, mini, "semaphore"),
	}
	b.permitModel.subscribed = b.scriptBench.subscribed
	b.light = rapid.Bool().Draw(r, "each for one permit")
	b.state = func() string {
		b.onHandOn = func() { b.reach("handed on by the fast script") }
		return fmt.Sprintf("%s hold or spend,%s wait; limits %v, %v in force", b.those(), permitTokens(b.queue()), b.lastNotified, b.force)
	}
	defer b.close()
	b.limits = b.drawLimits(rapid.SampledFrom([]string{"h", "c", "hc"}).Draw(r, "kind"))
	actions := map[string]func(*rapid.T){
		"":                                  func(*rapid.T) {},
		"a waiter arrives":                  func(*rapid.T) { b.asksFor(b.newReq(), true, 0) },
		"several waiters arrive":            b.severalArrive,
		"several more waiters arrive":       b.severalArrive,
		"a waiter arrives with little time": b.acquiresWithin,
		"a try":                             func(*rapid.T) { b.asksFor(b.newReq(), false, 0) },
		"another tries":                     func(*rapid.T) { b.asksFor(b.newReq(), false, 0) },
		"a duplicate arrives":               b.duplicateArrives,
		"a holder releases":                 b.holderReleases,
		"another releases":                  b.holderReleases,
		"all holders release":               b.allRelease,
		"a lease is released unused":        b.givenBack,
		"a waiter leaves":                   b.waiterLeaves,
		"an unknown request is released":    b.strangerLeaves,
		"a lease is renewed":                b.renews,
		"a keeper heartbeats":               b.heartbeats,
		"another keeper heartbeats":         b.heartbeats,
		"waiters rejoin":                    b.rejoins,
		"a subscription changes":            b.toggleSubscription,
		"the lock is inspected":             func(*rapid.T) { b.limitIs(0) },
		"the limit is set":                  b.setsLimit,
		"the limit is paused":               b.pauses,
		"callers change":                    b.callersChange,
	}
	if mini != nil {
		actions["time passes"] = b.timePasses
		actions["something is let end"] = b.somethingEnds
		actions["something else is let end"] = b.somethingEnds
		actions["the metadata is lost"] = b.metadataIsLost
	}
	b.severalArrive(r)
	r.Repeat(actions)
	if mini != nil && rapid.IntRange(0, 7).Draw(r, "run to the end") == 0 {
		b.runToEnd()
	}
}

// those lists the requests with permits that are held or to return.
func (b *permitBench) those() string {
	var list []string
	for _, q := range b.all {
		if b.leased(q) || q.taken != 0 {
			list = append(list, fmt.Sprintf("%s until %d, from %d", q.token, q.end, q.taken))
		}
	}
	return strings.Join(list, ", ")
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

// starts begins a step at the server's current time.
func (b *permitBench) starts(format string, args ...any) {
	b.r.Helper()
	b.comesTo(b.time(format, args...))
}

// comesTo sets the time.
func (b *permitBench) comesTo(now int64) {
	b.begin(now)
	if b.pausedUntil != 0 && b.pausedUntil <= now {
		b.reach("a pause has ended")
		b.pausedUntil = 0
	}
	for _, q := range b.all {
		if q.end != 0 && q.end <= now {
			b.reach("a lease expires")
			q.end = 0
		}
	}
}

// newReq draws a new request.
func (b *permitBench) newReq() *permitReq {
	q := &permitReq{serial: len(b.all) + 1, limits: b.limits, holds: b.limits.atOnce > 0, byClock: b.limits.window > 0}
	q.keeper = keepers[rapid.SampledFrom([]int{0, 1, 2, 0, 1, 2, 3}).Draw(b.r, "keeper")]
	q.unnotifiable = q.keeper == "mute"
	q.permits = 1
	if most := b.limits.most(); !b.light && rapid.Bool().Draw(b.r, "heavy") {
		q.permits = rapid.Int64Range(1, most).Draw(b.r, "permits")
	}
	q.ttl = rapid.SampledFrom([]int64{30000, 2000, 6000}).Draw(b.r, "ttl")
	q.token = fmt.Sprintf("%s:%d:%d.%d%s", q.keeper, q.serial, q.ttl, q.claimTTL(), q.kind())
	if q.unnotifiable {
		q.token += "s"
	}
	q.token += strconv.FormatInt(q.permits, 10)
	b.all = append(b.all, q)
	return q
}

// kind returns h, c or hc, as in tokens with permits under these limits.
func (l permitLimits) kind() string {
	return strings.Repeat("h", yes(l.atOnce > 0)) + strings.Repeat("c", yes(l.window > 0))
}

func (q *permitReq) kind() string { return q.limits.kind() }

func yes(is bool) int {
	if is {
		return 1
	}
	return 0
}

// behind returns a place behind all, until the server has assigned one.
func (b *permitBench) behind() int64 { return max(b.high, 1e15) + 1 }

// queuedAt adopts the place that the server assigned to a newcomer, behind all others.
func (b *permitBench) queuedAt(q *permitReq, place int64) {
	b.r.Helper()
	if place <= b.high || place < 1e15 {
		b.failf("place %d after %d", place, b.high)
	}
	q.place, b.high = place, place
}

func (b *permitBench) severalArrive(*rapid.T) {
	for range rapid.IntRange(2, 5).Draw(b.r, "how many") {
		b.asksFor(b.newReq(), true, 0)
	}
}

// acquiresWithin is a request that cannot wait for long.
func (b *permitBench) acquiresWithin(*rapid.T) {
	l := b.limits
	b.asksFor(b.newReq(), true, rapid.SampledFrom([]int64{1, l.per/2 + 1, l.per + 1, 3 * (l.per + 1)}).Draw(b.r, "within"))
}

// remains checks what allow says of the window: the limit, what remains of it, and in how many ms all have returned.
func (b *permitBench) remains(got []int64) {
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
	if got[0] != b.rules.window || b.tolerance == 0 && got[1] != max(left, 0) || !b.near(got[2], last) {
		b.failf("allow says %v, want %d, %d, %d", got, b.rules.window, max(left, 0), last)
	}
}

// asksFor runs acquire, or sometimes allow for a try that is granted without a lease.
func (b *permitBench) asksFor(q *permitReq, waits bool, within int64) {
	b.r.Helper()
	b.starts("acquire %s under %v, waits %v within %d", q.token, q.limits, waits, within)
	newcomer, had, others := !q.waits, q.end > b.now || q.taken != 0, len(b.queue()) > 0
	code, left, changed := b.acquire(q, waits, within, b.behind())
	life := heartbeatTimeout.Milliseconds() * int64(yes(waits))
	allows := !waits && q.kind() == "c" && rapid.Bool().Draw(b.r, "by allow")
	var got []int64
	switch fast := rapid.Bool().Draw(b.r, "fast"); {
	case fast && allows:
		got = b.asksFastAllow(q)
	case fast:
		got = b.asksFast(q, waits)
	}
	switch {
	case got != nil:
	case allows:
		got = b.eval(lua.RateLimit.Allow, protocol.AllowArgs(nil, q.token, q.ttl, q.limits.String(), scriptSettings))
	default:
		got = b.eval(lua.Semaphore.Acquire, acquireArgs(q.token, q.ttl, life, q.limits.String(), within))
	}
	if got[0] != code {
		b.failf("reply %v, want code %d", got, code)
	}
	if allows && (code == lua.Granted || code == lua.Refused) {
		b.remains(got[len(got)-3:])
		got = got[:len(got)-3]
	}
	if changed {
		b.reach("a caller changes the limits")
	}
	changes := int64(2 * yes(changed))
	switch code {
	case lua.Granted:
		if short := got[2] == 0; !short && (got[3]-got[2] != q.ttl || !b.near(got[2], b.now)) || got[4] != changes {
			b.failf("reply %v, want a lease of %d ms, change %d", got, q.ttl, changes)
		}
		if had && !slices.Contains(b.given, q) {
			b.reach("a duplicate of a request")
			if got[1] != q.fence {
				b.failf("the fence %d became %d", q.fence, got[1])
			}
		} else {
			q.fence = got[1]
			b.reach("granted at once: " + q.kind())
			if others && !waits {
				b.reach("a try is granted past waiters that are gone")
			}
		}
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
		estimated := len(b.queue()) > 50 && got[2] > 0 && got[2] < left
		if !b.near(got[2], left) && !estimated || got[3] != changes {
			b.failf("reply %v, want %d ms, change %d", got, left, changes)
		}
		switch {
		case waits:
			b.reach("it cannot wait so long")
		case left > 0:
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
		line := b.queue()
		rank, ask := slices.Index(line, q), b.ends()
		if rank > 2 {
			ask = 0
		}
		if got[4] != int64(rank) || !b.near(got[5], ask) || got[6] != changes || got[2] < b.seq {
			b.failf("reply %v, want rank %d, %d ms, change %d", got, rank, ask, changes)
		}
		if atOnce, window := b.room(*b.rules); min(atOnce, window) >= q.permits {
			b.reach("a light one waits behind a heavy one")
		}
	}
}

// asksFast runs the fast script that acquires, and returns its reply, or nil if the general one is to follow.
func (b *permitBench) asksFast(q *permitReq, waits bool) []int64 {
	b.r.Helper()
	got, _ := b.evalFastAcquire(lua.Semaphore, q.token, q.ttl, q.limits.String())
	switch {
	case got == nil:
	case got[0] == lua.Granted:
		b.reach("granted by the fast script: " + q.kind())
	default:
		b.reach("refused by the fast script")
		if waits {
			return nil
		}
	}
	return got
}

// asksFastAllow is asksFast of a caller who wants to know what remains of the limit: with what allow replies.
func (b *permitBench) asksFastAllow(q *permitReq) []int64 {
	got, quota := b.evalFastAcquire(lua.Semaphore, q.token, q.ttl, q.limits.String())
	switch {
	case got == nil:
		return nil
	case got[0] == lua.Granted:
		b.reach("allowed by the fast script")
		return append(got, q.limits.window, quota, q.limits.per+1)
	}
	b.reach("not allowed by the fast script")
	return append(got, q.limits.window, 0, quota)
}

// some draws a request that satisfies is.
func (b *permitBench) some(what string, is func(*permitReq) bool) *permitReq {
	var list []*permitReq
	for _, q := range b.all {
		if is(q) {
			list = append(list, q)
		}
	}
	return draw(b.r, list, what)
}

// duplicateArrives repeats a request that was granted, or waits, and sometimes one that has ended.
func (b *permitBench) duplicateArrives(*rapid.T) {
	late := rapid.IntRange(0, 3).Draw(b.r, "late") == 0
	q := b.some("request", func(q *permitReq) bool {
		return q.kind() == b.limits.kind() && (late || b.leased(q) || q.waits || q.tombstonedUntil != 0)
	})
	b.asksFor(q, true, 0)
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
	for _, q := range b.all {
		if b.leased(q) {
			b.releases(q, false)
		}
	}
}

func (b *permitBench) givenBack(*rapid.T) {
	b.releases(b.some("who", func(q *permitReq) bool { return b.leased(q) || q.taken != 0 }), true)
}

func (b *permitBench) waiterLeaves(*rapid.T) {
	b.releases(b.some("waiter", func(q *permitReq) bool { return q.waits }), true)
}

func (b *permitBench) strangerLeaves(*rapid.T) {
	b.releases(b.some("stranger", func(q *permitReq) bool { return !q.waits && !b.leased(q) }), rapid.Bool().Draw(b.r, "unused"))
}

// renews runs renew.
func (b *permitBench) renews(*rapid.T) {
	odd := rapid.IntRange(0, 5).Draw(b.r, "odd") == 0
	q := b.some("lease", func(q *permitReq) bool { return odd || b.leased(q) })
	ms, exact, keys := q.ttl, 0, rapid.IntRange(1, 2).Draw(b.r, "keys")
	if rapid.Bool().Draw(b.r, "extended") {
		ms, exact, keys = rapid.SampledFrom([]int64{1000, 2500, 60000}).Draw(b.r, "ms"), 1, 4
	}
	b.starts("%s is renewed for %d ms, exact %d", q.token, ms, exact)
	before := q.end
	code := b.renew(q, ms, exact == 1)
	if keys == 4 && code == lua.Granted {
		b.admit()
	}
	got := b.evalRenew(lua.Semaphore, keys, q.token, ms, exact)
	if got[0] != code {
		b.failf("reply %v, want code %d", got, code)
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
func (b *permitBench) heartbeats(*rapid.T) {
	k := rapid.SampledFrom(keepers).Draw(b.r, "keeper")
	var list []*permitReq
	for _, q := range b.all {
		if q.keeper == k && (q.waits || q.away || b.leased(q) || q.taken != 0) && rapid.IntRange(0, 4).Draw(b.r, "heartbeats") > 0 {
			list = append(list, q)
		}
	}
	b.heartbeatFor(list, false, nil)
}

// rejoins is the heartbeat of a keeper's waiters that were skipped, or whose short first lease has expired.
func (b *permitBench) rejoins(*rapid.T) {
	odd := rapid.IntRange(0, 3).Draw(b.r, "odd") == 0
	back := func(q *permitReq) bool { return q.kind() == b.limits.kind() && (q.away || odd && q.place != 0) }
	k := b.some("who", back).keeper
	var list []*permitReq
	var places []int64
	for _, q := range b.all {
		if q.keeper == k && (back(q) || q.waits || q.tombstonedUntil != 0 && q.kind() == b.limits.kind()) && rapid.IntRange(0, 4).Draw(b.r, "comes") > 0 {
			list = append(list, q)
			places = append(places, q.place*int64(rapid.SampledFrom([]int{1, 1, 0}).Draw(b.r, "keeps its place")))
		}
	}
	b.heartbeatFor(list, true, places)
}

func (b *permitBench) heartbeatFor(list []*permitReq, back bool, places []int64) {
	b.r.Helper()
	b.starts("heartbeats of %s under %v, rejoin %v", permitTokens(list), b.limits, back)
	args := heartbeatArgs(yes(back), b.limits.String())
	at := slices.Clone(places)
	ends := map[*permitReq]int64{}
	for i, q := range list {
		args = append(args, q.token)
		ends[q] = q.end
		if !q.holds {
			ends[q] = b.now + q.claimTTL()
		}
		if back {
			args = append(args, places[i])
			if places[i] == 0 && !q.waits {
				at[i] = b.behind() + int64(i)
			}
		}
	}
	changes := b.heartbeat(list, b.limits, back, at)
	got := b.eval(lua.Semaphore.Heartbeat, args)
	if got[0] != lua.Waiting || !b.near(got[1], b.now) || got[4] != 0 || (len(got)-7)%4 != 0 {
		b.failf("reply %v", got)
	}
	received := map[*permitReq][]int64{}
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
				b.failf("reply %v, want an unconfirmed lease of %d ms", got, q.claimTTL())
			}
			b.reach("granted by a reply: " + q.kind())
		case lua.Held:
			if rest[2] != q.fence || !b.near(rest[3], ends[q]) {
				b.failf("reply %v, want fence %d and end %d", got, q.fence, ends[q])
			}
			b.reach("held")
		case lua.AboveLimit:
			if q.waits && q.above(*b.rules) {
				b.dropIneligible(q)
			}
		case lua.Unknown:
			b.reach("unknown")
		}
	}
	for q := range b.ineligible {
		if slices.Contains(list, q) {
			changes[q] = append(changes[q], lua.AboveLimit)
		}
	}
	codes := func(changes map[*permitReq][]int64) string {
		list := map[string][]int64{}
		for q, codes := range changes {
			list[q.token] = codes
		}
		return fmt.Sprint(list)
	}
	if codes(received) != codes(changes) {
		b.failf("reply %v reports %v, want %v", got, codes(received), codes(changes))
	}
	b.compare()

	// The first of them that waits.
	line := b.queue()
	first := slices.IndexFunc(line, func(q *permitReq) bool { return slices.Contains(list, q) })
	if got[5] == 0 {
		if first >= 0 {
			b.failf("reply %v, the first is %s", got, line[first].token)
		}
	} else if q := list[got[5]-1]; first < 0 || line[got[6]] != q || first != int(got[6]) {
		b.failf("reply %v, the queue is %s", got, permitTokens(line))
	} else if first < 3 && !b.near(got[3], b.ends()) || first > 2 && got[3] != 0 {
		b.failf("reply %v, want %d ms", got, b.ends())
	}
}

// toggleSubscription subscribes or unsubscribes a keeper.
func (b *permitBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.scriptBench.subscribed[k])
}

// limitIs runs limit.
func (b *permitBench) limitIs(limit int64) {
	b.starts("the limit is set to %d by a caller with %v", limit, b.limits)
	was := b.force
	want := b.limit(b.limits, limit, 0)
	got := b.eval(lua.Semaphore.Limit, limitArgs(b.limits.String(), int(limit), ""))
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
	if b.limits.window == 0 {
		b.r.SkipNow()
	}
	lengths := []int64{1, 70, 1000, b.limits.per, 3*b.limits.per + 1, -1}
	if b.mini == nil { // none ends by itself
		lengths = []int64{600_000, 1_200_000, -1}
	}
	if b.paused() > 0 {
		lengths = append(lengths, -1, -1, -1)
	}
	ms := rapid.SampledFrom(lengths).Draw(b.r, "pause")
	b.starts("a pause of %d ms by a caller with %v", ms, b.limits)
	had, waiters := b.paused(), len(b.queue())
	want := b.limit(b.limits, 0, ms)
	b.limitReplied(b.eval(lua.Semaphore.Limit, pauseArgs(b.limits.String(), ms)), want)
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

func (b *permitBench) setsLimit(*rapid.T) { b.limitIs(rapid.Int64Range(1, 8).Draw(b.r, "limit")) }

// callersChange changes the limits that later callers know, mostly without changing the kind. No two kinds wait
// together: what is granted together then depends on what was swept before.
func (b *permitBench) callersChange(*rapid.T) {
	kind := b.limits.kind()
	if len(b.queue()) == 0 && rapid.Bool().Draw(b.r, "odd") {
		kind = rapid.SampledFrom([]string{"h", "c", "hc"}).Draw(b.r, "kind")
	}
	b.limits = b.drawLimits(kind)
	if b.limits.per == 0 && b.mini == nil {
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

func (b *permitBench) timePasses(*rapid.T) {
	list := []int64{1, 50, 500, 1999, 1, 50, 500, 1999, 6000, 31000}
	if per := b.limits.per; per > 0 {
		list = append(list, per, per+1, 3*per)
	}
	b.pass(rapid.SampledFrom(list).Draw(b.r, "ms"))
}

// somethingEnds advances time until a lease or a heartbeat ends, or permits return, or a millisecond less.
func (b *permitBench) somethingEnds(*rapid.T) {
	list := []int64{b.pausedUntil}
	if b.paused() == 0 {
		list = nil
	}
	for _, q := range b.all {
		ends := []int64{q.end}
		if q.waits {
			ends = append(ends, q.lapse)
		}
		if b.force != nil && q.taken != 0 {
			ends = append(ends, q.taken+b.force.per+1)
		}
		for _, end := range ends {
			if end > b.now {
				list = append(list, end)
			}
		}
	}
	end := draw(b.r, list, "end")
	b.pass(end - b.now - int64(rapid.IntRange(0, 1).Draw(b.r, "less")))
}

func (b *permitBench) pass(ms int64) {
	b.starts("%d ms pass", ms)
	b.comesTo(b.now + ms)
	b.mini.SetTime(time.UnixMilli(b.now))
	b.compare()
}

// runToEnd checks that every waiter is granted its permits, or learns that there are never so many, if all are alive
// and nobody renews.
func (b *permitBench) runToEnd() {
	for _, k := range keepers[:3] {
		b.listen(k, true)
	}
	for rounds := 0; ; rounds++ {
		for _, k := range keepers {
			var list []*permitReq
			var places []int64
			for _, q := range b.all {
				if q.keeper == k && (q.waits || q.away && q.kind() == b.limits.kind()) {
					list, places = append(list, q), append(places, q.place)
				}
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
		// In 5 s a window of 5 s or a lease without renewal has ended; there are longer ones.
		if rounds > 20+5*len(b.all) {
			b.failf("%s still wait", permitTokens(line))
		}
		next := int64(5000)
		if ms := b.ends(); ms > 0 {
			next = min(next, ms)
		}
		b.pass(next)
	}
}

// compare compares the server's data and messages with the model.
func (b *permitBench) compare() {
	b.r.Helper()
	pipe := b.rdb.Pipeline()
	pipe.Publish(scriptCtx, scriptMark, scriptMark)
	lock := pipe.ZRangeWithScores(scriptCtx, b.keys[0], 0, -1)
	queue := pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1)
	tombstones := pipe.ZRangeWithScores(scriptCtx, b.keys[3], 0, -1)
	var expiry [4]*redis.DurationCmd
	for i, k := range b.keys {
		expiry[i] = pipe.PTTL(scriptCtx, k)
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.failf("%v", err)
	}
	scores := map[string]int64{}
	for _, z := range lock.Val() {
		scores[z.Member.(string)] = int64(z.Score)
	}
	takings(scores)
	waiters, lapses := b.split(queue.Val())
	b.queueMatches(waiters)
	b.messages(scores)
	b.fences(scores)
	b.holdersMatch(scores, expiry[0].Val().Milliseconds())
	tombstoned := map[string]int64{}
	for _, z := range tombstones.Val() {
		tombstoned[z.Member.(string)] = int64(z.Score)
	}
	for _, q := range b.queue() {
		if !b.near(lapses[q.token], q.lapse) {
			b.failf("the heartbeat of %s lapses at %d, want %d", q.token, lapses[q.token], q.lapse)
		}
		q.lapse = lapses[q.token]
	}
	for _, q := range b.all {
		switch until := tombstoned[q.token]; {
		case until == 0 && q.tombstonedUntil > b.now:
			b.failf("%s has no tombstone, want until %d", q.token, q.tombstonedUntil)
		case until != 0 && !b.near(until, q.tombstonedUntil):
			b.failf("%s is tombstoned until %d, want %d", q.token, until, q.tombstonedUntil)
		default:
			q.tombstonedUntil = until
		}
	}
	for i, d := range expiry {
		if d.Val() != -2 && d.Val() <= 0 {
			b.failf("%s does not expire: %v", b.keys[i], d.Val())
		}
	}
}

// queueMatches compares the queue. Waiters that cannot be notified, or that ask for more than the limit, may be
// removed before their turn.
func (b *permitBench) queueMatches(queue []redis.Z) {
	b.r.Helper()
	at := map[string]int64{}
	for _, z := range queue {
		at[z.Member.(string)] = int64(z.Score)
	}
	for _, q := range b.queue() {
		switch place, waits := at[q.token]; {
		case waits && place != q.place:
			b.failf("%s is at place %d, want %d", q.token, place, q.place)
		case waits:
		case b.rules != nil && q.above(*b.rules):
			b.dropIneligible(q)
		case !b.reachable(q):
			b.skip(q, "not subscribed for the notification of the head")
		default:
			b.failf("%s has left the queue", q.token)
		}
		delete(at, q.token)
	}
	for token, place := range at {
		b.failf("%s is at place %d", token, place)
	}
}

// holdersMatch compares the permits that are held, and those that return by the clock. Expired ones may still be
// stored, and are counted until they are removed; the model does not know them.
func (b *permitBench) holdersMatch(scores map[string]int64, expiry int64) {
	b.r.Helper()
	per := int64(0)
	if b.rules != nil {
		per = b.rules.per
	}
	var used, spent int64
	members := map[string]bool{"used": true, "spent": true}
	for _, q := range b.all {
		end, leased := scores[q.token]
		mark, took := scores["@"+q.token]
		fence, numbered := scores["#"+q.token]
		for _, member := range []string{q.token, "@" + q.token, "#" + q.token} {
			members[member] = true
		}
		switch {
		case b.leased(q):
			if !b.near(end, q.end) {
				b.failf("the lease of %s ends at %d, want %d", q.token, end, q.end)
			}
			if b.force != nil && expiry < q.end-b.now-b.tolerance {
				b.failf("the leases expire in %d ms, that of %s in %d", expiry, q.token, q.end-b.now)
			}
			q.end = end
		case end > b.now:
			b.failf("%s holds permits until %d", q.token, end)
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

// messages compares the messages of the step.
func (b *permitBench) messages(scores map[string]int64) {
	b.r.Helper()
	changes := map[string][]*permitReq{}
	count := map[string]int{}
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
			if number < 0 {
				b.headNotified(q, -number)
				continue
			}
			q.fence = number
			changes[keeper] = append(changes[keeper], q)
			if i == 0 {
				count[keeper]++
			}
		}
	}
	want := map[string][]*permitReq{}
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
		b.reach("granted by a message: " + q.kind())
	}
	if len(b.given) > 1 {
		b.reach("several are admitted together")
	}
	for k := range maps.Keys(b.scriptBench.subscribed) {
		if !slices.Equal(changes[k], want[k]) {
			b.failf("%s was notified of%s, want%s", k, permitTokens(changes[k]), permitTokens(want[k]))
		}
		if count[k] > 1 && !b.unreachable {
			b.failf("%s got %d messages", k, count[k])
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
		b.failf("%s was notified to retry after %d ms, want%s and %d", q.token, ms, permitTokens(line), b.ends())
	}
	if b.minWait(q) > 0 {
		b.reach("the head is notified of the clock")
	} else {
		b.reach("the head is notified of a lease")
	}
}

// fences checks that fences rise in the order in which the step granted leases.
func (b *permitBench) fences(scores map[string]int64) {
	b.r.Helper()
	for _, q := range b.given {
		if fence := scores["#"+q.token]; fence != q.fence || fence <= b.fence {
			b.failf("%s has the fence %d and was notified of %d, after %d", q.token, fence, q.fence, b.fence)
		}
		b.fence, b.seq = q.fence, q.fence
	}
}
