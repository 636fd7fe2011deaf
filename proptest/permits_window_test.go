package proptest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// windowGrant is a grant observed at the server.
type windowGrant struct {
	token   string
	permits int64
	at      int64 // by the reference clock
	until   int64 // end of its lease by the reference clock; 0: it has ended, or there was none
}

// windowBench is a semaphore with a server clock that is set, and a clock that is not.
type windowBench struct {
	*scriptBench
	tally   map[string]int
	limits  permitLimits
	back    bool // the server's clock is set back, else forward
	now     int64
	elapsed int64 // ms of real time
	serial  int
	waiting []string
	fences  map[string]int64
	grants  []*windowGrant // not released unused, in order
	fence   int64          // the largest so far
}

// TestWindowNeverExceedsLimit checks that with any limits, arrivals and weights, while waiters and holders are lost,
// and while the server's clock is set forward or back, never more permits are held than the limit, and never more
// taken in any window, wherever it begins. The reference clock is the server's if it is set forward, and real time
// if it is set back. When enough time has passed and nobody holds any, all waiters get their permits.
func TestWindowNeverExceedsLimit(t *testing.T) {
	rdb, mini := miniServer(t)
	run := newRun(t)
	run.explore(0.4, func(r *rapid.T) { windowSequence(r, run, rdb, mini) },
		"the clock is set back", "the clock is set forward", "the clock is set back while permits are to return",
		"granted at once", "granted later", "the window is full", "all permits are held",
		"released unused", "run to the end after the clock was set back",
	)
}

func windowSequence(r *rapid.T, u *run, rdb *redis.Client, mini *miniredis.Miniredis) {
	mini.SetTime(time.UnixMilli(1_800_000_000_000))
	b := &windowBench{scriptBench: newScriptBench(r, rdb, mini, "semaphore"), tally: u.tally, fences: map[string]int64{}}
	defer b.close()
	b.now = 1_800_000_000_000
	b.state = func() string { return fmt.Sprintf(" %d ms have passed, %q wait", b.elapsed, b.waiting) }
	b.back = rapid.Bool().Draw(r, "back")
	// When the clock is set back, the expiry of a key at a real server moves with the ends of the leases in it, but
	// not at the embedded one.
	mini.ClockTTL(!b.back)
	b.limits.window = rapid.Int64Range(1, 10).Draw(r, "in a window")
	b.limits.per = rapid.Int64Range(10, 5000).Draw(r, "per")
	if rapid.Bool().Draw(r, "at once, too") {
		b.limits.atOnce = rapid.Int64Range(1, 10).Draw(r, "at once")
	}
	r.Repeat(map[string]func(*rapid.T){
		"":                        func(*rapid.T) {},
		"a waiter arrives":        func(*rapid.T) { b.asks(true) },
		"another waiter arrives":  func(*rapid.T) { b.asks(true) },
		"a try":                   func(*rapid.T) { b.asks(false) },
		"another tries":           func(*rapid.T) { b.asks(false) },
		"a holder releases":       b.releases,
		"a lease is renewed":      b.renews,
		"waiters send heartbeats": func(*rapid.T) { b.heartbeats() },
		"time passes":             b.timePasses,
		"a window ends":           b.windowEnds,
		"the clock jumps":         b.jumps,
	})
	b.runToEnd()
}

// judge returns the time by the reference clock.
func (b *windowBench) judge() int64 {
	if b.back {
		return b.elapsed
	}
	return b.now
}

func (b *windowBench) asks(waits bool) {
	b.serial++
	permits := int64(1)
	if rapid.Bool().Draw(b.r, "heavy") {
		permits = rapid.Int64Range(1, b.limits.most()).Draw(b.r, "permits")
	}
	ttl := rapid.SampledFrom([]int64{2000, 30000}).Draw(b.r, "ttl")
	token := fmt.Sprintf("mute:%d:%d.2000%ss%d", b.serial, ttl, b.limits.kind(), permits)
	b.time("acquire %s, waits %v, %d ms have passed", token, waits, b.elapsed)
	var got []int64
	if rapid.IntRange(0, 3).Draw(b.r, "fast") != 0 {
		got, _ = b.evalFastAcquire(lua.Semaphore, token, ttl, b.limits.String())
		if got != nil && got[0] != lua.Granted && waits {
			got = nil
		} else if got != nil {
			b.tally["by the fast script"]++
		}
	}
	if got == nil {
		got = b.eval(lua.Semaphore.Acquire, acquireArgs(token, ttl, heartbeatTimeout.Milliseconds()*int64(yes(waits)), b.limits.String(), 0))
	}
	switch got[0] {
	case lua.Granted:
		b.tally["granted at once"]++
	case lua.Waiting:
		b.waiting = append(b.waiting, token)
	}
	b.inspectGrants()
}

