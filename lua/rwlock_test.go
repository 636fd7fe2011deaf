package lua_test

import (
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
)

// rwToken returns a token with flags and a number, such as "r", "w16", "u" and "d".
func rwToken(keeper string, serial int, what string) string { return token(keeper, serial) + what }

// onRW runs a test of the read-write lock on both servers. After it, every key must have an expiry.
func onRW(t *testing.T, test func(b *bench)) {
	onBothServers(t, lua.RWLock, func(b *bench) {
		test(b)
		b.allExpire()
	})
}

// atTime runs a test of the read-write lock on the embedded server, whose clock only the test moves.
func atTime(t *testing.T, test func(b *bench, pass func(time.Duration))) {
	atTimeOf(t, lua.RWLock, test)
}

func atTimeOf(t *testing.T, set *lua.Set, test func(b *bench, pass func(time.Duration))) {
	m := miniredis.RunT(t)
	now := time.UnixMilli(1_800_000_000_000)
	m.SetTime(now)
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	own := "{lock:x}:" + set.Kind + ":"
	b := &bench{t, rdb, []string{own + "holders", own + "meta", own + "queue", own + "tombstones"}, set}
	test(b, func(d time.Duration) {
		now = now.Add(d)
		m.SetTime(now)
	})
	b.allExpire()
}

func (b *bench) allExpire() {
	b.Helper()
	for i, k := range b.keys {
		if b.rdb.Exists(ctx, k).Val() == 1 {
			b.expires(i)
		}
	}
}

// convert acquires a lease that replaces another.
func (b *bench) convert(token, origin string, heartbeatTTL int64) []any {
	b.Helper()
	return b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, origin, 0))
}

// wantAcquire acquires, expects a reply code, and returns what follows it.
func (b *bench) wantAcquire(want int, token string, heartbeatTTL int64) []any {
	b.Helper()
	got := b.acquire(token, heartbeatTTL)
	b.code(got, want)
	return got[1:]
}

// held expects these holders, in any order, and nothing else in the lock's key than what belongs to them.
func (b *bench) held(want ...string) {
	b.Helper()
	got := b.rdb.ZRangeArgs(ctx, redis.ZRangeArgs{Key: b.keys[0], Start: "1", Stop: "900000000000000", ByScore: true}).Val()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		b.Fatalf("%v hold it, want %v", got, want)
	}
	for _, member := range b.rdb.ZRange(ctx, b.keys[0], 0, -1).Val() {
		if (member[0] == '#' || member[0] == '+') && !slices.Contains(want, member[1:]) {
			b.Fatalf("%s is left of a lease that is over", member)
		}
	}
}

// waits expects these waiters, in order, each with a heartbeat.
func (b *bench) waits(want ...string) {
	b.Helper()
	b.members(2, want...)
	_, lapses := b.queue()
	for _, token := range want {
		if lapses[token] == 0 {
			b.Fatalf("%s has no heartbeat", token)
		}
	}
}

func (b *bench) fence(token string) int64 {
	b.Helper()
	if score, err := b.rdb.ZScore(ctx, b.keys[0], "#"+token).Result(); err == nil {
		return int64(score)
	}
	return -int64(b.rdb.ZScore(ctx, b.keys[0], "@"+token).Val()) // permits without a lease, whose fence is when they were taken
}

// end returns the ms at which a token's lease ends.
func (b *bench) end(token string) int64 {
	b.Helper()
	return int64(b.rdb.ZScore(ctx, b.keys[0], token).Val())
}

// notified expects one message, which grants leases to these serials with the fences that are stored. It returns the fences.
func (b *bench) notified(sub *redis.PubSub, tokens ...string) []int64 {
	b.Helper()
	m := b.message(sub)
	if len(m) != 2*len(tokens) {
		b.Fatalf("message %v, want one for %v", m, tokens)
	}
	var fences []int64
	for i, token := range tokens {
		fence, err := strconv.ParseInt(m[2*i+1], 10, 64)
		if err != nil || strings.Split(token, ":")[1] != m[2*i] {
			b.Fatalf("message %v, want one for %v", m, tokens)
		}
		if lies := b.fence(token); lies != fence {
			b.Fatalf("message %v, but %s has the fence %d", m, token, lies)
		}
		fences = append(fences, fence)
	}
	return fences
}

// notNotified expects that no message has arrived.
func (b *bench) notNotified(keeper string, sub *redis.PubSub) {
	b.Helper()
	b.rdb.Publish(ctx, channelPrefix+keeper, "mark")
	if m := b.message(sub); len(m) != 1 || m[0] != "mark" {
		b.Fatalf("message %v", m)
	}
}

// unsubscribe ends a keeper's subscription.
func (b *bench) unsubscribe(keeper string, sub *redis.PubSub) {
	b.Helper()
	_ = sub.Close()
	for b.rdb.PubSubNumSub(ctx, channelPrefix+keeper).Val()[channelPrefix+keeper] > 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestReadersShareWriterExcludes(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r1, r2, r3 := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "r")
		w, w2 := rwToken("a", 3, "w16"), rwToken("b", 3, "w16")
		first := b.wantAcquire(lua.Granted, r1, 0)
		second := b.wantAcquire(lua.Granted, r2, 0)
		third := b.wantAcquire(lua.Granted, r3, heartbeatTTL) // a wait that need not
		if f := first[0].(int64); f >= second[0].(int64) || second[0].(int64) >= third[0].(int64) {
			b.Errorf("fences %v, %v, %v", first[0], second[0], third[0])
		}
		if left := b.end(r3) - time.Now().UnixMilli(); left <= ttl-5000 || left > ttl+1000 {
			b.Errorf("the last lease ends in %d ms", left)
		}
		b.held(r1, r2, r3)
		refused := b.wantAcquire(lua.Refused, w, 0)
		if left := refused[1].(int64); left <= ttl-1000 || left > ttl {
			b.Errorf("the last lease is said to end in %d ms", left)
		}
		b.waits()
		for _, r := range []string{r1, r3} {
			b.code(b.release(r, 0), lua.Granted)
		}
		b.wantAcquire(lua.Refused, w, 0)
		b.code(b.release(r2, 0), lua.Granted)
		b.held()
		if got := b.wantAcquire(lua.Granted, w, 0)[0].(int64); got <= third[0].(int64) {
			b.Errorf("fence %d after %v", got, third[0])
		}
		for _, other := range []string{w2, rwToken("a", 4, "r"), rwToken("b", 4, "r")} {
			b.wantAcquire(lua.Refused, other, 0)
		}
		b.held(w)
		b.waits()
		b.code(b.release(w, 0), lua.Granted)
		b.code(b.release(w, 0), lua.Refused)
		b.held()
	})
}

