package lua_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// WAIT counts what its own connection has written. So one that asks again for what it has must write, also when it asks
// within the same millisecond and there is nothing new: otherwise WAIT would have nothing to wait for.
func TestRepeatedAcquireWrites(t *testing.T) {
	for _, c := range []struct {
		set          *lua.Set
		flags, extra string
	}{
		{lua.Mutex, "", ""},
		{lua.Fair, "", ""},
		{lua.Redlock, "", ""},
		{lua.RWLock, "r", ""},
		{lua.RWLock, "w", ""},
		{lua.Semaphore, "h1", three},
		{lua.Semaphore, "c1", "0:3:60000"}, // they stay away for as long as this takes
		{lua.Semaphore, "hc1", twoAndFour},
	} {
		t.Run(c.set.Kind+c.flags, func(t *testing.T) {
			own := "{lock:x}:" + c.set.Keys + ":"
			b := &bench{t, redistest.Start(t).Client(), []string{own + "holders", own + "meta", own + "queue", own + "heartbeats"}, c.set}
			ask := lua.AcquireArgs(nil, token("a", 1)+c.flags, ttl, idle, 0, wake, 0, c.extra, 0)
			first := b.eval(c.set.Acquire, 4, ask)
			b.code(first, lua.Granted)
			for range 200 {
				before := b.changes()
				again := b.eval(c.set.Acquire, 4, ask)
				b.code(again, lua.Granted)
				if again[1] != first[1] {
					t.Fatalf("fence %v, then %v", first[1], again[1])
				}
				if b.changes() == before {
					t.Fatal("nothing was written")
				}
			}
		})
	}
}

var dirty = regexp.MustCompile(`rdb_changes_since_last_save:(\d+)`)

// changes is how many changes the server counts.
func (b *bench) changes() int {
	b.Helper()
	text, err := b.rdb.Info(ctx, "persistence").Result()
	if err != nil {
		b.Fatal(err)
	}
	m := dirty.FindStringSubmatch(text)
	if m == nil {
		b.Fatalf("no count of changes in %q", text)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// TestScriptsFailOnReadOnlyServer: what answered there without a write would be believed. A waiter would be told again
// and again that it is not in line, and an affirmed lease that this server's fences go on from its own.
func TestScriptsFailOnReadOnlyServer(t *testing.T) {
	for _, set := range lua.Sets {
		t.Run(set.Kind, func(t *testing.T) {
			own := "{lock:x}:" + set.Keys + ":"
			b := &bench{t, redistest.Start(t).Client(), []string{own + "holders", own + "meta", own + "queue", own + "heartbeats"}, set}
			suffix, extra := map[string]string{"rwlock": "w", "semaphore": "h1"}[set.Kind], ""
			if set == lua.Semaphore {
				extra = "1:0:0"
			}
			held, waits := token("a", 1)+suffix, token("a", 2)+suffix
			ask := func(token string, life int) []any {
				return lua.AcquireArgs(nil, token, ttl, idle, life, wake, 0, extra, 0)
			}
			b.listen("a")
			b.code(b.eval(set.Acquire, 4, ask(held, 0)), lua.Granted)
			b.code(b.eval(set.Acquire, 4, ask(waits, life)), lua.Waiting)
			if err := b.rdb.Do(ctx, "replicaof", "127.0.0.1", "1").Err(); err != nil {
				t.Fatal(err)
			}
			beat := func(tokens ...any) []any {
				return append(lua.HeartbeatArgs(nil, idle, life, wake, 0, 0, extra), tokens...)
			}
			for what, c := range map[string]struct {
				script *lua.Script
				keys   int
				args   []any
			}{
				"acquire of what is held":          {set.Acquire, 4, ask(held, 0)},
				"acquire of what waits":            {set.Acquire, 4, ask(waits, life)},
				"acquire that waits":               {set.Acquire, 4, ask(token("a", 3)+suffix, life)},
				"beat of one in line":              {set.Heartbeat, 4, beat(waits)},
				"beat of one that is not":          {set.Heartbeat, 4, beat(token("a", 4) + suffix)},
				"beat of one that holds":           {set.Heartbeat, 4, beat(held)},
				"beat of nobody":                   {set.Heartbeat, 4, beat()},
				"renew, in full":                   {set.Renew, 2, lua.RenewArgs(nil, held, ttl, idle, 0, wake, 0)},
				"release":                          {set.Release, 4, lua.ReleaseArgs(nil, held, idle, wake, 0, 0, 0)},
				"affirm":                           {set.RaiseFence, 2, lua.RaiseFenceArgs(nil, held, int64(1), idle, 0)},
				"release of what is not, to bury":  {set.Release, 4, lua.ReleaseArgs(nil, token("a", 5)+suffix, idle, wake, 0, 1000, 1)},
				"release of one that only waits":   {set.Release, 4, lua.ReleaseArgs(nil, waits, idle, wake, 0, 0, 1)},
				"acquire of what is held, as well": {set.Acquire, 4, ask(held, life)},
			} {
				if c.script == nil {
					continue
				}
				if v, err := b.rdb.Eval(ctx, c.script.Text, b.keys[:c.keys], c.args...).Slice(); !redis.HasErrorPrefix(err, "READONLY") {
					t.Errorf("%s: %v, %v", what, v, err)
				}
			}
		})
	}
}
