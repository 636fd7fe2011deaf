package lua_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Each script on its own: a state before, one call, the reply and the state after; on the embedded server and on a real one,
// which shows that the two agree.

const (
	ttl, metadataTTL, heartbeatTTL = 30000, 3600000, 6000
	heartbeats                     = protocol.Heartbeats
	channelPrefix                  = "lock:wake:"
	way                            = ".5" // of all keepers: their ids end so
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	parallel.Tests("4") // many wait for servers; those that compute for long are not parallel
	os.Exit(m.Run())
}

var queueTTL = protocol.QueueTTL(heartbeatTTL)

// acquireArgs is the arguments of acquire. A heartbeatTTL of 0 is a try.
func acquireArgs[T int | int64](token string, ttl int, heartbeatTTL T, policyArg string, maxWait T) []any {
	if heartbeatTTL == 0 {
		return []any{token, ttl, policyArg, int64(metadataTTL)}
	}
	return []any{token, ttl, policyArg, int64(metadataTTL), protocol.QueueTTL(int64(heartbeatTTL)), maxWait}
}

// releaseArgs is the arguments of release, as short as a keeper sends them.
func releaseArgs(token string, tombstone int64, cancel int) []any {
	if tombstone == 0 && cancel == 0 {
		return []any{token, int64(metadataTTL)}
	}
	return []any{token, int64(metadataTTL), tombstone, cancel}
}

func renewArgs[T int | int64](token string, ttl T) []any {
	return []any{token, int64(ttl), int64(metadataTTL)}
}

func heartbeatArgs(rejoin int, policyArg string) []any {
	return []any{int64(metadataTTL), rejoin, policyArg, queueTTL}
}

func limitArgs(policyArg string, limit int, token string) []any {
	return []any{int64(metadataTTL), policyArg, limit, token, 0}
}

// bench is a server, and the keys of one lock on it.
type bench struct {
	*testing.T
	rdb  *redis.Client
	keys []string
	set  *lua.Set

	flags, policyArg string // with which only one request at a time holds the lock
}

// The primitives that extend the mutex, those that have a fast script for a hand-off, and those of these that have no limits.
var (
	mutexes       = []*lua.Set{lua.Mutex, lua.Fair, lua.Redlock}
	withHandOn    = []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock, lua.Semaphore}
	withoutLimits = []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock}
)

// newBench is for the lock x.
func newBench(t *testing.T, rdb *redis.Client, set *lua.Set) *bench {
	keys := must.Get(protocol.KeysOf("lock:", "x", set.KeyKind, set.PlainKey))(t)
	flags, policyArg := flagsOf(set)
	return &bench{t, rdb, []string{keys.Lock, keys.Meta, keys.Queue, keys.Tombstones}, set, flags, policyArg}
}

// onServers runs a test of these sets on the embedded server and on a real one.
func onServers(t *testing.T, sets []*lua.Set, test func(b *bench)) {
	for _, set := range sets {
		t.Run(set.Kind, func(t *testing.T) { onBothServers(t, set, test) })
	}
}

func onBothServers(t *testing.T, set *lua.Set, test func(b *bench)) {
	t.Run("embedded", func(t *testing.T) {
		if redistest.All() {
			t.Skip("only real servers are tested")
		}
		m := miniredis.RunT(t)
		m.ClockTTL(true)
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), ReadTimeout: time.Minute, MaxRetries: -1}) // no script is to run twice
		t.Cleanup(func() { _ = rdb.Close() })
		test(newBench(t, rdb, set))
	})
	t.Run("server", func(t *testing.T) {
		test(newBench(t, redistest.Connect(redistest.Start(t)), set))
	})
}

// run runs a script on the keys that its header names.
func (b *bench) run(s *lua.Script, args ...any) *redis.Cmd {
	b.Helper()
	var keys []string
	for _, key := range s.Keys {
		keys = append(keys, b.keys[key])
	}
	return b.rdb.Eval(ctx, s.Text, keys, args...)
}

