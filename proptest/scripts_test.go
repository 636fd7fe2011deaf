package proptest

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// scriptBench is a server on which scripts run, and what the tests beside a model share.
type scriptBench struct {
	r           *rapid.T
	rdb         *redis.Client
	mini        *miniredis.Miniredis // nil: a real server, whose clock cannot be set
	sub         *redis.PubSub        // the subscription of all keepers
	subscribed  map[string]bool      // keepers with a subscription
	tolerance   int64                // the tolerance for the server's time, in ms
	keys        []string
	state       func() string // of the model
	currentStep string        // the current step
	log         []string      // the steps
}

const (
	scriptWake = "lock:wake:"
	scriptMark = "mark" // a channel with a message at the end of each step
)

var (
	scriptCtx = context.Background()
	keepers   = []string{"a", "b", "c", "mute"}
)

// checkPart is rapid.Check with a fraction of the checks.
func checkPart(t *testing.T, part float64, sequence func(*rapid.T)) {
	checks := flag.Lookup("rapid.checks").Value
	all := checks.String()
	defer func() { _ = checks.Set(all) }()
	n, err := strconv.Atoi(all)
	if err == nil {
		err = checks.Set(strconv.Itoa(max(1, int(part*float64(n)))))
	}
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, sequence)
}

// explore runs sequences until everything in want was reached, or for at most five times this fraction of the
// checks: a rare case is missing from some runs, an unreachable one from all.
func (u *run) explore(part float64, sequence func(*rapid.T), want ...string) {
	u.t.Helper()
	missing := func(what string) bool { return u.tally[what] == 0 }
	for range 5 {
		checkPart(u.t, part, sequence)
		if u.t.Failed() || !isWhole() || !slices.ContainsFunc(want, missing) || flag.Lookup("rapid.seed").Value.String() != "0" {
			break
		}
	}
	u.report(want...)
}

// miniServer starts an embedded server whose clock only advances when it is set.
func miniServer(t *testing.T) (*redis.Client, *miniredis.Miniredis) {
	mini := miniredis.RunT(t)
	mini.SetTime(time.UnixMilli(1_800_000_000_000))
	mini.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, mini
}

// newScriptBench empties the server and subscribes most keepers.
func newScriptBench(r *rapid.T, rdb *redis.Client, mini *miniredis.Miniredis, kind string) *scriptBench {
	if err := rdb.FlushAll(scriptCtx).Err(); err != nil {
		r.Fatal(err)
	}
	b := &scriptBench{r: r, rdb: rdb, mini: mini, subscribed: map[string]bool{}, state: func() string { return "" }}
	for _, key := range []string{"holders", "meta", "queue", "tombstones"} {
		b.keys = append(b.keys, "{lock:x}:"+kind+":"+key)
	}
	if mini == nil {
		b.tolerance = 3000
	}
	b.sub = rdb.Subscribe(scriptCtx, scriptMark)
	b.awaitSubscription()
	for _, k := range keepers[:3] {
		b.listen(k, rapid.IntRange(0, 4).Draw(r, k+" listens") > 0)
	}
	return b
}

// split takes apart what is in the queue: the waiters, in order, and the ms at which their heartbeats lapse. Each has one.
func (b *scriptBench) split(queue []redis.Z) (waiters []redis.Z, lapses map[string]int64) {
	b.r.Helper()
	lapses = map[string]int64{}
	for _, z := range queue {
		if z.Score < protocol.Heartbeats {
			waiters = append(waiters, z)
		} else if token, ok := strings.CutPrefix(z.Member.(string), "+"); ok {
			lapses[token] = int64(z.Score) - protocol.Heartbeats
		}
	}
	for _, z := range waiters {
		if lapses[z.Member.(string)] == 0 {
			b.failf("%s has no heartbeat: %v", z.Member, queue)
		}
	}
	if len(queue) != 2*len(waiters) || len(lapses) != len(waiters) {
		b.failf("there are heartbeats of others than waiters: %v", queue)
	}
	return waiters, lapses
}

func (b *scriptBench) close() { _ = b.sub.Close() }

// time begins a step and returns the server's time.
func (b *scriptBench) time(format string, args ...any) int64 {
	b.r.Helper()
	b.currentStep = fmt.Sprintf(format, args...)
	t, err := b.rdb.Time(scriptCtx).Result()
	if err != nil {
		b.failf("%v", err)
	}
	b.log = append(b.log, fmt.Sprintf("%d: %s", t.UnixMilli(), b.currentStep))
	return t.UnixMilli()
}

func (b *scriptBench) failf(format string, args ...any) {
	b.r.Helper()
	for _, line := range b.log[max(0, len(b.log)-40):] {
		b.r.Log(line)
	}
	b.r.Logf("the model:%s; subscribed: %v", b.state(), b.subscribed)
	b.r.Fatalf("%s: %s", b.currentStep, fmt.Sprintf(format, args...))
}

