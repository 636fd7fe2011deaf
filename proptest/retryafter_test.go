package proptest

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

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
	m := &permitModel{subscribed: map[string]bool{}, reach: func(string) {}, lastNotified: &l, force: &l}
	heavy := int64(1)
	if rapid.Bool().Draw(r, "heavy") {
		heavy = min(l.window, 6)
	}
	req := func() *permitReq {
		q := &permitReq{serial: len(m.all) + 1, keeper: "mute", unnotifiable: true, limits: l, byClock: true, ttl: 6000}
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
		for member, score := range members {
			list = append(list, redis.Z{Member: member, Score: float64(score)})
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