// fastAcquire runs the fast script that acquires, and returns its reply: the fence, minus ms, or 0 if it decides nothing.
func (b *bench) fastAcquire(token, policyArg string) int64 {
	b.Helper()
	switch v, err := b.run(protocol.FastOf(b.set, policyArg).Acquire, fastArgs(b.set, token, policyArg)...).Result(); v := v.(type) {
	case int64:
		return v
	case []any:
		return v[0].(int64)
	default:
		b.Fatal(err)
		return 0
	}
}

// fastArgs is the arguments of the fast script that acquires.
func fastArgs(set *lua.Set, token, policyArg string) []any {
	fast := protocol.FastOf(set, policyArg)
	var limits, leaseTTL any
	if set.Limit != nil {
		limits = policyArg
	}
	if fast != &set.FastWindow {
		leaseTTL = ttl
	}
	return protocol.AppendArgs(nil, token, leaseTTL, limits, protocol.EpochArg(metadataTTL))
}

func (b *bench) eval(s *lua.Script, args []any) []any {
	b.Helper()
	v, err := b.run(s, args...).Result()
	must.That(b, err == nil, "%s: %v", s.Name, err)
	return long(v)
}

// long is a reply as an array. That of a release, or of a fast script, is a number: a code, and in a release what else there is to say.
func long(v any) []any {
	switch v := v.(type) {
	case int64:
		return []any{v % 16, v / 16}
	case []any:
		return v
	}
	panic(fmt.Sprintf("a reply of type %T", v))
}

func (b *bench) acquire(token string, heartbeatTTL int64) []any {
	b.Helper()
	return b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, b.policyArg, 0))
}

func (b *bench) release(token string, tombstoneTTL int64) []any {
	b.Helper()
	return b.eval(b.set.Release, releaseArgs(token, tombstoneTTL, 0))
}

// renew renews a lease by the script that takes so many keys.
func (b *bench) renew(token string, keys int, ms int64) []any {
	b.Helper()
	if keys == 1 {
		return b.eval(b.set.Fast.Renew, []any{token, ms})
	}
	return b.eval(b.set.Renew, renewArgs(token, ms))
}

// endsIn makes a lease end so soon, as if it had been granted earlier.
func (b *bench) endsIn(token string, ms int64) {
	b.Helper()
	if b.set.OneHolder {
		must.OK(b, b.rdb.PExpire(ctx, b.keys[0], time.Duration(ms)*time.Millisecond).Err())
		return
	}
	end := b.rdb.Time(ctx).Val().UnixMilli() + ms
	must.OK(b, b.rdb.ZAddXX(ctx, b.keys[0], redis.Z{Score: float64(end), Member: token}).Err())
}

// inspect returns a page of so many entries at most, of those behind the place of a token.
func (b *bench) inspect(what int, place int64, most int, token string) []any {
	b.Helper()
	return b.eval(b.set.Inspect, []any{what, place, most, token})
}

func (b *bench) heartbeat(back int, rest ...any) []any {
	b.Helper()
	return b.eval(b.set.Heartbeat, append(heartbeatArgs(back, b.policyArg), rest...))
}

func (b *bench) code(reply []any, want int) {
	b.Helper()
	must.That(b, len(reply) != 0 && reply[0] == int64(want), "reply %v, want code %d", reply, want)
}

// holder, members and expires expect a state: the mutex's holder, the members of a key, and expiries.
func (b *bench) holder(want string) {
	b.Helper()
	got := b.rdb.Get(ctx, b.keys[0]).Val()
	must.That(b, got == want, "the holder is %q, want %q", got, want)
}

func (b *bench) members(key int, want ...string) {
	b.Helper()
	got := b.rdb.ZRange(ctx, b.keys[key], 0, -1).Val()
	if key == 2 {
		got, _ = b.queue()
	}
	must.That(b, slices.Equal(got, want) || len(got)+len(want) == 0, "%s has %v, want %v", b.keys[key], got, want)
}