func TestReaderQueuesBehindWaitingWriter(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, w, r2, w2 := rwToken("a", 1, "r"), rwToken("b", 1, "w16"), rwToken("c", 1, "r"), rwToken("c", 2, "w16")
		b.wantAcquire(lua.Granted, r, 0)

		// A writer's try leaves nothing behind.
		b.wantAcquire(lua.Refused, rwToken("b", 0, "w16"), 0)
		b.wantAcquire(lua.Granted, rwToken("b", 9, "r"), 0)
		b.code(b.release(rwToken("b", 9, "r"), 0), lua.Granted)

		sub := b.listen("b")
		wait := b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		if wait[3] != int64(0) || wait[4].(int64) <= 0 {
			b.Errorf("the first waiter: %v", wait)
		}
		b.wantAcquire(lua.Refused, rwToken("c", 9, "r"), 0)
		b.waits(w)
		b.held(r)
		if got := b.wantAcquire(lua.Waiting, r2, heartbeatTTL); got[3] != int64(1) || got[2].(int64) <= wait[2].(int64) {
			b.Errorf("the reader: %v, the writer: %v", got, wait)
		}
		if got := b.wantAcquire(lua.Waiting, w2, heartbeatTTL); got[3] != int64(1) {
			b.Errorf("the second writer: %v", got)
		}
		b.waits(w, w2, r2)
		if again := b.wantAcquire(lua.Waiting, w, heartbeatTTL); again[2] != wait[2] {
			b.Errorf("a repeated request moved from %v to %v", wait[2], again[2])
		}
		b.notNotified("b", sub)

		// It is the writer's turn when the reader has released; and when the writer leaves, the reader need not wait.
		if fence := b.fence(r); b.release(r, 0)[0] != int64(lua.Granted) || b.notified(sub, w)[0] <= fence {
			b.Error("the fence has not risen")
		}
		b.held(w)
		b.waits(w2, r2)
	})
}

func TestReadersAdmittedWhenWriterLeavesQueue(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, w, r2, r3 := rwToken("a", 1, "r"), rwToken("b", 1, "w16"), rwToken("c", 1, "r"), rwToken("c", 2, "r")
		b.wantAcquire(lua.Granted, r, 0)
		b.listen("b")
		sub := b.listen("c")
		b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		b.wantAcquire(lua.Waiting, r2, heartbeatTTL)
		b.wantAcquire(lua.Waiting, r3, heartbeatTTL)
		b.code(b.release(w, 0), lua.Left)
		b.notified(sub, r2, r3)
		b.held(r, r2, r3)
		b.waits()
		b.code(b.release(w, 0), lua.Refused)
	})
}

func TestWriterReleaseAdmitsAllReaders(t *testing.T) {
	onRW(t, func(b *bench) {
		w := rwToken("a", 1, "w16")
		b.wantAcquire(lua.Granted, w, 0)
		fence := b.fence(w)
		subs := map[string]*redis.PubSub{}
		of, all := map[string][]string{}, []string{}
		for i := range 250 {
			k := string(rune('b' + i%3))
			if subs[k] == nil {
				subs[k] = b.listen(k)
			}
			r := rwToken(k, i, "r")
			b.wantAcquire(lua.Waiting, r, 10*heartbeatTTL) // none lapses while they come, however long that takes
			all = append(all, r)
			of[k] = append(of[k], r)
		}
		b.waits(all...)
		got := b.release(w, 0)
		if b.code(got, lua.Granted); got[1] != int64(0) {
			b.Errorf("reply %v", got)
		}
		b.held(all...)
		b.waits()
		for k, sub := range subs {
			fences := b.notified(sub, of[k]...)
			if !slices.IsSorted(fences) || fences[0] <= fence {
				b.Errorf("fences %v after %d", fences, fence)
			}
			b.notNotified(k, sub)
		}
		if d := b.end(all[0]) - b.end(all[249]); d > heartbeatTTL || d < -heartbeatTTL {
			b.Errorf("claims end %d ms apart", d)
		}
	})
}

func TestReadersOfOneKeeperShareAMessage(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w := rwToken("a", 1, "w16")
		b.wantAcquire(lua.Granted, w, 0)
		sb, sc := b.listen("b"), b.listen("c")
		b1, c1, b2 := rwToken("b", 1, "r"), rwToken("c", 1, "r"), rwToken("b", 2, "r")
		for _, r := range []string{b1, c1, b2} {
			b.wantAcquire(lua.Waiting, r, heartbeatTTL)
		}
		b.code(b.release(w, 0), lua.Granted)
		b.notified(sb, b1, b2)
		b.notified(sc, c1)
		b.notNotified("b", sb)
		b.notNotified("c", sc)
	})
}