func (b *scriptBench) eval(s *lua.Script, keys int, args []any) []int64 {
	b.r.Helper()
	return b.evalKeys(s, b.keys[:keys], args)
}

// evalRelease runs release as an engine does: sometimes in the short form, and in the long form unless that has decided it.
func (b *scriptBench) evalRelease(s *lua.Script, token string, tombstone int64, cancel int) []int64 {
	b.r.Helper()
	if tombstone != 0 {
		return b.eval(s, 4, releaseArgs(token, tombstone, cancel))
	}
	lock, queue := b.keys[0], b.keys[2]
	if cancel == 0 && rapid.Bool().Draw(b.r, "short form") {
		got := b.evalKeys(s, []string{lock, queue}, protocol.ReleaseArgs(nil, token, nil, 0, 0, 0))
		if got[0] != 0 || got[1] != 0 {
			return got
		}
		if b.rdb.Exists(scriptCtx, queue).Val() == 0 {
			b.failf("the short form has done nothing, and nobody waits")
		}
	}
	return b.eval(s, 3, releaseArgs(token, 0, cancel))
}

func (b *scriptBench) evalKeys(s *lua.Script, keys []string, args []any) []int64 {
	b.r.Helper()
	v, err := b.rdb.Eval(scriptCtx, s.Text, keys, args...).Result()
	if err != nil {
		b.failf("%v", err)
	}
	return longReply(v)
}

// longReply is the long form of a reply, of which acquire and release have a short one: a fence alone, and a code with what
// else there is to say.
func longReply(v any) (list []int64) {
	switch v := v.(type) {
	case int64:
		if v < 0 {
			return []int64{lua.Refused, 0, -v, 0}
		}
		if v < 1<<20 {
			return []int64{v % 16, v / 16}
		}
		return []int64{lua.Granted, v, 0, 0, 0}
	case []any:
		for _, x := range v {
			list = append(list, x.(int64))
		}
	}
	return list
}

// scriptSettings is the settings of all keepers.
var scriptSettings = protocol.Settings(idle.Milliseconds(), scriptWake, false)

// queueTTL is the argument of the keepers that are not drawn another heartbeat timeout.
var queueTTL = protocol.QueueTTL(heartbeatTimeout.Milliseconds())

// acquireArgs is the arguments of acquire. A heartbeatTTL of 0 is a try.
func acquireArgs(token string, ttl, heartbeatTTL int64, policyArg string, maxWait int64) []any {
	if heartbeatTTL == 0 {
		return protocol.AcquireArgs(nil, token, ttl, policyArg, scriptSettings, nil, nil)
	}
	return protocol.AcquireArgs(nil, token, ttl, policyArg, scriptSettings, protocol.QueueTTL(heartbeatTTL), maxWait)
}

// shortAcquireArgs is the arguments of the short form of acquire.
func shortAcquireArgs(token string, ttl int64, policyArg string) []any {
	policy, settings := protocol.ShortArgs(policyArg, scriptSettings)
	return protocol.AcquireArgs(nil, token, ttl, policy, settings, nil, nil)
}

func releaseArgs(token string, tombstone int64, cancel int) []any {
	return protocol.ReleaseArgs(nil, token, scriptSettings, tombstone, cancel, 0)
}

func renewArgs(token string, ttl int64, exact int) []any {
	return protocol.RenewArgs(nil, token, ttl, exact, scriptSettings, nil)
}

func heartbeatArgs(rejoin int, policyArg string) []any {
	return protocol.HeartbeatArgs(nil, scriptSettings, rejoin, policyArg, queueTTL)
}

func limitArgs(policyArg string, limit int, token string) []any {
	return protocol.LimitArgs(nil, scriptSettings, policyArg, limit, token, 0)
}

func pauseArgs(policyArg string, pause int64) []any {
	return protocol.LimitArgs(nil, scriptSettings, policyArg, 0, "", pause)
}

func (b *scriptBench) near(got, want int64) bool {
	return got-want <= b.tolerance && want-got <= b.tolerance
}

// listen subscribes or unsubscribes a keeper.
func (b *scriptBench) listen(keeper string, subscribes bool) {
	if b.subscribed[keeper] == subscribes {
		return
	}
	b.subscribed[keeper] = subscribes
	var err error
	if subscribes {
		err = b.sub.Subscribe(scriptCtx, scriptWake+keeper)
	} else {
		err = b.sub.Unsubscribe(scriptCtx, scriptWake+keeper)
	}
	if err != nil {
		b.r.Fatal(err)
	}
	b.awaitSubscription()
}

func (b *scriptBench) awaitSubscription() {
	if m, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second); err != nil {
		b.r.Fatal(err)
	} else if _, ok := m.(*redis.Subscription); !ok {
		b.r.Fatalf("%v", m)
	}
}
