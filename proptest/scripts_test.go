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

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// scriptBench runs scripts on a server, as several keepers do.
type scriptBench struct {
	r           *rapid.T
	rdb         *redis.Client
	sub         *redis.PubSub   // the subscription of all keepers
	listening   map[string]bool // keepers with a subscription
	keys        []string
	ran         func(s *lua.Script, args []any, reply any) // called when a script has run
	currentStep string
	log         []string // the steps
}

const (
	scriptWake = "lock:wake:"
	scriptMark = "mark" // a channel with a message at the end of each step
)

var (
	scriptCtx = context.Background()
	keepers   = []string{"a.5", "b.5", "c.5", mute}
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

// newScriptBench empties the server and subscribes most keepers.
func newScriptBench(r *rapid.T, rdb *redis.Client, kind string) *scriptBench {
	if err := rdb.FlushAll(scriptCtx).Err(); err != nil {
		r.Fatal(err)
	}
	b := &scriptBench{r: r, rdb: rdb, listening: map[string]bool{}, ran: func(*lua.Script, []any, any) {}}
	for _, key := range []string{"holders", "meta", "queue", "tombstones"} {
		b.keys = append(b.keys, "{lock:x}:"+kind+":"+key)
	}
	b.sub = rdb.Subscribe(scriptCtx, scriptMark)
	b.awaitSubscription()
	for _, k := range keepers[:3] {
		b.listen(k, rapid.IntRange(0, 4).Draw(r, k+" listens") > 0)
	}
	return b
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
	b.r.Logf("subscribed: %v", b.listening)
	b.r.Fatalf("%s: %s", b.currentStep, fmt.Sprintf(format, args...))
}

// eval runs a script on the keys that its header names.
func (b *scriptBench) eval(s *lua.Script, args []any) []int64 {
	b.r.Helper()
	var keys []string
	for _, key := range s.Keys {
		keys = append(keys, b.keys[key])
	}
	v, err := b.rdb.Eval(scriptCtx, s.Text, keys, args...).Result()
	if err != nil {
		b.failf("%v", err)
	}
	b.ran(s, args, v)
	return longReply(v)
}

// evalFastAcquire runs the fast script that acquires. Its reply is that of acquire, but without what the fast script does not say; nil
// if it has decided nothing.
func (b *scriptBench) evalFastAcquire(set *lua.Set, token string, ttl int64, policyArg string) []int64 {
	b.r.Helper()
	var limits any
	if set.Limit != nil {
		limits = policyArg
	}
	got := b.eval(protocol.FastOf(set, policyArg).Acquire, protocol.AppendArgs(nil, token, ttl, limits, protocol.EpochArg(idle.Milliseconds())))
	if len(got) == 2 {
		return nil
	}
	return got
}

// evalRenew runs the script that renews by so many keys.
func (b *scriptBench) evalRenew(set *lua.Set, keys int, token string, ms int64) []int64 {
	b.r.Helper()
	if keys == 1 {
		return b.eval(set.Fast.Renew, []any{token, ms})
	}
	return b.eval(set.Renew, []any{token, ms, scriptMetadataTTL})
}

// evalRelease releases as a keeper does: sometimes by the fast scripts, and by the general one unless they have decided.
func (b *scriptBench) evalRelease(set *lua.Set, policyArg, token string, tombstone int64) []int64 {
	b.r.Helper()
	undecided := []int64{0, 0}
	fast := protocol.FastOf(set, policyArg)
	if tombstone == 0 && fast.Release != nil {
		if rapid.Bool().Draw(b.r, "fast") {
			if got := b.eval(fast.Release, []any{token}); !slices.Equal(got, undecided) {
				return got
			}
			of, _ := protocol.ParseToken(token)
			if b.rdb.Exists(scriptCtx, b.keys[2]).Val() == 0 && !strings.Contains(of.Flags, "c") {
				b.failf("the fast script has done nothing, and nobody waits")
			}
		}
		if fast.HandOn != nil && rapid.Bool().Draw(b.r, "hand on") {
			args := []any{token, scriptWake, protocol.EpochOf(idle.Milliseconds()), ".5"}
			if got := b.eval(fast.HandOn, args); !slices.Equal(got, undecided) {
				return got
			}
		}
	}
	args := []any{token, scriptMetadataTTL}
	if tombstone > 0 {
		args = append(args, tombstone, 0)
	}
	return b.eval(set.Release, args)
}

// longReply is a reply as a list. That of a fast script that acquires, or of a release, is a number: a fence alone, minus ms, and a code
// with what else there is to say.
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

// scriptMetadataTTL is that of all keepers.
var scriptMetadataTTL = idle.Milliseconds()

// mute is the keeper that does not count on its subscription, and has none.
const mute = "mute.5"

// acquireArgs is the arguments of acquire. A heartbeatTTL of 0 is a try.
func acquireArgs(token string, ttl, heartbeatTTL int64, policyArg string, maxWait int64) []any {
	args := []any{token, ttl, policyArg, scriptMetadataTTL}
	if heartbeatTTL > 0 {
		args = append(args, protocol.QueueTTL(heartbeatTTL), maxWait)
		if strings.HasPrefix(token, mute+":") {
			args = append(args, 1)
		}
	}
	return args
}

// listen subscribes or unsubscribes a keeper.
func (b *scriptBench) listen(keeper string, subscribes bool) {
	if b.listening[keeper] == subscribes {
		return
	}
	b.listening[keeper] = subscribes
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

func yes(is bool) int {
	if is {
		return 1
	}
	return 0
}

// message is a message to a keeper: a fence, or the negative number of ms after which to retry.
type message struct {
	keeper string
	serial int
	number int64
}

// receive returns the messages of the step.
func (b *scriptBench) receive() (list []message) {
	b.r.Helper()
	if err := b.rdb.Publish(scriptCtx, scriptMark, scriptMark).Err(); err != nil {
		b.failf("%v", err)
	}
	for {
		x, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second)
		if err != nil {
			b.failf("%v", err)
		}
		m := x.(*redis.Message)
		if m.Channel == scriptMark {
			return list
		}
		keeper, field := strings.TrimPrefix(m.Channel, scriptWake), strings.Fields(m.Payload)
		for i := 0; i+1 < len(field); i += 2 {
			w := message{keeper: keeper}
			w.serial, _ = strconv.Atoi(field[i])
			w.number, _ = strconv.ParseInt(field[i+1], 10, 64)
			if w.number == 0 || w.serial < 1 {
				b.failf("message %q to %s", m.Payload, keeper)
			}
			list = append(list, w)
		}
	}
}
