package lua_test

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// TestHostileValuesTakeLinearTime: whatever somebody has written to a key of a lock, each script takes time at most proportional to its
// length, by the server's own count. It blocks everybody else for as long. A script may fail.
func TestHostileValuesTakeLinearTime(t *testing.T) {
	t.Parallel()
	rdb := redistest.Connect(redistest.Start(t))
	sets := []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock, lua.RateLimit, lua.Redlock} // the others have the same scripts
	for _, set := range sets {
		for _, s := range set.Scripts() {
			must.OK(t, rdb.ScriptLoad(ctx, s.Text).Err())
		}
	}
	for _, set := range sets {
		t.Run(set.Kind, func(t *testing.T) {
			b := &hostileBench{newBench(t, rdb, set), ""}
			for place, put := range b.places() {
				for what, value := range hostileValues {
					b.what = place + ", " + what
					b.check(put, value)
				}
			}
		})
	}
}

// TestHostileMarks: a lease can be upgraded whatever somebody has written to the field of the last upgrade. Whatever fraction its score has, it
// counts as converted, and reads after a downgrade.
func TestHostileMarks(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		lease := rwToken("a", 1, "r")
		b.wantAcquire(lua.Granted, lease, 0)
		reads := func() {
			b.Helper()
			b.downgrade(lua.Granted, lease, b.fence(lease), "")
			at := b.rdb.ZScore(ctx, b.keys[0], lease).Val()
			check.That(b, at == math.Trunc(at), "the lease ends at %f", at)
			b.writes(false)
		}
		for i, text := range []string{"", " ", "x", "x y z", "x " + lease, rwToken("b", 2, "u99") + " " + lease, "x #" + lease, "x " + rwToken("b", 1, "r")} {
			b.rdb.HSet(ctx, b.keys[1], "upgrade", text)
			b.upgrade(lua.Granted, rwToken("a", 2+i, "u1"), lease)
			b.writes(true)
			reads()
		}
		for _, fraction := range []float64{0.25, 0.75, 0.999} {
			b.rdb.ZIncrBy(ctx, b.keys[0], -fraction, lease)
			b.writes(true)
			reads()
		}
	})
}

// hostileValues are values of a length, of about n bytes.
var hostileValues = map[string]func(n int) string{
	"digits":               func(n int) string { return strings.Repeat("1", n) },
	"a token of digits":    func(n int) string { return "a:b:1." + strings.Repeat("1", n) + "!" },
	"a token of letters":   func(n int) string { return "a:b:1.1" + strings.Repeat("k", n) + "!" },
	"a token, and a digit": func(n int) string { return strings.Repeat("x", n) + ":b:30000.6000h1" },
	"colons and spaces":    func(n int) string { return strings.Repeat(": ", n/2) },
	"limits of digits":     func(n int) string { return "0:3:1000 " + strings.Repeat("1", n) + " !" },
}

type hostileBench struct {
	*bench
	what string
}

// places are where somebody can put a value.
func (b *hostileBench) places() map[string]func(p redis.Pipeliner, value string) {
	const hour = 3_600_000
	now := time.Now().UnixMilli()
	meta := func(p redis.Pipeliner, field, value string) {
		p.HSet(ctx, b.keys[1], "seq", now*1000, field, value)
		p.PExpire(ctx, b.keys[1], time.Hour)
	}
	add := func(key int, prefix string, score float64) func(redis.Pipeliner, string) {
		return func(p redis.Pipeliner, value string) {
			meta(p, "tombstones", strconv.FormatInt(now+hour, 10))
			p.ZAdd(ctx, b.keys[key], redis.Z{Score: score, Member: prefix + value})
			p.PExpire(ctx, b.keys[key], time.Hour)
		}
	}
	places := map[string]func(redis.Pipeliner, string){
		"a waiter":    add(2, "", float64(now)*1000),
		"a heartbeat": add(2, "+", heartbeats+float64(now+hour)),
		"a waiter with a heartbeat": func(p redis.Pipeliner, value string) {
			add(2, "", float64(now)*1000)(p, value)
			add(2, "+", heartbeats+float64(now+hour))(p, value)
		},
		"a tombstone": add(3, "", float64(now+hour)),
	}
	for _, field := range []string{"seq", "ticket", "tombstones", "longer", "limits", "window", "streak", "pass", "upgrade"} {
		places["meta "+field] = func(p redis.Pipeliner, value string) { meta(p, field, value) }
	}
	if b.set.OneHolder {
		places["the holder"] = func(p redis.Pipeliner, value string) { p.Set(ctx, b.keys[0], value, time.Hour) }
		return places
	}
	places["a lease"] = add(0, "", float64(now+hour))
	places["a lease that has expired"] = add(0, "", float64(now-hour))
	places["a fence"] = add(0, "#", float64(now)*1000)
	places["a taking"] = func(p redis.Pipeliner, value string) {
		add(0, "@", -float64(now)*1000)(p, value)
		p.ZAdd(ctx, b.keys[0], redis.Z{Score: -1, Member: "spent"})
	}
	return places
}