// queue returns the waiters in order, and when their heartbeats lapse, of which each is of a waiter.
func (b *bench) queue() (waiters []string, lapses map[string]int64) {
	b.Helper()
	lapses = map[string]int64{}
	for _, z := range b.rdb.ZRangeWithScores(ctx, b.keys[2], 0, -1).Val() {
		member := z.Member.(string)
		if z.Score < heartbeats {
			waiters = append(waiters, member)
		} else if token, ok := strings.CutPrefix(member, "+"); !ok || !slices.Contains(waiters, token) {
			b.Fatalf("the queue has %q at %.0f", member, z.Score)
		} else {
			lapses[token] = int64(z.Score) - heartbeats
		}
	}
	return waiters, lapses
}

func (b *bench) expires(keys ...int) {
	b.Helper()
	for _, k := range keys {
		d := b.rdb.PTTL(ctx, b.keys[k]).Val()
		must.That(b, d > 0, "%s: expiry %v", b.keys[k], d)
	}
}

// listen subscribes a keeper.
func (b *bench) listen(keeper string) *redis.PubSub {
	b.Helper()
	sub := b.rdb.Subscribe(ctx, channelPrefix+keeper+way)
	must.Get(sub.Receive(ctx))(b)
	b.Cleanup(func() { _ = sub.Close() })
	return sub
}

func (b *bench) message(sub *redis.PubSub) []string {
	b.Helper()
	m := must.Get(sub.ReceiveTimeout(ctx, 5*time.Second))(b)
	return strings.Fields(m.(*redis.Message).Payload)
}

// token returns a token with the flags of the bench.
func (b *bench) token(keeper string, serial int) string { return token(keeper, serial) + b.flags }

func token(keeper string, serial int) string {
	return fmt.Sprintf("%s:%d:%d.%d", keeper+way, serial, ttl, heartbeatTTL)
}

// TestRevokedGrantNotPublishedToReplica: a message reaches replicas too, but only subscribers of the primary are counted. A
// keeper that is still subscribed at the primary of before a failover must not receive a grant that the script undoes because
// it counts no subscriber: it would rely on it.
func TestRevokedGrantNotPublishedToReplica(t *testing.T) {
	t.Parallel()
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair} {
		t.Run(set.Kind, func(t *testing.T) {
			primary := redistest.Start(t)
			replica := redistest.StartReplica(t, primary)
			b := newBench(t, redistest.Connect(primary), set)
			sub := redistest.Connect(replica).Subscribe(ctx, channelPrefix+"astray"+way)
			defer func() { _ = sub.Close() }()
			must.Get(sub.Receive(ctx))(t)
			b.acquire(token("a", 1), 0)
			b.acquire(token("astray", 1), heartbeatTTL)
			b.release(token("a", 1), 0)
			b.holder("")
			must.OK(t, b.rdb.Publish(ctx, channelPrefix+"astray"+way, "the end").Err())
			m := b.message(sub)
			check.That(t, strings.Join(m, " ") == "the end", "it received %v", m)
		})
	}
}

func TestDeadWaitersSkippedInBoundedSteps(t *testing.T) {
	onServers(t, mutexes, func(b *bench) {
		b.acquire(token("a", 1), 0)
		var dead []redis.Z
		for i := range 1500 {
			dead = append(dead, redis.Z{Score: float64(i + 1), Member: token("dead", i)}, redis.Z{Score: heartbeats + 4e12, Member: "+" + token("dead", i)})
		}
		b.rdb.ZAdd(ctx, b.keys[2], dead...)
		b.acquire(token("live", 1), 100*heartbeatTTL) // it does not lapse, however long this takes
		b.listen("live")
		got := b.release(token("a", 1), 0)
		b.code(got, lua.Granted)
		must.That(b, got[1] == int64(1), "reply %v: more than a thousand waiters were walked past at once", got)
		b.holder("")
		if got := b.heartbeat(0); got[4] != int64(0) {
			b.Errorf("reply %v: still more to admit", got)
		}
		b.holder(token("live", 1))
	})
}