func (b *windowBench) releases(*rapid.T) {
	g := draw(b.r, b.grants, "grant")
	unused := rapid.IntRange(0, 3).Draw(b.r, "unused") == 0
	b.time("%s is released, unused %v", g.token, unused)
	b.evalRelease(lua.Semaphore, b.limits.String(), g.token, 0, yes(unused))
	g.until = 0
	if unused {
		b.grants = slices.DeleteFunc(b.grants, func(o *windowGrant) bool { return o == g })
		b.tally["released unused"]++
	}
	b.inspectGrants()
}

func (b *windowBench) renews(*rapid.T) {
	g := draw(b.r, b.grants, "grant")
	b.time("%s is renewed", g.token)
	if got := b.eval(lua.Semaphore.Renew, renewArgs(g.token, 2000, 0)); got[0] == lua.Granted {
		g.until = max(g.until, b.judge()+2000)
	}
	b.inspectGrants()
}

// heartbeats runs the heartbeat of all waiters. Some have been granted permits meanwhile, and some have been
// skipped.
func (b *windowBench) heartbeats() {
	if len(b.waiting) == 0 {
		return
	}
	b.time("heartbeats of %q", b.waiting)
	args := heartbeatArgs(1, b.limits.String())
	for _, token := range b.waiting {
		args = append(args, token, 0)
	}
	b.eval(lua.Semaphore.Heartbeat, args)
	b.inspectGrants()
}

func (b *windowBench) timePasses(*rapid.T) { b.pass(rapid.Int64Range(1, 3000).Draw(b.r, "ms")) }

// windowEnds advances time until permits return, if the clock is not set meanwhile, or a millisecond less.
func (b *windowBench) windowEnds(*rapid.T) {
	g := draw(b.r, b.grants, "grant")
	if ms := g.at + b.limits.per + 1 - b.judge() - int64(rapid.IntRange(0, 1).Draw(b.r, "less")); ms > 0 {
		b.pass(ms)
	}
}

func (b *windowBench) pass(ms int64) {
	b.time("%d ms pass", ms)
	b.elapsed += ms
	b.setTo(b.now + ms)
}

func (b *windowBench) jumps(*rapid.T) {
	ms := rapid.SampledFrom([]int64{1, 10, 300, b.limits.per, 2 * b.limits.per, 3_600_000}).Draw(b.r, "ms")
	if b.back {
		ms = -ms
		b.tally["the clock is set back"]++
		if b.spent() > 0 {
			b.tally["the clock is set back while permits are to return"]++
		}
	} else {
		b.tally["the clock is set forward"]++
	}
	b.time("the clock is set by %d ms", ms)
	b.setTo(b.now + ms)
}

func (b *windowBench) setTo(now int64) {
	b.now = now
	b.mini.SetTime(time.UnixMilli(now))
}

// spent returns the permits that are to return.
func (b *windowBench) spent() int64 {
	var n int64
	for _, g := range b.grants {
		if g.at+b.limits.per >= b.judge() {
			n += g.permits
		}
	}
	return n
}

