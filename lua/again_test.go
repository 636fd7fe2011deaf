package lua_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
)

// WAIT counts what its own connection has written. So one that asks again for what it has must write, also when it asks
// within the same millisecond and there is nothing new: otherwise WAIT would have nothing to wait for.
func TestWhoAsksAgainForWhatItHasWrites(t *testing.T) {
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
		{lua.Semaphore, "c1", perSecond},
		{lua.Semaphore, "hc1", twoAndFour},
	} {
		t.Run(c.set.Kind+c.flags, func(t *testing.T) {
			own := "{lock:x}:" + c.set.Keys + ":"
			b := &bench{t, redistest.Start(t).Client(), []string{own + "holders", own + "meta", own + "queue", own + "beats"}, c.set}
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