func TestForeignQueueEntriesDropped(t *testing.T) {
	t.Parallel()
	onServers(t, []*lua.Set{lua.Mutex, lua.Fair, lua.Redlock, lua.RWLock}, func(b *bench) {
		holder, waiter := b.token("a", 1), token("live", 1)
		if b.set == lua.RWLock {
			waiter += "r"
		}
		b.code(b.acquire(holder, 0), lua.Granted)
		for i, junk := range []string{"", "x", "a:b", "a:b:c", ":::", "k:1:30000.6000r5!", "k:1:30000.6000u!", "k:1:.5"} {
			b.rdb.ZAdd(ctx, b.keys[2], redis.Z{Score: 1, Member: junk})
			if b.set == lua.RWLock { // which reads the queue further than to the waiter
				b.rdb.ZAdd(ctx, b.keys[2], redis.Z{Score: 6e15 + float64(i), Member: junk + "!"})
			}
		}
		sub := b.listen("live")
		b.code(b.acquire(waiter, heartbeatTTL), lua.Waiting)
		b.code(b.release(holder, 0), lua.Granted)
		m := b.message(sub)
		check.That(b, len(m) == 2 && m[0] == "1", "the waiter was told %v", m)
		b.code(b.renew(waiter, 1, ttl), lua.Granted)
		b.members(2)
	})
}

func TestNotifyHeadIsBounded(t *testing.T) {
	t.Parallel()
	onBothServers(t, lua.Fair, func(b *bench) {
		const short, long = 5 * heartbeatTTL, 10 * heartbeatTTL // none lapses while they come, however long that takes
		brief := func(keeper string, serial int) string {
			return fmt.Sprintf("%s:%d:%d.%d", keeper+way, serial, short, short)
		}
		b.listen("live")
		enter := func(token string) {
			b.eval(b.set.Acquire, acquireArgs(token, short, long, "", 0))
		}
		enter(brief("live", 1))
		enter(brief("live", 2))
		for i := range 250 {
			enter(brief("dead", i))
		}
		b.code(b.release(brief("live", 1), 0), lua.Granted)
		b.holder(brief("live", 2))
		n := b.rdb.ZCard(ctx, b.keys[2]).Val()
		check.That(b, n == 2*150, "%d of 250 waiters without a subscription are left after one script, want 150", n/2)
	})
}