// inspectGrants reads what has been granted, and checks the limits.
func (b *windowBench) inspectGrants() {
	b.r.Helper()
	list, err := b.rdb.ZRangeWithScores(scriptCtx, b.keys[0], 0, -1).Result()
	if err != nil {
		b.failf("%v", err)
	}
	scores := map[string]int64{}
	var used, spent int64
	for _, z := range list {
		member := z.Member.(string)
		scores[member] = int64(z.Score)
		switch {
		case member == "used" || member == "spent" || strings.HasPrefix(member, "#") || strings.HasPrefix(member, "+"):
		case strings.HasPrefix(member, "@"):
			spent += permitsOf(member)
		default:
			used += permitsOf(member)
		}
	}
	takings(scores)
	if used != -scores["used"] || spent != -scores["spent"] {
		b.failf("the counts are %d and %d, want %d and %d", -scores["used"], -scores["spent"], used, spent)
	}
	var fresh []*windowGrant
	for member, fence := range scores {
		token, is := strings.CutPrefix(member, "#")
		if !is || b.fences[token] == fence {
			continue
		}
		b.fences[token] = fence
		g := &windowGrant{token: token, permits: permitsOf(token), at: b.judge()}
		if end := scores[token]; end > 0 {
			g.until = b.judge() + end - b.now
		}
		fresh = append(fresh, g)
		if i := slices.Index(b.waiting, token); i >= 0 {
			b.waiting = slices.Delete(b.waiting, i, i+1)
			b.tally["granted later"]++
		}
	}
	slices.SortFunc(fresh, func(g, o *windowGrant) int { return int(b.fences[g.token] - b.fences[o.token]) })
	for _, g := range fresh {
		if fence := b.fences[g.token]; fence <= b.fence {
			b.failf("%s has the fence %d after %d", g.token, fence, b.fence)
		}
		b.fence = b.fences[g.token]
		b.grants = append(b.grants, g)
	}
	if len(fresh) == 0 {
		return
	}
	var held int64
	for _, g := range b.grants {
		if g.until > b.judge() {
			held += g.permits
		}
	}
	if held > unlimited(b.limits.atOnce) {
		b.failf("%d permits are held, the limit is %d:%s", held, b.limits.atOnce, b.those())
	}
	if held == b.limits.atOnce {
		b.tally["all permits are held"]++
	}
	if spent := b.spent(); spent > b.limits.window {
		b.failf("%d permits were taken in the last %d ms, the limit is %d", spent, b.limits.per, b.limits.window)
	} else if spent == b.limits.window {
		b.tally["the window is full"]++
	}
}

// those lists the holders.
func (b *windowBench) those() string {
	var text strings.Builder
	for _, g := range b.grants {
		if g.until > b.judge() {
			fmt.Fprintf(&text, " %s from %d until %d", g.token, g.at, g.until)
		}
	}
	return text.String()
}

// runToEnd stops renewals, releases and jumps of the clock. A lease lasts 30 s at the most, and at least one window
// is filled to half in its length and a round.
func (b *windowBench) runToEnd() {
	const round = 500
	deadline := b.elapsed + int64(len(b.waiting)+1)*(30_000+b.limits.per+round)
	for len(b.waiting) > 0 {
		if b.elapsed > deadline {
			b.failf("%q still wait", b.waiting)
		}
		b.heartbeats()
		b.pass(max(round, b.limits.per/4))
	}
	if b.back && b.elapsed > 0 {
		b.tally["run to the end after the clock was set back"]++
	}
}