func TestWriterStreak(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{"w1": "wrrwrww", "w2": "wwrrrww", "w": "wwwwrrr", "w4": "wwwwrrr", "w5": "wwwwrrr"} {
		t.Run(flags, func(t *testing.T) {
			onRW(t, func(b *bench) {
				holder := rwToken("a", 0, flags)
				b.wantAcquire(lua.Granted, holder, 0)
				sub := b.listen("b")
				of := map[string]string{}
				stands := func(serial int, what string) {
					r := rwToken("b", serial, what)
					of[strconv.Itoa(serial)] = r
					b.wantAcquire(lua.Waiting, r, heartbeatTTL)
				}
				stands(1, "r")
				stands(2, "r")
				for i := range 4 {
					stands(10+i, flags)
				}
				held := []string{holder}
				got := ""
				for len(got) < 7 {
					for _, h := range held {
						b.code(b.release(h, 0), lua.Granted)
					}
					held = nil
					m := b.message(sub)
					for i := 0; i < len(m); i += 2 {
						r := of[m[i]]
						held = append(held, r)
						got += strings.TrimPrefix(r, "b:"+m[i]+":30000.6000")[:1]
					}
					if len(got) == 1 { // one more, after those who wait when the first writer has gone in
						stands(3, "r")
					}
					b.held(held...)
				}
				if got != want {
					b.Errorf("served as %s, want %s", got, want)
				}
			})
		})
	}
}

func TestPassCoversOnlyReadersAlreadyWaiting(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w1, w2, w3 := rwToken("a", 1, "w1"), rwToken("b", 1, "w1"), rwToken("b", 2, "w1")
		r1, r2, late := rwToken("c", 1, "r"), rwToken("c", 2, "r"), rwToken("c", 3, "r")
		b.wantAcquire(lua.Granted, w1, 0)
		sb, sc := b.listen("b"), b.listen("c")
		for _, x := range []string{r1, r2, w2, w3} {
			b.wantAcquire(lua.Waiting, x, heartbeatTTL)
		}
		b.release(w1, 0)
		b.notified(sb, w2)
		b.wantAcquire(lua.Waiting, late, heartbeatTTL)
		b.wantAcquire(lua.Refused, rwToken("d", 1, "r"), 0)
		b.release(w2, 0)
		b.notified(sc, r1, r2)
		b.held(r1, r2)
		b.waits(w3, late)
		b.wantAcquire(lua.Refused, rwToken("d", 2, "r"), 0) // the pass is used up
		b.release(r1, 0)
		b.notNotified("b", sb)
		b.release(r2, 0)
		b.notified(sb, w3)
		b.release(w3, 0)
		b.notified(sc, late)
		b.held(late)
		b.waits()
	})
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other := rwToken("a", 1, "r"), rwToken("b", 1, "r")
		u, u2 := rwToken("a", 2, "u"), rwToken("b", 2, "u")
		b.code(b.convert(u, r, 0), lua.Refused) // nothing to upgrade
		b.wantAcquire(lua.Granted, r, 0)

		// The only holder is granted it at once.
		got := b.convert(u, r, heartbeatTTL)
		b.code(got, lua.Granted)
		b.held(u)
		b.waits()
		if again := b.convert(u, r, heartbeatTTL); again[0] != int64(lua.Granted) || again[1] != got[1] {
			b.Errorf("%v was %v when it was repeated", got, again)
		}
		b.wantAcquire(lua.Refused, other, 0)
		b.code(b.release(u, 0), lua.Granted)
		b.code(b.convert(rwToken("a", 3, "u"), u, heartbeatTTL), lua.Refused)

		// With other readers it waits before all writers, and its read lease continues.
		b.wantAcquire(lua.Granted, r, 0)
		b.wantAcquire(lua.Granted, other, 0)
		sub := b.listen("a")
		w, late := rwToken("a", 4, "w16"), rwToken("a", 5, "r")
		b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		b.code(b.convert(u, r, 0), lua.Refused) // only tried
		b.waits(w)
		wait := b.convert(u, r, heartbeatTTL)
		if b.code(wait, lua.Waiting); wait[4] != int64(0) {
			b.Errorf("reply %v", wait)
		}
		b.wantAcquire(lua.Waiting, late, heartbeatTTL)
		b.waits(u, w, late)
		b.held(r, other)
		if again := b.convert(u, r, heartbeatTTL); again[0] != int64(lua.Waiting) || again[3] != wait[3] {
			b.Errorf("%v was %v when it was repeated", wait, again)
		}
		b.code(b.convert(u2, other, heartbeatTTL), lua.Conflict)
		b.code(b.convert(u2, other, 0), lua.Conflict)
		b.waits(u, w, late)
		b.held(r, other)
		b.code(b.renew(r, 1, ttl, 0), lua.Granted)
		b.notNotified("a", sub)
		before := b.fence(other)
		b.code(b.release(other, 0), lua.Granted)
		if f := b.notified(sub, u)[0]; f <= before {
			b.Errorf("fence %d after %d", f, before)
		}
		b.held(u)
		b.waits(w, late)
		b.code(b.release(r, 0), lua.Refused)
		b.held(u)
		b.code(b.release(u, 0), lua.Granted)
		b.notified(sub, w)
		b.code(b.release(w, 0), lua.Granted)
		b.notified(sub, late)
	})
}

func TestUpgradeGrantedByRetryLeavesQueue(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other, u := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "u")
		b.wantAcquire(lua.Granted, r, 0)
		b.wantAcquire(lua.Granted, other, 0)
		b.listen("a")
		b.code(b.convert(u, r, heartbeatTTL), lua.Waiting)
		b.rdb.ZRem(ctx, b.keys[0], other, "#"+other) // its lease has ended
		b.code(b.convert(u, r, heartbeatTTL), lua.Granted)
		b.held(u)
		b.waits()
	})
}