// TestConstantsMatchGo: the codes of replies, and what package protocol knows of the constants.
func TestConstantsMatchGo(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"LONGEST_EPOCH": fmt.Sprint(protocol.EpochOf(1 << 40)), "ENDLESS": "'" + protocol.EndlessLease + "'",
		"HEARTBEATS":       fmt.Sprintf("%.0f", float64(protocol.Heartbeats)),
		"HEARTBEAT_REJOIN": fmt.Sprint(protocol.HeartbeatRejoin), "HEARTBEAT_UNSUBSCRIBED": fmt.Sprint(protocol.HeartbeatUnsubscribed), "QUEUE_GRACE": fmt.Sprint(protocol.QueueTTL(0)),
		"UNSET_CLOCK": fmt.Sprint(protocol.UnsetClock), "LAST_CLOCK": fmt.Sprint(int64(protocol.LastClock)),
	}
	for name, code := range map[string]int{
		"REFUSED": lua.Refused, "GRANTED": lua.Granted, "WAITING": lua.Waiting, "TOMBSTONED": lua.Tombstoned, "UNKNOWN": lua.Unknown, "LEFT": lua.Left, "HELD": lua.Held,
		"CONFLICT": lua.Conflict, "ABOVE_LIMIT": lua.AboveLimit,
	} {
		want[name] = fmt.Sprint(code)
	}
	got := map[string]string{}
	text := must.Get(os.ReadFile("lib/constants.lua"))(t)
	for line := range strings.Lines(string(text)) {
		names, values, found := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "local ")), " = ")
		if !found || !strings.HasPrefix(line, "local ") {
			continue
		}
		list := strings.Split(values, ", ")
		for i, name := range strings.Split(names, ", ") {
			got[name] = list[i]
		}
	}
	for name, value := range want {
		check.That(t, got[name] == value, "%s is %s in Lua and %s in Go", name, got[name], value)
	}
	for _, c := range []struct {
		name  string
		reply int64
		parse func(protocol.ReleaseReply) bool
	}{
		{"RELEASE_MORE", lua.Left, func(r protocol.ReleaseReply) bool { return r.More && !r.QueueEmpty }},
		{"RELEASE_QUEUE_EMPTY", lua.Left, func(r protocol.ReleaseReply) bool { return r.QueueEmpty && !r.More }},
	} {
		added, _ := strconv.ParseInt(got[c.name], 10, 64)
		r, err := protocol.ParseReleaseReply([]int64{c.reply + added})
		check.That(t, err == nil && r.Code == c.reply && c.parse(r), "%s is %s: %+v, %v", c.name, got[c.name], r, err)
	}
	added, _ := strconv.ParseInt(got["RENEW_CONVERTED"], 10, 64)
	if r, err := protocol.ParseFastRenewReply([]int64{lua.Granted + added}); err != nil || !r.Held || !r.Converted {
		t.Errorf("RENEW_CONVERTED is %s: %+v, %v", got["RENEW_CONVERTED"], r, err)
	}
	for name, parse := range map[string]func(protocol.AcquireReply) bool{
		"NOTE_MORE": func(a protocol.AcquireReply) bool { return a.More }, "NOTE_LIMITS": func(a protocol.AcquireReply) bool { return a.LimitsChanged },
	} {
		note, _ := strconv.ParseInt(got[name], 10, 64)
		a, err := protocol.ParseAcquireReply([]int64{lua.Refused, 1, 1, note})
		check.That(t, err == nil && parse(a), "%s is %s: %+v, %v", name, got[name], a, err)
	}
	if a, err := protocol.ParseFastAcquireReply([]int64{0}); got["UNDECIDED"] != "0" || err != nil || !a.Undecided {
		t.Errorf("UNDECIDED is %s: %+v, %v", got["UNDECIDED"], a, err)
	}
}

func TestClockSetBackDoesNotProlongLease(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.Mutex, func(b *bench, _ func(time.Duration)) {
		b.acquire(token("a", 1), 0)
		b.acquire(token("b", 1), heartbeatTTL)
		b.rdb.PExpire(ctx, b.keys[0], time.Hour) // what setting the clock back by an hour does to an expiry
		b.heartbeat(0, token("b", 1))
		if d := b.rdb.PTTL(ctx, b.keys[0]).Val(); d > ttl*time.Millisecond {
			t.Errorf("the lease lasts %v, its ttl is %d ms", d, ttl)
		}
		b.renew(token("a", 1), 2, 3600000) // extended on purpose
		b.renew(token("a", 1), 2, 2*ttl)   // which a later one to less does not undo
		b.heartbeat(0, token("b", 1))
		if d := b.rdb.PTTL(ctx, b.keys[0]).Val(); d < 59*time.Minute {
			t.Errorf("a lease that was extended to an hour was cut to %v", d)
		}
		b.rdb.PExpire(ctx, b.keys[0], 3*time.Hour)
		got := b.heartbeat(0, token("a", 1)) // a holder that did not learn of its grant
		check.That(t, len(got) == 11 && got[8] == int64(lua.Held) && got[10].(int64)-got[1].(int64) <= 3600000,
			"a lease of an hour is reported as %v", got)
	})
}
