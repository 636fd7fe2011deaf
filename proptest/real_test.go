package proptest

import (
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

// realBench runs drawn sequences of scripts on a real server, whose Lua is not that of the embedded one, and checks the promises of the
// simulation after each. The oracles read an embedded server, to which everything is copied. Leases and heartbeats are ended by hand.
type realBench struct {
	*scriptBench
	w          *world
	set        *lua.Set
	limits     *permits              // of a semaphore or a rate limit
	copied     *miniredis.Subscriber // as subscribed as the keepers are
	waiting    map[*request]bool     // told to wait, and neither granted since nor released
	copies     map[string]bool       // tokens of requests that were sent more than once
	tombstoned map[string]bool
	expired    bool // a lease was ended by hand, and may be left
}

// redlockServer is one server of a redlock.
type redlockServer struct{ mutexLock }

func (*redlockServer) scripts() *lua.Set { return lua.Redlock }

// TestScriptsKeepPromisesOnRealServer checks in sequences of every script of the locks, in any order, that the leases fit together,
// fences rise, waiters are served in order, and whatever else a step of the simulation has to keep; that replies and messages are true;
// that a try is refused only while somebody holds or waits; and that in the end everybody is served and nothing is left.
func TestScriptsKeepPromisesOnRealServer(t *testing.T) {
	for _, open := range []func() primitive{
		func() primitive { return &mutexLock{} }, func() primitive { return fairLock{} },
		func() primitive { return &redlockServer{} }, func() primitive { return &readWriteLock{} }, func() primitive { return &permits{} },
	} {
		t.Run(open().scripts().Kind, func(t *testing.T) {
			rdb, u := redistest.Start(t).Client(), newRun(t)
			checkPart(t, 0.2, func(r *rapid.T) { realSequence(r, u, rdb, open()) })
			u.report("a lease is granted", "a try is refused", "a request waits", "a message says that a lease is granted",
				"a repeated request is refused", "a waiter rejoins", "all are served")
		})
	}
}

func realSequence(r *rapid.T, u *run, rdb *redis.Client, kind primitive) {
	w := &world{run: u, r: r, kind: kind, start: time.Now(), tally: u.tally, times: times{ttl: 30 * time.Second}, server: newServer(nil)}
	defer w.server.mini.Close()
	limits, _ := kind.(*permits)
	switch kind := kind.(type) {
	case *readWriteLock:
		kind.settings(r)
	case *permits:
		kind.settings(r)
		if kind.window > 0 {
			kind.per = max(kind.per, time.Hour) // none returns meanwhile
		}
	}
	w.begin()
	set := kind.scripts()
	b := &realBench{
		scriptBench: newScriptBench(r, rdb, set.KeyKind), w: w, set: set, limits: limits, copied: w.server.mini.NewSubscriber(),
		waiting: map[*request]bool{}, copies: map[string]bool{}, tombstoned: map[string]bool{},
	}
	defer b.close()
	defer b.copied.Close()
	for k, subscribed := range b.listening {
		if subscribed {
			b.copied.Subscribe(scriptWake + k)
		}
	}
	b.keys, b.ran = w.history.keys.All(), b.hasRun
	waiter := func(*rapid.T) { b.acquires(b.newRequest(), true) }
	releases := func(*rapid.T) { b.releases(draw(r, b.held(), "holder")) }
	heartbeats := func(*rapid.T) { b.heartbeats(rapid.SampledFrom(keepers).Draw(r, "keeper")) }
	commands := map[string]func(*rapid.T){
		"":                         func(*rapid.T) { w.fail() },
		"a waiter arrives":         waiter,
		"another waiter arrives":   waiter,
		"a third waiter arrives":   waiter,
		"a try":                    func(*rapid.T) { b.acquires(b.newRequest(), false) },
		"a request is repeated":    b.repeats,
		"a holder releases":        releases,
		"another holder releases":  releases,
		"a waiter leaves":          func(*rapid.T) { b.releases(draw(r, b.queued(), "waiter")) },
		"a request is released":    func(*rapid.T) { b.releases(draw(r, w.requests, "request")) },
		"a lease is renewed":       b.renews,
		"a keeper heartbeats":      heartbeats,
		"another keeper does":      heartbeats,
		"a subscription changes":   b.toggleSubscription,
		"a lease ends":             b.leaseEnds,
		"the heartbeat has lapsed": b.heartbeatLapses,
	}
	if set == lua.RWLock {
		commands["a lease is upgraded"] = b.upgrades
		commands["another lease is upgraded"] = b.upgrades
		commands["a lease is downgraded"] = b.downgrades
		commands["the holders are listed"] = b.lists
	}
	if limits != nil {
		commands["the limit changes"] = b.limitChanges
	}
	if set.RaiseFence != nil {
		commands["the fence is raised"] = b.raisesFence
	}
	for range rapid.IntRange(2, 6).Draw(r, "at first") {
		b.acquires(b.newRequest(), true)
	}
	r.Repeat(commands)
	b.serveAll()
}

// copyData copies what is at the server, and its time, to where the oracles look.
func (b *realBench) copyData() {
	pipe, s := b.rdb.TxPipeline(), b.w.server
	now := pipe.Time(scriptCtx)
	owner, meta := pipe.MGet(scriptCtx, b.keys[0]), pipe.HGetAll(scriptCtx, b.keys[1])
	var ends []*redis.DurationCmd
	for _, key := range b.keys {
		ends = append(ends, pipe.PExpireTime(scriptCtx, key))
	}
	sets := map[string]*redis.ZSliceCmd{b.keys[2]: pipe.ZRangeWithScores(scriptCtx, b.keys[2], 0, -1), b.keys[3]: pipe.ZRangeWithScores(scriptCtx, b.keys[3], 0, -1)}
	if !b.set.OneHolder {
		sets[b.keys[0]] = pipe.ZRangeWithScores(scriptCtx, b.keys[0], 0, -1)
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.failf("%v", err)
	}
	var data []record
	for i, key := range b.keys {
		if ends[i].Val() == -1 {
			b.failf("%s does not expire", key)
		} else if ends[i].Val() < 0 {
			continue
		}
		// An expiry counts from when the command runs, and a script may have read the time before.
		k := record{key: key, ends: time.UnixMilli(ends[i].Val().Milliseconds()).Add(-100 * time.Millisecond)}
		switch set := sets[key]; {
		case set != nil:
			k.scores = map[string]float64{}
			for _, z := range set.Val() {
				k.scores[z.Member.(string)] = z.Score
			}
		case i == 0:
			k.text, _ = owner.Val()[0].(string)
		default:
			for field, value := range meta.Val() {
				k.fields = append(k.fields, field, value)
			}
		}
		data = append(data, k)
	}
	s.ahead = time.Until(now.Val())
	s.start(data)
}

// view copies the state, and reads it.
func (b *realBench) view() *view {
	b.copyData()
	return b.w.view()
}

// hasRun checks a step after its script has run.
func (b *realBench) hasRun(s *lua.Script, args []any, reply any) {
	w, before := b.w, b.w.history.last
	call := script{text: s.Text, zero: reply == int64(0)}
	for _, arg := range args {
		call.argv = append(call.argv, fmt.Sprint(arg))
	}
	b.copyData()
	w.server.now()
	w.note("%s: %s", b.currentStep, s.Name)
	w.stepped(call)
	if w.firstBroken != "" {
		w.note("before %+v\nafter %+v", *before, *w.history.last)
	}
	after := w.history.last
	received := b.receive()
	for token, l := range after.leases {
		had, is := before.leases[token]
		if is && had.fence == l.fence || b.set.RaiseFence != nil && s == b.set.RaiseFence {
			continue
		}
		if is && !l.writes { // a downgrade, or an upgrade that was given up or undone
			continue
		}
		if is {
			token = after.upgrade
		}
		q := w.requestLocked(token)
		w.tally["a lease is granted"]++
		if delete(b.waiting, q); slices.Contains(call.argv, token) || before.uncounted[token] {
			continue
		}
		w.tally["a message says that a lease is granted"]++
		if !slices.Contains(received, message{keeper: w.terms(token).keeper, serial: q.n + 1, number: int64(l.fence)}) {
			b.failf("no message about the grant of %s with fence %d in %v", token, l.fence, received)
		}
	}
	for _, y := range after.queue {
		w.requestLocked(y.token).position = y.at
	}
	w.fail()
}

func (b *realBench) held() (list []*request) {
	return b.those(func(v *view, token string) bool { return v.leases[token].ends > 0 })
}

func (b *realBench) queued() (list []*request) {
	return b.those(func(v *view, token string) bool {
		_, stands := v.position(token)
		return stands
	})
}

func (b *realBench) those(is func(v *view, token string) bool) (list []*request) {
	for _, q := range b.w.requests {
		if is(b.w.history.last, q.token) {
			list = append(list, q)
		}
	}
	return list
}

// newRequest draws a request.
func (b *realBench) newRequest() *request {
	q := &request{w: b.w, n: len(b.w.requests)}
	b.w.kind.wants(b.r, q)
	return b.add(q, rapid.SampledFrom(keepers).Draw(b.r, "keeper"))
}

// add gives a request its token.
func (b *realBench) add(q *request, keeper string) *request {
	flags := q.use
	switch rw, _ := b.w.kind.(*readWriteLock); {
	case q.count > 0:
		flags = "h" + strings.Repeat("c", yes(b.limits.window > 0)) + flags + strconv.Itoa(q.count)
	case q.use == writing && rw.streak > 0:
		flags += strconv.Itoa(rw.streak)
	case q.use == upgrades:
		flags += strconv.Itoa(q.n + 1)
	}
	q.token = fmt.Sprintf("%s:%d:%d.%d%s", keeper, q.n+1, q.ttl().Milliseconds(), heartbeatTimeout.Milliseconds(), flags)
	b.w.requests = append(b.w.requests, q)
	return q
}

// leaseOf returns the lease that a request was granted: that of its token, or the one that writes by this upgrade.
func leaseOf(v *view, q *request) (l lease, holds bool) {
	if q.use != upgrades {
		l, holds = v.leases[q.token]
		return l, holds
	}
	l = v.leases[q.origin.token]
	return l, l.writes && v.upgrade == q.token
}

// acquires runs acquire, and mostly the fast script before. An upgrade names its lease.
func (b *realBench) acquires(q *request, waits bool) {
	b.r.Helper()
	policyArg, heartbeat := b.policyArg(), int64(0)
	if q.use == upgrades {
		policyArg = q.origin.token
	}
	if waits {
		heartbeat = heartbeatTimeout.Milliseconds()
	}
	b.w.history.last = b.view()
	b.time("acquire %s, waits %v, with %q", q.token, waits, policyArg)
	before := b.w.history.last
	var got []int64
	if b.set.Fast.Acquire != nil && q.origin == nil && rapid.IntRange(0, 3).Draw(b.r, "fast") > 0 {
		if got = b.evalFastAcquire(b.set, q.token, q.ttl().Milliseconds(), policyArg); waits && got != nil && got[0] != lua.Granted {
			got = nil
		}
	}
	if got == nil {
		got = b.eval(b.set.Acquire, acquireArgs(q.token, q.ttl().Milliseconds(), heartbeat, policyArg, 0))
	}
	after := b.w.history.last
	at, stands := after.position(q.token)
	l, holds := leaseOf(after, q)
	switch {
	case got[0] == lua.Granted && holds && l.fence == uint64(got[1]) && !b.tombstoned[q.token]:
		delete(b.waiting, q)
	case got[0] == lua.Waiting && stands && at == float64(got[3]) && waits && !b.tombstoned[q.token]:
		b.waiting[q] = true
		b.w.tally["a request waits"]++
	case got[0] == lua.Refused && !holds && (q.use == upgrades || !waits && !b.w.kind.free(before)):
		b.w.tally["a try is refused"]++
	case got[0] == lua.Conflict && q.use == upgrades, got[0] == lua.AboveLimit && b.limits.above(q.count, after):
	case got[0] == lua.Tombstoned && b.tombstoned[q.token] && !holds:
		b.w.tally["a repeated request is refused"]++
	default:
		b.failf("reply %v; it has a lease: %v %v, waits: %v at %.0f, before it there were %v and %v", got, holds, l, stands, at, before.leases, before.queue)
	}
}

// policyArg is the limits of the callers, if there are any.
func (b *realBench) policyArg() string {
	if b.limits == nil {
		return ""
	}
	return fmt.Sprintf("%d:%d:%d", b.limits.atOnce, b.limits.window, b.limits.per.Milliseconds())
}

// limitChanges sets the limit. Who waits for more learns it by a heartbeat.
func (b *realBench) limitChanges(*rapid.T) {
	to := rapid.IntRange(1, 8).Draw(b.r, "limit")
	b.time("the limit is set to %d", to)
	b.limits.highest = max(b.limits.highest, to)
	got := b.eval(b.set.Limit, []any{scriptMetadataTTL, b.policyArg(), to, "", 0})
	atOnce, window := b.limits.inForce(b.w.history.last)
	if held := b.limits.held(b.w, b.w.history.last); got[0] != lua.Granted || got[1] != int64(held) || got[2] != int64(atOnce) || got[4] != int64(window) ||
		b.limits.window == 0 && atOnce != to || b.limits.window > 0 && window != to {
		b.failf("reply %v, held %d of %d, window %d", got, held, atOnce, window)
	}
}

// repeats sends a request once more that waits, holds, or is refused by its tombstone.
func (b *realBench) repeats(*rapid.T) {
	v := b.w.history.last
	q := draw(b.r, b.those(func(_ *view, token string) bool {
		_, stands := v.position(token)
		_, holds := leaseOf(v, b.w.requestLocked(token))
		return stands || holds || b.tombstoned[token]
	}), "request")
	_, stands := v.position(q.token)
	b.copies[q.token] = true
	b.acquires(q, stands || rapid.Bool().Draw(b.r, "waits"))
}

// upgrades upgrades a lease, mostly by the keeper that has it.
func (b *realBench) upgrades(*rapid.T) {
	from := draw(b.r, b.held(), "holder")
	keeper := b.w.terms(from.token).keeper
	if rapid.IntRange(0, 7).Draw(b.r, "it was adopted") == 0 {
		keeper = rapid.SampledFrom(keepers).Draw(b.r, "keeper")
	}
	q := b.add(&request{w: b.w, n: len(b.w.requests), origin: from, use: upgrades}, keeper)
	b.acquires(q, rapid.IntRange(0, 3).Draw(b.r, "waits") > 0)
}

// downgrades downgrades a lease. A late copy names an earlier fence. If there are copies of the upgrade by which it writes, it leaves a
// tombstone of that.
func (b *realBench) downgrades(*rapid.T) {
	q := draw(b.r, b.w.requests, "request")
	b.time("%s is downgraded", q.token)
	b.w.history.last = b.view()
	before := b.w.history.last
	l, holds := before.leases[q.token]
	fence := int64(l.fence) - rapid.SampledFrom([]int64{0, 0, 0, 1}).Draw(b.r, "less")
	upgrade, late := "", l.writes && fence < int64(l.fence)
	if l.writes && before.upgradeOf == q.token && b.copies[before.upgrade] {
		upgrade = before.upgrade
	}
	got := b.eval(b.set.Downgrade, []any{q.token, fence, scriptMetadataTTL, upgrade, tombstoneTTL.Milliseconds()})
	now := b.w.history.last.leases[q.token]
	switch {
	case holds && !late && got[0] == lua.Granted && !now.writes && uint64(got[1]) == now.fence && (now.fence > l.fence) == l.writes:
		b.w.tally["a downgrade"]++
		b.tombstoned[upgrade] = upgrade != ""
	case (!holds || late) && got[0] == lua.Refused && now == l:
		b.w.tally["a downgrade is late"]++
		return
	default:
		b.failf("reply %v, and the lease %v is %v", got, l, now)
	}
	if owed := b.w.kind.owed(b.w, b.w.history.last); len(owed) > 0 {
		b.failf("%v could be granted it, and the reply is %v", owed, got)
	}
}

// lists lists the holders.
func (b *realBench) lists(*rapid.T) {
	b.time("the holders are listed")
	v, err := b.rdb.Eval(scriptCtx, b.set.Inspect.Text, b.keys, protocol.InspectHolders, 0, 1000, "").Slice()
	if err != nil {
		b.failf("%v", err)
	}
	list, total, err := protocol.ParseHolders(v)
	now := b.view()
	if err != nil || len(list) != len(now.leases) || int(total) != len(list) {
		b.failf("%v, %d, %v; there are %v", list, total, err, now.leases)
	}
	for _, h := range list {
		if l := now.leases[h.Token]; uint64(h.Fence) != l.fence || h.Converted != l.converted || h.Place*1000 != l.ends {
			b.failf("%+v; there is %v", h, l)
		}
	}
}

// releases ends a lease or a wait, with a tombstone if there are several copies of the request. Without one it is not sent again.
func (b *realBench) releases(q *request) {
	tombstone := tombstoneTTL.Milliseconds()
	if !b.copies[q.token] {
		tombstone *= rapid.SampledFrom([]int64{0, 0, 1}).Draw(b.r, "tombstone")
	}
	b.time("%s is released, tombstone %d", q.token, tombstone)
	before := b.w.history.last
	var got []int64
	if q.use == upgrades {
		got = b.eval(b.set.Release, []any{q.token, scriptMetadataTTL, tombstone, 1})
	} else {
		got = b.evalRelease(b.set, b.policyArg(), q.token, tombstone)
	}
	_, stood := before.position(q.token)
	want := int64(lua.Refused)
	if _, holds := leaseOf(before, q); holds {
		want = lua.Granted
	} else if stood {
		want = lua.Left
	}
	if got[0] != want {
		b.failf("reply %v, want code %d", got, want)
	}
	if owed := b.w.kind.owed(b.w, b.w.history.last); want == lua.Granted && len(owed) > 0 {
		b.failf("%v could be granted it, and the reply is %v", owed, got)
	}
	b.tombstoned[q.token] = b.tombstoned[q.token] || tombstone > 0
	delete(b.waiting, q)
}

func (b *realBench) renews(*rapid.T) {
	q := draw(b.r, b.w.requests, "request")
	ms, keys := q.ttl().Milliseconds()-rapid.SampledFrom([]int64{0, 1000}).Draw(b.r, "less"), rapid.IntRange(1, 2).Draw(b.r, "keys")
	b.time("%s is renewed for %d ms, with %d keys", q.token, ms, keys)
	l, held := b.w.history.last.leases[q.token]
	got := b.evalRenew(b.set, keys, q.token, ms)
	switch now := b.w.history.last; {
	case held != (got[0] == lua.Granted), held && keys == 2 && (uint64(got[1]) != l.fence || (len(got) == 3) != l.converted),
		now.leases[q.token].converted != l.converted:
		b.failf("reply %v, held: %v, fence %d", got, held, l.fence)
	case held && now.leases[q.token].ends < max(l.ends, now.now+ms*1000)-3e6:
		b.failf("it lasts for %d µs", now.leases[q.token].ends-now.now)
	}
}

// heartbeats is the heartbeat of a keeper's requests that were told to wait. Those that were removed meanwhile rejoin.
func (b *realBench) heartbeats(keeper string) {
	var list []*request
	mode := protocol.HeartbeatRejoin
	if keeper == mute {
		mode += protocol.HeartbeatUnsubscribed
	}
	args := []any{scriptMetadataTTL, mode, b.policyArg(), protocol.QueueTTL(heartbeatTimeout.Milliseconds())}
	for _, q := range b.w.requests {
		if b.waiting[q] && b.w.terms(q.token).keeper == keeper {
			list, args = append(list, q), append(args, q.token, int64(q.position))
		}
	}
	if len(list) == 0 {
		b.r.Skip("none waits")
	}
	b.time("heartbeats of %v", list)
	got := b.eval(b.set.Heartbeat, args)
	for rest := got[7:]; len(rest) > 0; rest = rest[4:] {
		q := list[rest[0]-1]
		l, holds := leaseOf(b.w.history.last, q)
		switch code := rest[1]; {
		case code == lua.Waiting && rest[2] == int64(q.position):
			b.w.tally["a waiter rejoins"]++
		case (code == lua.Granted || code == lua.Held) && holds && uint64(rest[2]) == l.fence:
		case (code == lua.Refused || code == lua.Conflict) && q.use == upgrades, code == lua.AboveLimit && b.limits.above(q.count, b.w.history.last):
			delete(b.waiting, q)
		default:
			b.failf("reply %v about %s", got, q.token)
		}
	}
}

func (b *realBench) toggleSubscription(*rapid.T) {
	k := rapid.SampledFrom(keepers[:3]).Draw(b.r, "keeper")
	b.listen(k, !b.listening[k])
}

// listen also subscribes where the oracles look.
func (b *realBench) listen(keeper string, subscribes bool) {
	b.scriptBench.listen(keeper, subscribes)
	if subscribes {
		b.copied.Subscribe(scriptWake + keeper)
	} else {
		b.copied.Unsubscribe(scriptWake + keeper)
	}
}

// byHand changes what the server has.
func (b *realBench) byHand(err error) {
	if err != nil {
		b.failf("%v", err)
	}
	b.w.history.last = b.view()
}

func (b *realBench) leaseEnds(*rapid.T) {
	q := draw(b.r, b.held(), "holder")
	b.time("the lease of %s ends", q.token)
	b.expired = true
	if b.set.OneHolder {
		b.byHand(b.rdb.Del(scriptCtx, b.keys[0]).Err())
	} else {
		b.byHand(b.rdb.ZAdd(scriptCtx, b.keys[0], redis.Z{Score: float64(time.Now().UnixMilli() - 1), Member: q.token}).Err())
	}
}

func (b *realBench) heartbeatLapses(*rapid.T) {
	q := draw(b.r, b.queued(), "waiter")
	b.time("the heartbeat of %s has lapsed", q.token)
	lapse := float64(protocol.Heartbeats + time.Now().UnixMilli() - 1)
	b.byHand(b.rdb.ZAdd(scriptCtx, b.keys[2], redis.Z{Score: lapse, Member: "+" + q.token}).Err())
}

// raisesFence raises the fence of a redlock's lease, mostly.
func (b *realBench) raisesFence(*rapid.T) {
	q := draw(b.r, b.w.requests, "request")
	l, holds := b.w.history.last.leases[q.token]
	least := int64(l.fence) + rapid.SampledFrom([]int64{10000, 1, 0, -100000}).Draw(b.r, "more")
	uptime := rapid.SampledFrom([]int64{0, time.Hour.Milliseconds()}).Draw(b.r, "uptime") // it has just been started
	b.time("the fence of %s is raised to %d, uptime %d", q.token, least, uptime)
	got := b.eval(b.set.RaiseFence, []any{q.token, least, scriptMetadataTTL, uptime})
	fence := int64(b.w.history.last.leases[q.token].fence)
	switch {
	case !holds && got[0] == lua.Refused:
	case holds && uptime > 0 && got[0] == lua.Unknown && got[1] < uptime:
	case holds && uptime == 0 && got[0] == lua.Granted && got[1] == fence && fence == max(least, int64(l.fence)):
		b.w.history.maxFence = max(b.w.history.maxFence, uint64(fence))
	default:
		b.failf("reply %v, and the fence is %d after %d", got, fence, l.fence)
	}
}

// serveAll checks that everybody is served who waits, and that nothing is left.
func (b *realBench) serveAll() {
	for _, k := range keepers[:3] {
		b.listen(k, true)
	}
	if b.limits != nil && b.limits.window > 0 { // permits do not return in time
		for _, q := range append(b.queued(), b.held()...) {
			b.releases(q)
		}
		return
	}
	for round := 0; len(b.waiting)+len(b.held()) > 0; round++ {
		if round > 2*len(b.w.requests) {
			b.failf("%d still wait", len(b.waiting))
		}
		for _, q := range b.held() {
			b.releases(q)
		}
		for _, k := range keepers {
			if slices.ContainsFunc(b.w.requests, func(q *request) bool { return b.waiting[q] && b.w.terms(q.token).keeper == k }) {
				b.heartbeats(k)
			}
		}
	}
	b.w.tally["all are served"]++
	keys := b.keys[2:3]
	if !b.expired {
		keys = []string{b.keys[0], b.keys[2]}
	}
	left := int(b.rdb.Exists(scriptCtx, keys...).Val())
	if b.expired && b.set.OneHolder { // a waiter that asks again may take a free mutex, and keeps its place until its release, which has not come
		left = len(slices.DeleteFunc(b.view().queue, func(y waiting) bool { return b.copies[y.token] }))
	}
	if left > 0 {
		b.failf("%d keys are left", left)
	}
}