// TestLaterUpgradeOfSameLeaseCounts: the number of an upgrade says which of two is later, not its serial, which is random.
func TestLaterUpgradeOfSameLeaseCounts(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other := rwToken("a", 1, "r"), rwToken("b", 1, "r")
		upgrade := func(serial string, n int) string { return fmt.Sprintf("a:%s:%d.%du%d", serial, ttl, heartbeatTTL, n) }
		first, later := upgrade("zzzzzzzz", 9), upgrade("00000000", 10)
		b.wantAcquire(lua.Granted, r, 0)
		b.wantAcquire(lua.Granted, other, 0)
		b.listen("a")
		b.code(b.convert(first, r, heartbeatTTL), lua.Waiting)
		b.code(b.convert(later, r, heartbeatTTL), lua.Waiting)
		b.waits(later)
		b.code(b.convert(first, r, heartbeatTTL), lua.Conflict) // a late copy
		b.waits(later)
	})
}

func TestUpgradeRefusedWithoutReadLease(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other, u, w := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "u"), rwToken("b", 2, "w16")
		b.wantAcquire(lua.Granted, r, 0)
		b.wantAcquire(lua.Granted, other, 0)
		sa, sb := b.listen("a"), b.listen("b")
		b.code(b.convert(u, r, heartbeatTTL), lua.Waiting)
		b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		b.code(b.release(r, 0), lua.Granted) // ends the read lease, which is not the last
		b.waits(w)
		b.code(b.release(other, 0), lua.Granted)
		b.notified(sb, w)
		b.notNotified("a", sa)
		b.held(w)
		got := b.heartbeat(0, u)
		if len(got) != 11 || got[8] != int64(lua.Refused) {
			b.Errorf("reply %v", got)
		}
	})
}

func TestExpiredUpgradeIsNoConflict(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other, third := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("c", 1, "r")
		u, u2 := rwToken("a", 2, "u"), rwToken("b", 2, "u")
		for _, x := range []string{r, other, third} {
			b.wantAcquire(lua.Granted, x, 0)
		}
		b.listen("a")
		sub := b.listen("b")
		b.code(b.convert(u, r, 1), lua.Waiting)
		time.Sleep(5 * time.Millisecond)
		b.code(b.convert(u2, other, heartbeatTTL), lua.Waiting)
		b.members(2, u2)
		b.release(third, 0)
		b.notNotified("b", sub)
		b.release(r, 0)
		b.notified(sub, u2)
		b.held(u2)
	})
}

func TestRejoiningUpgradeConflicts(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other, u, u2 := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "u"), rwToken("b", 2, "u")
		b.wantAcquire(lua.Granted, r, 0)
		b.wantAcquire(lua.Granted, other, 0)
		b.listen("a")
		sub := b.listen("b")
		wait := b.eval(b.set.Acquire, acquireArgs(u, ttl, 1, r, 0))
		b.code(wait, lua.Waiting)
		time.Sleep(5 * time.Millisecond)
		b.code(b.convert(u2, other, heartbeatTTL), lua.Waiting)
		for _, place := range []any{wait[3], 0} {
			if got := b.heartbeat(1, u, place); len(got) != 11 || got[8] != int64(lua.Conflict) {
				b.Errorf("rejoin: %v", got)
			}
			b.waits(u2)
		}
		b.held(r, other)
		b.notNotified("b", sub)
		b.code(b.release(r, 0), lua.Granted)
		b.notified(sub, u2)
		b.held(u2)
		b.code(b.release(u2, 0), lua.Granted)
		b.held()
		b.waits()
	})
}

func TestUpgradeWithExpiredReadLeaseIsNoConflict(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other, third, u, u2 := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("c", 1, "r"), rwToken("a", 2, "u"), rwToken("b", 2, "u")
		for _, x := range []string{r, other, third} {
			b.wantAcquire(lua.Granted, x, 0)
		}
		b.listen("a")
		b.listen("b")
		b.code(b.convert(u, r, heartbeatTTL), lua.Waiting)
		b.rdb.ZRem(ctx, b.keys[0], r, "#"+r) // it has ended
		b.code(b.convert(u2, other, heartbeatTTL), lua.Waiting)
		b.waits(u2)
	})
}

func TestUndeliveredUpgradeRestoresReadLease(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other, u := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "u")
		b.wantAcquire(lua.Granted, r, 0)
		b.wantAcquire(lua.Granted, other, 0)
		b.code(b.renew(r, 2, 2*ttl, 1), lua.Granted)
		sub := b.listen("a")
		fence, end := b.fence(r), b.end(r)
		b.code(b.convert(u, r, heartbeatTTL), lua.Waiting)
		b.unsubscribe("a", sub)
		b.code(b.release(other, 0), lua.Granted)
		b.held(r)
		b.waits()
		if f, at := b.fence(r), b.end(r); f != fence || at != end {
			b.Errorf("fence %d and end %d became %d and %d", fence, end, f, at)
		}
		if at := int64(b.rdb.ZScore(ctx, b.keys[0], "+"+r).Val()); at != 8000000000000000+2*ttl {
			b.Errorf("it is not known any more that the lease was extended: %d", at)
		}
		b.allExpire()

		// It rejoins at its place, and gets what it requested.
		got := b.heartbeat(1, u, 0)
		if len(got) != 11 || got[8] != int64(lua.Waiting) {
			// As the only holder, it is granted in the reply.
			got = got[4:]
		}
		if got[len(got)-3] != int64(lua.Granted) || got[len(got)-2].(int64) <= fence {
			b.Errorf("reply %v", got)
		}
		b.held(u)
		b.waits()
	})
}

