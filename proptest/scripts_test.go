package proptest

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// scriptBench is a server on which scripts run, and what a test of them beside a model stands on.
type scriptBench struct {
	r     *rapid.T
	rdb   *redis.Client
	mini  *miniredis.Miniredis // nil: a real server, whose time cannot be set
	sub   *redis.PubSub        // on which all keepers hear
	hears map[string]bool      // keepers that listen
	slack int64                // ms by which the server may differ
	keys  []string
	state func() string // of the model
	did   string        // the present step
	log   []string      // the steps
}

const (
	scriptWake = "lock:wake:"
	scriptMark = "mark" // a channel on which each step ends
)

var (
	scriptCtx = context.Background()
	keepers   = []string{"a", "b", "c", "mute"}
)

// checkPart is rapid.Check with a part of the sequences.
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

// explore runs sequences until each of what is wanted was reached, or five times as many as a part of the checks have not
// reached it: what is rare is missing from few sequences now and then, and what cannot be reached is missing from all.
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

// miniServer is an embedded server whose clock stands until it is set.
func miniServer(t *testing.T) (*redis.Client, *miniredis.Miniredis) {
	mini := miniredis.RunT(t)
	mini.SetTime(time.UnixMilli(1_800_000_000_000))
	mini.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, mini
}

// newScriptBench empties the server. Most keepers listen.
func newScriptBench(r *rapid.T, rdb *redis.Client, mini *miniredis.Miniredis, kind string) *scriptBench {
	if err := rdb.FlushAll(scriptCtx).Err(); err != nil {
		r.Fatal(err)
	}
	b := &scriptBench{r: r, rdb: rdb, mini: mini, hears: map[string]bool{}, state: func() string { return "" }}
	for _, key := range []string{"holders", "meta", "queue", "heartbeats"} {
		b.keys = append(b.keys, "{lock:x}:"+kind+":"+key)
	}
	if mini == nil {
		b.slack = 3000
	}
	b.sub = rdb.Subscribe(scriptCtx, scriptMark)
	b.confirmed()
	for _, k := range keepers[:3] {
		b.listen(k, rapid.IntRange(0, 4).Draw(r, k+" listens") > 0)
	}
	return b
}

func (b *scriptBench) close() { _ = b.sub.Close() }

// time begins a step and is the time that the server has now.
func (b *scriptBench) time(format string, args ...any) int64 {
	b.r.Helper()
	b.did = fmt.Sprintf(format, args...)
	t, err := b.rdb.Time(scriptCtx).Result()
	if err != nil {
		b.wrong("%v", err)
	}
	b.log = append(b.log, fmt.Sprintf("%d: %s", t.UnixMilli(), b.did))
	return t.UnixMilli()
}

func (b *scriptBench) wrong(format string, args ...any) {
	b.r.Helper()
	for _, line := range b.log[max(0, len(b.log)-40):] {
		b.r.Log(line)
	}
	b.r.Logf("by the model%s; %v listen", b.state(), b.hears)
	b.r.Fatalf("%s: %s", b.did, fmt.Sprintf(format, args...))
}

func (b *scriptBench) eval(s *lua.Script, keys int, args []any) []int64 {
	b.r.Helper()
	v, err := b.rdb.Eval(scriptCtx, s.Text, b.keys[:keys], args...).Int64Slice()
	if err != nil {
		b.wrong("%v", err)
	}
	return v
}

func (b *scriptBench) near(got, want int64) bool {
	return got-want <= b.slack && want-got <= b.slack
}

// listen makes a keeper hear, or not.
func (b *scriptBench) listen(keeper string, hears bool) {
	if b.hears[keeper] == hears {
		return
	}
	b.hears[keeper] = hears
	var err error
	if hears {
		err = b.sub.Subscribe(scriptCtx, scriptWake+keeper)
	} else {
		err = b.sub.Unsubscribe(scriptCtx, scriptWake+keeper)
	}
	if err != nil {
		b.r.Fatal(err)
	}
	b.confirmed()
}

func (b *scriptBench) confirmed() {
	if m, err := b.sub.ReceiveTimeout(scriptCtx, 5*time.Second); err != nil {
		b.r.Fatal(err)
	} else if _, ok := m.(*redis.Subscription); !ok {
		b.r.Fatalf("%v", m)
	}
}
