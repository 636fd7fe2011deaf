package lua_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// WAIT counts what its own connection has written. So a request that is repeated for a lease that it has must write, even
// within the same millisecond and with nothing new: otherwise WAIT would have nothing to wait for.
func TestRepeatedAcquireWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set              *lua.Set
		flags, policyArg string
	}{
		{lua.Mutex, "", ""},
		{lua.Fair, "", ""},
		{lua.Redlock, "", ""},
		{lua.RWLock, "r", ""},
		{lua.RWLock, "w", ""},
		{lua.Semaphore, "h1", three},
		{lua.RateLimit, "c1", "0:3:60000"}, // they stay away for as long as this takes
		{lua.RateLimit, "hc1", twoAndFour},
	} {
		t.Run(c.set.Kind+c.flags, func(t *testing.T) {
			b := newBench(t, redistest.Start(t).Client(), c.set)
			ask := acquireArgs(token("a", 1)+c.flags, ttl, 0, c.policyArg, 0)
			first := b.eval(c.set.Acquire, ask)
			b.code(first, lua.Granted)
			for _, script := range []*lua.Script{c.set.Acquire, c.set.Allow} {
				if script == nil || script == c.set.Allow && c.flags != "c1" {
					continue
				}
				for range 20 {
					before := b.changes()
					again := b.eval(script, ask)
					b.code(again, lua.Granted)
					if again[1] != first[1] {
						t.Fatalf("fence %v, then %v", first[1], again[1])
					}
					if b.changes() == before {
						t.Fatal("nothing was written")
					}
				}
			}
		})
	}
}

var dirty = regexp.MustCompile(`rdb_changes_since_last_save:(\d+)`)

// changes returns how many changes the server has counted.
func (b *bench) changes() int {
	b.Helper()
	text := must.Get(b.rdb.Info(ctx, "persistence").Result())(b)
	m := dirty.FindStringSubmatch(text)
	if m == nil {
		b.Fatalf("no count of changes in %q", text)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// TestScriptsFailOnReadOnlyServer: a reply without a write would be relied on. A waiter would learn again and again that it
// is not queued, and a majority lease that this server's fences continue from its own.
func TestScriptsFailOnReadOnlyServer(t *testing.T) {
	t.Parallel()
	for _, set := range lua.All {
		t.Run(set.Kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Start(t).Client(), set)
			suffix, policyArg := flagsOf(set)
			held, waits := token("a", 1)+suffix, token("a", 2)+suffix
			ask := func(token string, heartbeatTTL int) []any {
				return acquireArgs(token, ttl, heartbeatTTL, policyArg, 0)
			}
			b.listen("a")
			b.code(b.eval(set.Acquire, ask(held, 0)), lua.Granted)
			b.code(b.eval(set.Acquire, ask(waits, heartbeatTTL)), lua.Waiting)
			must.OK(t, b.rdb.Do(ctx, "replicaof", "127.0.0.1", "1").Err())
			heartbeat := func(tokens ...any) []any {
				return append(heartbeatArgs(0, policyArg), tokens...)
			}
			for what, c := range map[string]struct {
				script *lua.Script
				args   []any
			}{
				"acquire of what is held":          {set.Acquire, ask(held, 0)},
				"acquire of what waits":            {set.Acquire, ask(waits, heartbeatTTL)},
				"acquire that waits":               {set.Acquire, ask(token("a", 3)+suffix, heartbeatTTL)},
				"heartbeat of a waiter":            {set.Heartbeat, heartbeat(waits)},
				"heartbeat of an unknown token":    {set.Heartbeat, heartbeat(token("a", 4) + suffix)},
				"heartbeat of a holder":            {set.Heartbeat, heartbeat(held)},
				"heartbeat without tokens":         {set.Heartbeat, heartbeat()},
				"renew, in full":                   {set.Renew, renewArgs(held, ttl, 0)},
				"release":                          {set.Release, releaseArgs(held, 0, 0)},
				"raise_fence":                      {set.RaiseFence, protocol.RaiseFenceArgs(nil, held, int64(1), settings, 0)},
				"release of nothing, to tombstone": {set.Release, releaseArgs(token("a", 5)+suffix, 1000, 1)},
				"allow":                            {set.Allow, allowArgs(token("a", 6)+"c1", "0:3:60000")},
				"release of one that only waits":   {set.Release, releaseArgs(waits, 0, 1)},
				"acquire of what is held, as well": {set.Acquire, ask(held, heartbeatTTL)},
			} {
				if c.script == nil {
					continue
				}
				if v, err := b.run(c.script, c.args...).Slice(); !redis.HasErrorPrefix(err, "READONLY") {
					t.Errorf("%s: %v, %v", what, v, err)
				}
			}
		})
	}
}