// calls are some of each script.
func (b *hostileBench) calls(value string) []hostileCall {
	own, set, fast := b.token("x", 1), b.set, protocol.FastOf(b.set, b.policyArg)
	list := []hostileCall{
		{fast.Acquire, fastArgs(set, own, b.policyArg)},
		{fast.Release, []any{own}},
		{fast.HandOn, []any{own, channelPrefix, protocol.EpochOf(metadataTTL), way}},
		{fast.HandOn, []any{value, channelPrefix, protocol.EpochOf(metadataTTL), way}},
		{fast.Renew, []any{own, ttl}},
		{set.Acquire, acquireArgs(own, ttl, 0, b.policyArg, 0)},
		{set.Acquire, acquireArgs(own, ttl, heartbeatTTL, b.policyArg, 0)},
		{set.Allow, allowArgs(own, b.policyArg)},
		{set.Release, releaseArgs(own, 1000, 1)},
		{set.Renew, renewArgs(own, ttl)},
		{set.Heartbeat, append(heartbeatArgs(0, b.policyArg), own)},
		{set.Limit, limitArgs(b.policyArg, 0, "")},
		// Who breaks a lock names the token that is there.
		{set.Break, []any{value, int64(metadataTTL), 1000, b.policyArg, "broken::"}},
	}
	if set.Downgrade != nil {
		upgrade := token("x", 2) + "u1"
		list = append(list, []hostileCall{
			{set.Acquire, acquireArgs(upgrade, ttl, 0, value, 0)},
			{set.Release, releaseArgs(upgrade, 1000, 1)},
			{set.Heartbeat, append(heartbeatArgs(protocol.HeartbeatRejoin, ""), upgrade, 0)},
			{set.Downgrade, downgradeArgs(value, 1, value)},
		}...)
	}
	for subject := range 4 {
		list = append(list, hostileCall{set.Inspect, []any{subject, 0, 10, value}})
	}
	return slices.DeleteFunc(list, func(c hostileCall) bool { return c.script == nil })
}

type hostileCall struct {
	script *lua.Script
	args   []any
}

// check reports calls that take longer than in proportion.
func (b *hostileBench) check(put func(redis.Pipeliner, string), value func(int) string) {
	b.Helper()
	const short, long, attempts = 1_000, 10_000, 5
	small, large := time.Hour, time.Hour
	for range attempts { // the least of them, since the machine may be busy
		small = min(small, b.took(put, value(short)))
		large = min(large, b.took(put, value(long)))
		if large <= long/short*2*small+5*time.Millisecond {
			return
		}
	}
	b.Fatalf("%s: one call of each script takes %v with %d bytes, %v with %d", b.what, small, short, large, long) // the others would take minutes
}

var evalTime = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+),`)

// took returns how long the server takes for all calls, each while the value is there.
func (b *hostileBench) took(put func(redis.Pipeliner, string), value string) time.Duration {
	b.Helper()
	calls := b.calls(value)
	p := b.rdb.Pipeline()
	p.ConfigResetStat(ctx)
	for _, x := range calls {
		p.FlushDB(ctx)
		put(p, value)
		var keys []string
		for _, key := range x.script.Keys {
			keys = append(keys, b.keys[key])
		}
		p.EvalSha(ctx, x.script.SHA, keys, x.args...)
	}
	stats := p.Info(ctx, "commandstats")
	_, _ = p.Exec(ctx)
	m := evalTime.FindStringSubmatch(stats.Val())
	if m == nil || m[1] != strconv.Itoa(len(calls)) {
		b.Fatalf("%s: not all were run: %v, %q", b.what, stats.Err(), stats.Val())
	}
	us := must.Get(strconv.Atoi(m[2]))(b)
	return max(time.Duration(us), 1) * time.Microsecond
}