// TestRetryAfterIsLowerBound checks that a refused try gets a time before which its permits are not available,
// whatever the queue and the window hold. The time is exact if fewer than fifty requests wait and fewer than fifty
// permits have to return, or if each asks for one permit.
func TestRetryAfterIsLowerBound(t *testing.T) {
	rdb, mini := miniServer(t)
	run := newRun(t)
	checkPart(t, 0.5, func(r *rapid.T) {
		b := newScriptBench(r, rdb, mini, "semaphore")
		defer b.close()
		m := drawQueue(r, b)
		q := m.all[len(m.all)-1]
		m.begin(b.time("%s tries under %v", q.token, q.limits))
		var line, takings, heaviest int64
		for _, o := range m.all[:len(m.all)-1] {
			line += int64(yes(o.waits))
			takings += int64(yes(o.taken != 0))
			heaviest = max(heaviest, o.permits)
		}
		want := m.minWait(q)
		got := b.eval(lua.Semaphore.Acquire, acquireArgs(q.token, q.ttl, 0, q.limits.String(), 0))
		if got[0] == lua.Granted {
			if want != 0 {
				b.failf("granted, want it refused for %d ms", want)
			}
			run.tally["granted"]++
			return
		}
		switch exact := line < 50 && takings < 50 || heaviest <= 1 && q.permits == 1; {
		case got[2] > want:
			b.failf("%d waiting, %d to return: %d ms, but it is granted in %d", line, takings, got[2], want)
		case exact && got[2] != want:
			b.failf("%d waiting, %d to return: %d ms, want %d", line, takings, got[2], want)
		case got[2] == want:
			run.tally["exact"]++
		default:
			run.tally["earlier than possible"]++
		}
		for what, reached := range map[string]bool{
			"a long queue": line > 50, "a crowded window": takings > 50, "a queue for more than a window": want > q.limits.per+1,
			"many waiters for one permit each": line > 50 && heaviest == 1,
			"many waiters in a pause":          line > 50 && m.paused() > 0, "a crowded window in a pause": takings > 50 && m.paused() > 0,
		} {
			run.tally[what] += yes(reached)
		}
	})
	run.report("granted", "exact", "earlier than possible", "a long queue", "a crowded window", "a queue for more than a window",
		"many waiters for one permit each", "many waiters in a pause", "a crowded window in a pause")
}

// drawQueue writes a semaphore as the scripts would leave it, and a model of it. The last request is only in the
// model.
func drawQueue(r *rapid.T, b *scriptBench) *permitModel {
	now := b.time("a crowd")
	l := permitLimits{window: rapid.Int64Range(1, 150).Draw(r, "limit"), per: rapid.Int64Range(10, 5000).Draw(r, "per")}
	m := &permitModel{model: &model{subscribed: map[string]bool{}, reach: func(string) {}}, lastNotified: &l, force: &l}
	heavy := int64(1)
	if rapid.Bool().Draw(r, "heavy") {
		heavy = min(l.window, 6)
	}
	req := func() *modelReq {
		q := &modelReq{serial: len(m.all) + 1, keeper: "mute", unnotifiable: true, limits: l, byClock: true, ttl: 6000}
		q.permits = rapid.Int64Range(1, heavy).Draw(r, "permits")
		q.token = fmt.Sprintf("mute:%d:6000.6000cs%d", q.serial, q.permits)
		m.all = append(m.all, q)
		return q
	}
	lock, queue := map[string]int64{}, map[string]int64{}
	spent := int64(0)
	for range rapid.IntRange(0, 130).Draw(r, "to return") {
		if spent+heavy > l.window {
			break
		}
		q := req()
		q.taken = now - rapid.Int64Range(0, l.per).Draw(r, "ago")
		spent += q.permits
		lock["@"+q.token] = -q.taken * 1000
	}
	if spent > 0 {
		lock["spent"] = -spent
	}
	for range rapid.IntRange(0, 130).Draw(r, "waiting") {
		q := req()
		q.waits, q.place, q.lapse = true, now*1000+int64(q.serial), now+5000
		queue[q.token], queue["+"+q.token] = q.place, protocol.Heartbeats+q.lapse
	}
	pipe := b.rdb.Pipeline()
	inForce := l.String() + " " + l.String()
	if rapid.Bool().Draw(r, "paused") {
		pause := rapid.Int64Range(1, 3*l.per).Draw(r, "pause")
		m.pausedUntil = now + pause
		inForce += fmt.Sprintf(" %d %d", now+pause, pause)
	}
	pipe.HSet(scriptCtx, b.keys[1], "limits", inForce, "ticket", now*1000+1000)
	for key, members := range map[string]map[string]int64{b.keys[0]: lock, b.keys[2]: queue} {
		var list []redis.Z
		for member := range maps.Keys(members) {
			list = append(list, redis.Z{Member: member, Score: float64(members[member])})
		}
		if len(list) > 0 {
			pipe.ZAdd(scriptCtx, key, list...)
			pipe.PExpire(scriptCtx, key, time.Hour)
		}
	}
	if _, err := pipe.Exec(scriptCtx); err != nil {
		b.failf("%v", err)
	}
	req()
	return m
}

// permitsOf returns how many permits a token is for.
func permitsOf(token string) int64 {
	t, _ := protocol.ParseToken(token)
	return t.Number
}