func TestDowngrade(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w, d, r1, r2 := rwToken("a", 1, "w16"), rwToken("a", 2, "d"), rwToken("b", 1, "r"), rwToken("b", 2, "r")
		b.code(b.convert(d, w, heartbeatTTL), lua.Refused) // nothing to downgrade
		fence := b.wantAcquire(lua.Granted, w, 0)[0].(int64)
		sub := b.listen("b")
		b.wantAcquire(lua.Waiting, r1, heartbeatTTL)
		b.wantAcquire(lua.Waiting, r2, heartbeatTTL)
		got := b.convert(d, w, heartbeatTTL)
		b.code(got, lua.Granted)
		if f := b.notified(sub, r1, r2); f[0] <= got[1].(int64) || got[1].(int64) <= fence {
			b.Errorf("fences %v after %v after %d", f, got[1], fence)
		}
		b.held(d, r1, r2)
		b.waits()
		if again := b.convert(d, w, heartbeatTTL); again[0] != int64(lua.Granted) || again[1] != got[1] {
			b.Errorf("%v was %v when it was repeated", got, again)
		}
		b.code(b.release(w, 0), lua.Refused)
		b.code(b.convert(rwToken("a", 3, "d"), d, heartbeatTTL), lua.Refused) // it is a read lease already
		b.held(d, r1, r2)
		b.release(r1, 0)
		b.release(r2, 0)

		// Upgrade again; and while a writer waits, no reader is admitted.
		u := rwToken("a", 4, "u")
		b.code(b.convert(u, d, 0), lua.Granted)
		w2 := rwToken("b", 3, "w16")
		b.wantAcquire(lua.Waiting, w2, heartbeatTTL)
		b.wantAcquire(lua.Waiting, r1, heartbeatTTL)
		d2 := rwToken("a", 5, "d")
		b.code(b.convert(d2, u, heartbeatTTL), lua.Granted)
		b.held(d2)
		b.waits(w2, r1)
		b.notNotified("b", sub)
		b.release(d2, 0)
		b.notified(sub, w2)
	})
}

func TestDeadWaitingWriterBlocksNobody(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, w, u := rwToken("a", 1, "r"), rwToken("dead", 1, "w16"), rwToken("dead", 3, "u")
		b.wantAcquire(lua.Granted, r, 0)
		dead := rwToken("dead", 2, "r")
		b.wantAcquire(lua.Granted, dead, 0)
		b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		b.code(b.convert(u, dead, heartbeatTTL), lua.Waiting)
		b.waits(u, w)
		r2 := rwToken("b", 1, "r")
		b.wantAcquire(lua.Granted, r2, 0)
		b.held(r, r2, dead)
		b.waits()

		// A waiter that may not subscribe learns of a grant by its heartbeat, so it counts as reachable.
		mute := rwToken("mute", 1, "ws16")
		b.wantAcquire(lua.Waiting, mute, heartbeatTTL)
		b.wantAcquire(lua.Refused, rwToken("b", 2, "r"), 0)
		for _, x := range []string{r, r2, dead} {
			b.code(b.release(x, 0), lua.Granted)
		}
		b.held(mute)
		if got := b.heartbeat(0, mute); len(got) != 11 || got[8] != int64(lua.Held) || got[9] != b.fence(mute) {
			b.Errorf("reply %v", got)
		}
	})
}

func TestWaiterWithoutSubscriptionStaysQueued(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		short := "a:1:1000.1000r"
		b.eval(b.set.Acquire, acquireArgs(short, 1000, 0, "", 0))
		first, mute := rwToken("b", 1, "w16"), rwToken("mute", 1, "ws16")
		b.listen("b")
		b.wantAcquire(lua.Waiting, first, heartbeatTTL)
		b.wantAcquire(lua.Waiting, mute, heartbeatTTL)
		b.code(b.release(first, 0), lua.Left)
		b.waits(mute)
	})
}

func TestUnreachableWriterNotCountedInStreak(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w, dead, live, r := rwToken("a", 1, "w16"), rwToken("dead", 1, "w2"), rwToken("b", 1, "w2"), rwToken("c", 1, "r")
		b.wantAcquire(lua.Granted, w, 0)
		b.wantAcquire(lua.Waiting, r, heartbeatTTL)
		b.wantAcquire(lua.Waiting, dead, heartbeatTTL)
		b.wantAcquire(lua.Waiting, live, heartbeatTTL)
		sub := b.listen("b")
		b.release(w, 0)
		b.notified(sub, live)
		b.held(live)
		if s := b.rdb.HGet(ctx, b.keys[1], "streak").Val(); s != "1" {
			b.Errorf("%s writers have passed the reader, it was one", s)
		}
		if b.rdb.HExists(ctx, b.keys[1], "pass").Val() {
			b.Error("there is a pass")
		}
	})
}

func TestTryLockDoesNotOvertake(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w, r := rwToken("a", 1, "w16"), rwToken("b", 1, "r")
		b.wantAcquire(lua.Granted, w, 0)
		sub := b.listen("b")
		b.wantAcquire(lua.Waiting, r, heartbeatTTL)
		b.rdb.Del(ctx, b.keys[0]) // the writer's lease has ended, and the reader has not asked yet
		b.wantAcquire(lua.Refused, rwToken("c", 1, "w16"), 0)
		b.notified(sub, r)
		b.held(r)
		b.waits()

		b.wantAcquire(lua.Refused, rwToken("c", 2, "w16"), 0)
		b.code(b.release(r, 0), lua.Granted)
		b.wantAcquire(lua.Granted, rwToken("c", 3, "w16"), 0)
	})
}

func TestTryLockOvertakesNoReader(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w, w1, try := rwToken("a", 1, "w16"), rwToken("b", 1, "w1"), rwToken("c", 1, "w1")
		b.wantAcquire(lua.Granted, w, 0)
		sub := b.listen("b")
		b.wantAcquire(lua.Waiting, w1, heartbeatTTL)
		b.rdb.Del(ctx, b.keys[0]) // its lease has ended
		b.wantAcquire(lua.Refused, try, 0)
		b.notified(sub, w1)
		b.wantAcquire(lua.Waiting, rwToken("dead", 1, "r"), heartbeatTTL)
		b.rdb.Del(ctx, b.keys[0])
		b.wantAcquire(lua.Granted, try, 0) // the reader is not there
		b.held(try)
		b.waits()
		if got := b.rdb.HMGet(ctx, b.keys[1], "streak", "pass").Val(); got[0] != nil && got[0] != "0" || got[1] != nil {
			b.Errorf("streak and pass are %v, no reader was passed", got)
		}
	})
}

func TestTombstonedReadersAndWritersRefused(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other := rwToken("a", 1, "r"), rwToken("b", 1, "r")
		for i, x := range []string{r, rwToken("a", 2, "w16"), rwToken("a", 3, "u"), rwToken("a", 4, "d")} {
			b.code(b.release(x, 60000), lua.Refused)
			b.code(b.convert(x, other, 0), lua.Tombstoned)
			b.code(b.convert(x, other, heartbeatTTL), lua.Tombstoned)
			if got := b.heartbeat(1, x, 0); len(got) != 11 || got[8] != int64(lua.Tombstoned) {
				b.Errorf("%d, rejoin: %v", i, got)
			}
		}
		b.held()
		b.members(2)
		b.wantAcquire(lua.Granted, other, 0)
		b.code(b.release(other, 60000), lua.Granted)
		b.wantAcquire(lua.Tombstoned, other, 0)
	})
}

func TestRWLockHeartbeats(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w, w2, r1, r2 := rwToken("a", 1, "w16"), rwToken("b", 1, "w16"), rwToken("b", 2, "r"), rwToken("b", 3, "r")
		b.wantAcquire(lua.Granted, w, 0)
		place := map[string]any{}
		for _, x := range []string{r1, w2, r2} {
			place[x] = b.wantAcquire(lua.Waiting, x, heartbeatTTL)[2]
		}
		got := b.heartbeat(0, r2, r1, w2, rwToken("b", 4, "r"), w)
		want := []any{int64(4), int64(lua.Unknown), int64(0), int64(0), int64(5), int64(lua.Held), b.fence(w), b.end(w)}
		if !slices.Equal(got[7:], want) {
			b.Errorf("reply %v, want %v in it", got, want)
		}
		if got[5] != int64(3) || got[6] != int64(0) || got[3].(int64) <= 0 {
			b.Errorf("the first of them: %v", got)
		}

		// A request after the lock has become free is granted in the reply: the writer before the readers.
		b.rdb.Del(ctx, b.keys[0])
		got = b.heartbeat(0, r1, r2, w2)
		if len(got) != 11 || got[7] != int64(3) || got[8] != int64(lua.Granted) || got[10].(int64)-got[1].(int64) != heartbeatTTL {
			b.Fatalf("reply %v", got)
		}
		b.held(w2)
		b.rdb.Del(ctx, b.keys[0])
		got = b.heartbeat(0, r2, r1)
		if len(got) != 15 || got[8] != int64(lua.Granted) || got[12] != int64(lua.Granted) || got[9].(int64) <= got[13].(int64) {
			b.Fatalf("reply %v", got)
		}
		b.held(r1, r2)
		b.waits()

		// Each rejoins at its old place.
		b.rdb.Del(ctx, b.keys[0])
		b.wantAcquire(lua.Granted, w, 0)
		late := rwToken("b", 5, "r")
		b.wantAcquire(lua.Waiting, late, heartbeatTTL)
		r1, r2, w2 = rwToken("c", 1, "r"), rwToken("c", 2, "r"), rwToken("c", 3, "w16")
		got = b.heartbeat(1, r2, place[rwToken("b", 3, "r")], w2, place[rwToken("b", 1, "w16")], r1, 0)
		if got[8] != int64(lua.Waiting) || got[9] != place[rwToken("b", 3, "r")] || got[13] != place[rwToken("b", 1, "w16")] {
			b.Fatalf("reply %v", got)
		}
		b.waits(w2, r2, late, r1)
	})
}

func TestRenewReadAndWriteLeases(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, other := rwToken("a", 1, "r"), rwToken("b", 1, "r")
		b.code(b.renew(r, 1, ttl, 0), lua.Refused)
		b.held()
		fence := b.wantAcquire(lua.Granted, r, 0)[0]
		b.wantAcquire(lua.Granted, other, 0)
		lasts := func(token string, ms int64) {
			b.Helper()
			now := b.rdb.Time(ctx).Val().UnixMilli()
			if left := b.end(token) - now; left > ms || left < ms-1000 {
				b.Errorf("the lease lasts %d ms, want %d", left, ms)
			}
		}
		for _, step := range []struct {
			keys  int
			ms    int64
			exact int
			lasts int64
		}{
			{1, 2 * ttl, 0, 2 * ttl},
			{1, ttl, 0, 2 * ttl}, // a late copy
			{2, ttl, 1, ttl},
			{1, 1000, 0, ttl},
			{2, 5000, 1, 5000},
			{1, ttl, 0, ttl},
		} {
			got := b.renew(r, step.keys, step.ms, step.exact)
			b.code(got, lua.Granted)
			if step.keys == 2 && got[1] != fence || step.keys == 1 && got[1] != int64(0) {
				b.Errorf("fence %v became %v", fence, got[1])
			}
			lasts(r, step.lasts)
			lasts(other, ttl)
			lasting, _ := b.rdb.PExpireTime(ctx, b.keys[0]).Result()
			if end := lasting.Milliseconds(); end < b.end(r)-1 || end < b.end(other)-1 { // the script began up to a ms before
				b.Errorf("the leases are kept until %d, and last until %d and %d", end, b.end(r), b.end(other))
			}
		}
		b.code(b.renew(rwToken("a", 2, "r"), 2, ttl, 1), lua.Refused)
	})
}

func TestExpiredLeaseIgnored(t *testing.T) {
	t.Parallel()
	atTime(t, func(b *bench, pass func(time.Duration)) {
		r, other, w := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("c", 1, "w16")
		b.wantAcquire(lua.Granted, r, 0)
		pass(time.Millisecond)
		b.wantAcquire(lua.Granted, other, 0)
		b.code(b.renew(other, 1, 2*ttl, 0), lua.Granted)
		pass(ttl*time.Millisecond - 2*time.Millisecond)
		b.code(b.renew(r, 1, 1, 0), lua.Granted) // it has 1 ms left
		if got := b.eval(b.set.Inspect, protocol.InspectArgs(nil, protocol.InspectHolders, 0, 10, "")); got[0] != int64(2) || got[4] != int64(1) {
			b.Errorf("holders %v", got)
		}
		pass(time.Millisecond)
		if got := b.eval(b.set.Inspect, protocol.InspectArgs(nil, protocol.InspectHolders, 0, 10, "")); got[0] != int64(1) || got[2] != other {
			b.Errorf("holders %v", got)
		}
		b.code(b.renew(r, 1, ttl, 1), lua.Refused)
		b.code(b.convert(rwToken("a", 2, "u"), r, heartbeatTTL), lua.Refused)
		if got := b.heartbeat(0, r); got[8] != int64(lua.Unknown) {
			b.Errorf("reply %v", got)
		}
		b.code(b.convert(rwToken("b", 2, "u"), other, 0), lua.Granted) // it is alone
		b.held(rwToken("b", 2, "u"))
		pass(ttl * time.Millisecond)
		b.code(b.release(rwToken("b", 2, "u"), 0), lua.Refused)
		fence := b.wantAcquire(lua.Granted, r, 0)[0].(int64)
		pass(ttl * time.Millisecond)
		b.code(b.convert(rwToken("a", 3, "d"), r, heartbeatTTL), lua.Refused)
		if got := b.wantAcquire(lua.Granted, w, 0)[0].(int64); got <= fence {
			b.Errorf("fence %d after %d", got, fence)
		}
		b.held(w)
		pass(ttl*time.Millisecond + time.Hour)
		for _, k := range b.keys {
			if k != b.keys[1] && b.rdb.Exists(ctx, k).Val() != 0 {
				b.Errorf("%s is left", k)
			}
		}
	})
}

func TestUpgradeGrantedWhenOtherLeasesExpire(t *testing.T) {
	t.Parallel()
	atTime(t, func(b *bench, pass func(time.Duration)) {
		r, other, u := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "u")
		b.wantAcquire(lua.Granted, r, 0)
		b.wantAcquire(lua.Granted, other, 0)
		sub := b.listen("a")
		b.code(b.convert(u, r, heartbeatTTL), lua.Waiting)
		for range 6 {
			pass(5 * time.Second)
			b.code(b.renew(r, 1, ttl, 0), lua.Granted)
			if got := b.heartbeat(0, u); len(got) > 7 {
				if got[8] != int64(lua.Granted) || b.rdb.Time(ctx).Val().UnixMilli() < b.end(other) {
					b.Errorf("reply %v", got)
				}
			}
		}
		b.held(u)
		b.waits()
		b.notNotified("a", sub)
		// The unconfirmed lease is no shorter than the one that it replaces.
		if got := b.wantAcquire(lua.Refused, rwToken("c", 1, "r"), 0); got[1] != int64(ttl) {
			b.Errorf("the claim is said to end in %v ms", got[1])
		}
		b.held(u)
	})
}

func TestClockSetBackDoesNotProlongReadLeases(t *testing.T) {
	t.Parallel()
	atTime(t, func(b *bench, pass func(time.Duration)) {
		r, longer, w := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("c", 1, "w16")
		fence := b.wantAcquire(lua.Granted, r, 0)[0].(int64)
		b.wantAcquire(lua.Granted, longer, 0)
		b.code(b.renew(longer, 2, 3600000, 1), lua.Granted)
		b.listen("c")
		b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		pass(-2 * time.Hour)
		b.heartbeat(0, w)
		now := b.rdb.Time(ctx).Val().UnixMilli()
		if left := b.end(r) - now; left != ttl {
			b.Errorf("the lease lasts %d ms, its ttl is %d", left, ttl)
		}
		if left := b.end(longer) - now; left != 3600000 {
			b.Errorf("a lease that was extended to an hour lasts %d ms", left)
		}
		if got := b.wantAcquire(lua.Waiting, rwToken("c", 2, "r"), heartbeatTTL); got[1].(int64) < fence {
			b.Errorf("the sequence went back: %v", got)
		}
		b.code(b.release(w, 0), lua.Left)
		if f := b.wantAcquire(lua.Granted, rwToken("c", 3, "r"), 0)[0].(int64); f <= fence {
			b.Errorf("fence %d after %d", f, fence)
		}
		b.code(b.release(longer, 0), lua.Granted)
		b.code(b.renew(r, 1, 2*ttl, 0), lua.Granted) // without metadata no longer ttl is recorded
		b.heartbeat(0)
		if left := b.end(r) - now; left != ttl {
			b.Errorf("the lease lasts %d ms, its ttl is %d", left, ttl)
		}
		b.code(b.renew(r, 1, 2*ttl, 0), lua.Granted)
		got := b.heartbeat(0, r) // a holder that did not learn of its grant
		if len(got) != 11 || got[8] != int64(lua.Held) || got[10] != now+ttl || b.end(r) != now+ttl {
			b.Errorf("the lease is reported as %v, its ttl is %d", got, ttl)
		}
	})
}

func TestWriterAdmittedBeforeSweepEnds(t *testing.T) {
	atTime(t, func(b *bench, pass func(time.Duration)) {
		for i := range 250 {
			b.wantAcquire(lua.Granted, rwToken("a", i, "r"), 0)
		}
		last := rwToken("b", 1, "r")
		pass(ttl/2*time.Millisecond + time.Millisecond)
		b.wantAcquire(lua.Granted, last, 0)
		pass(ttl / 2 * time.Millisecond)
		b.wantAcquire(lua.Refused, rwToken("c", 1, "w16"), 0) // sweeps a hundred
		b.code(b.release(last, 0), lua.Granted)
		b.wantAcquire(lua.Granted, rwToken("c", 2, "w16"), 0)
		b.wantAcquire(lua.Refused, rwToken("c", 3, "r"), 0)
		b.held(rwToken("c", 2, "w16"))
	})
}

func TestInspectReadersPagination(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		inspect := func(what int, after int64, most int, token string) []any {
			b.Helper()
			return b.eval(b.set.Inspect, protocol.InspectArgs(nil, what, after, most, token))
		}
		var all []string
		for i := range 7 {
			r := rwToken("a", i, "r")
			b.eval(b.set.Acquire, acquireArgs(r, ttl+100*i, 0, "", 0))
			all = append(all, r)
		}
		var seen []string
		for place, last := int64(0), ""; ; {
			got := inspect(protocol.InspectHolders, place, 3, last)
			if int(got[0].(int64))*4 != len(got)-2 || got[1] != int64(len(all)) {
				b.Fatalf("reply %v", got)
			}
			for i := 2; i < len(got); i += 4 {
				last, place = got[i].(string), got[i+3].(int64)
				seen = append(seen, last)
				if left := got[i+2].(int64); got[i+1] != b.fence(last) || left <= 0 || left > ttl+600 {
					b.Errorf("holder %v", got[i:i+4])
				}
			}
			if got[0].(int64) < 3 {
				break
			}
		}
		if !slices.Equal(seen, all) {
			b.Errorf("holders %v, want %v", seen, all)
		}

		b.listen("b")
		u, w1, w2, r := rwToken("b", 1, "u"), rwToken("b", 2, "w16"), rwToken("b", 3, "w"), rwToken("b", 4, "r")
		for _, x := range []string{r, w1, w2} {
			if x == r {
				b.wantAcquire(lua.Waiting, w1, heartbeatTTL)
				b.wantAcquire(lua.Waiting, r, heartbeatTTL)
				continue
			}
			b.wantAcquire(lua.Waiting, x, heartbeatTTL)
		}
		b.code(b.convert(u, all[0], heartbeatTTL), lua.Waiting)
		seen = nil
		after := int64(0)
		for {
			got := inspect(protocol.InspectWaiters, after, 3, "")
			for i := 1; i < len(got); i += 4 {
				seen = append(seen, got[i].(string))
				after = got[i+1].(int64)
				if waited := got[i+2].(int64); waited < 0 || waited > 10000 || got[i+3].(int64) <= 0 || got[i+3].(int64) > heartbeatTTL {
					b.Errorf("waiter %v", got[i:i+4])
				}
			}
			if got[0].(int64) < 3 {
				break
			}
		}
		if want := []string{u, w1, w2, r}; !slices.Equal(seen, want) {
			b.Errorf("waiters %v, want %v", seen, want)
		}
	})
}

// TestInspectPagesGoOnWhereTheyEnded checks that reading the holders page by page lists everybody who is there all the time, though
// others end, begin and are renewed between the pages, and though many leases end in the same ms.
func TestInspectPagesGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	for _, different := range []int{0, 1, 3} { // ms between the ends of leases
		onRW(t, func(b *bench) {
			var all []string
			end := b.rdb.Time(ctx).Val().UnixMilli() + time.Minute.Milliseconds()
			for i := range 30 {
				all = append(all, rwToken("a", i, "r"))
				b.eval(b.set.Acquire, acquireArgs(all[i], ttl, 0, "", 0))
				b.rdb.ZAdd(ctx, b.keys[0], redis.Z{Score: float64(end + int64(different*i/3)), Member: all[i]})
			}
			slices.Sort(all) // as the server has those of the same ms
			listed := map[string]bool{}
			var gone []string
			for place, last, pages := int64(0), "", 0; ; pages++ {
				got := b.eval(b.set.Inspect, protocol.InspectArgs(nil, protocol.InspectHolders, place, 4, last))
				if pages > 40 {
					b.Fatal("there is no end")
				}
				for i := 2; i < len(got); i += 4 {
					last, place = got[i].(string), got[i+3].(int64)
					listed[last] = true
				}
				if got[0].(int64) < 4 {
					break
				}
				switch pages % 4 {
				case 0: // the first ones end
					first := b.rdb.ZRangeArgs(ctx, redis.ZRangeArgs{Key: b.keys[0], Start: "1", Stop: "+inf", ByScore: true, Count: 2}).Val()
					gone = append(gone, first...)
					b.rdb.ZRem(ctx, b.keys[0], first[0], first[1])
				case 1: // the last one that was listed ends
					gone = append(gone, last)
					b.rdb.ZRem(ctx, b.keys[0], last)
				case 2: // it is renewed
					b.rdb.ZAdd(ctx, b.keys[0], redis.Z{Score: float64(end + 5000), Member: last})
				case 3: // another one begins, before the place
					b.rdb.ZAdd(ctx, b.keys[0], redis.Z{Score: float64(end - 1), Member: rwToken("b", pages, "r")})
				}
			}
			for _, token := range all {
				if !listed[token] && !slices.Contains(gone, token) {
					b.Errorf("%s was not listed", token)
				}
			}
		})
	}
}

func TestRWLockDropsForeignEntries(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		w, r := rwToken("a", 1, "w16"), rwToken("b", 1, "r")
		b.wantAcquire(lua.Granted, w, 0)
		for i, junk := range []string{"", "x", "a:b", ":::", "k:1:30000.6000r5!", "k:1:30000.6000u!", "k:1:.5"} {
			b.rdb.ZAdd(ctx, b.keys[2], redis.Z{Score: 1, Member: junk}, redis.Z{Score: 6e15 + float64(i), Member: junk + "!"})
		}
		sub := b.listen("b")
		b.wantAcquire(lua.Waiting, r, heartbeatTTL)
		b.code(b.release(w, 0), lua.Granted)
		b.notified(sub, r)
		b.held(r)
		b.members(2)
	})
}
