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
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// rwToken returns a token with flags and a number, such as "r", "w16" and "u1".
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

// atTimes does so with each of these sets.
func atTimes(t *testing.T, sets []*lua.Set, test func(b *bench, pass func(time.Duration))) {
	for _, set := range sets {
		t.Run(set.Kind, func(t *testing.T) { atTimeOf(t, set, test) })
	}
}

func atTimeOf(t *testing.T, set *lua.Set, test func(b *bench, pass func(time.Duration))) {
	m := miniredis.RunT(t)
	now := time.UnixMilli(1_800_000_000_000)
	m.SetTime(now)
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	b := newBench(t, rdb, set)
	test(b, func(d time.Duration) {
		now = now.Add(d)
		m.SetTime(now)
	})
	b.allExpire()
}

func (b *bench) allExpire() { b.allExpireBut(-1) }

// allExpireBut expects that every key but one expires.
func (b *bench) allExpireBut(one int) {
	b.Helper()
	for i, k := range b.keys {
		if i != one && b.rdb.Exists(ctx, k).Val() == 1 {
			b.expires(i)
		}
	}
}

// upgrade asks that a lease writes, expects a reply code, and returns what follows it.
func (b *bench) upgrade(want int, token, lease string) []any {
	b.Helper()
	got := b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, lease, 0))
	b.code(got, want)
	return got[1:]
}

// downgrade lets a lease with that fence read, expects a reply code, and returns what follows it.
func (b *bench) downgrade(want int, lease string, fence int64, upgrade string) []any {
	b.Helper()
	got := b.eval(b.set.Downgrade, downgradeArgs(lease, fence, upgrade))
	b.code(got, want)
	return got[1:]
}

func downgradeArgs(lease string, fence int64, upgrade string) []any {
	return []any{lease, fence, int64(metadataTTL), upgrade, 60_000}
}

// writes expects that a lease writes, or reads: that a reader is refused, or granted a lease, which it releases. The fast script may leave that
// to the general one.
func (b *bench) writes(want bool) {
	b.Helper()
	code := lua.Granted
	if want {
		code = lua.Refused
	}
	other := rwToken("z", 1, "r")
	fast := b.fastAcquire(other, "")
	check.That(b, fast == 0 || (fast < 0) == want, "the fast script replies %d to a reader", fast)
	b.wantAcquire(code, other, 0)
	b.wantAcquire(lua.Refused, rwToken("z", 2, "w16"), 0)
	if !want {
		b.code(b.release(other, 0), lua.Granted)
	}
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
	must.That(b, slices.Equal(got, want) || len(got)+len(want) == 0, "%v hold it, want %v", got, want)
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
		must.That(b, lapses[token] != 0, "%s has no heartbeat", token)
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
	must.That(b, len(m) == 2*len(tokens), "message %v, want one for %v", m, tokens)
	var fences []int64
	for i, token := range tokens {
		fence, err := strconv.ParseInt(m[2*i+1], 10, 64)
		must.That(b, err == nil && strings.Split(token, ":")[1] == m[2*i], "message %v, want one for %v", m, tokens)
		lies := b.fence(token)
		must.That(b, lies == fence, "message %v, but %s has the fence %d", m, token, lies)
		fences = append(fences, fence)
	}
	return fences
}

// notNotified expects that no message has arrived.
func (b *bench) notNotified(keeper string, sub *redis.PubSub) {
	b.Helper()
	b.rdb.Publish(ctx, channelPrefix+keeper+way, "mark")
	m := b.message(sub)
	must.That(b, len(m) == 1 && m[0] == "mark", "message %v", m)
}

// TestConversions: a lease that is converted keeps its token and its end, and gets a larger fence. Each step may be repeated, and is late once
// another one has followed.
func TestConversions(t *testing.T) {
	onRW(t, func(b *bench) {
		b.listen("a") // or nobody waits there
		lease, other, first, second := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "u1"), rwToken("a", 3, "u2")
		fence := b.wantAcquire(lua.Granted, lease, 0)[0].(int64)
		b.wantAcquire(lua.Granted, other, 0)
		b.upgrade(lua.Waiting, first, lease)
		b.upgrade(lua.Conflict, rwToken("b", 2, "u1"), other)
		waits := rwToken("a", 4, "r")
		b.wantAcquire(lua.Waiting, waits, heartbeatTTL)
		b.code(b.release(other, 0), lua.Granted)
		got := b.heartbeat(0, first) // the upgrade was granted by that release
		check.That(b, len(got) == 11 && got[8] == int64(lua.Held) && got[9].(int64) > fence && got[9] == b.fence(lease), "%v, the fence was %d", got, fence)
		fence = got[9].(int64)
		b.held(lease)
		b.waits(waits)
		b.code(b.release(waits, 0), lua.Left)
		b.writes(true)

		check.That(b, b.upgrade(lua.Granted, first, lease)[0] == fence, "a repeated upgrade has another fence than %d", fence)
		takenOver := b.upgrade(lua.Granted, second, lease)[0].(int64)
		check.That(b, takenOver > fence, "a later attempt has the fence %d after %d", takenOver, fence)
		b.upgrade(lua.Conflict, first, lease)
		b.code(b.eval(b.set.Release, releaseArgs(first, 60_000, 1)), lua.Refused) // it was given up, and does not count any more
		b.downgrade(lua.Refused, lease, fence, "")                                // as one that is late
		b.writes(true)

		converted := fmt.Sprint([]any{lua.Granted, 1})
		check.That(b, fmt.Sprint(b.renew(lease, 1, 2*ttl)) == converted, "the fast renewal does not say that the lease is converted")
		b.writes(true)
		renewed := b.renew(lease, 2, 3*ttl)
		check.That(b, len(renewed) == 3 && renewed[1] == takenOver && renewed[2] == int64(1), "%v", renewed)
		b.writes(true)

		read := b.downgrade(lua.Granted, lease, takenOver, second)[0].(int64)
		check.That(b, read > takenOver && b.downgrade(lua.Granted, lease, takenOver, second)[0] == read, "fence %d after %d", read, takenOver)
		b.upgrade(lua.Tombstoned, second, lease) // a copy that is late
		b.writes(false)
		for keys, want := range map[int]string{1: fmt.Sprint([]any{lua.Granted, 0}), 2: fmt.Sprint([]any{lua.Granted, read})} {
			got := fmt.Sprint(b.renew(lease, keys, 3*ttl))
			check.That(b, got == want, "a renewal replies %s, want %s", got, want)
		}
		b.code(b.release(lease, 0), lua.Granted)
		b.upgrade(lua.Refused, rwToken("a", 5, "u3"), lease)
		b.downgrade(lua.Refused, lease, read, "")
		b.held()
	})
}

// TestLeaseThatReadsAgainAdmitsReaders: a lease does so if its upgrade was given up, and if it was downgraded. Both work while memory is full.
func TestLeaseThatReadsAgainAdmitsReaders(t *testing.T) {
	for what, back := range map[string]func(b *bench, lease, upgrade string){
		"given up": func(b *bench, _, upgrade string) {
			b.breakToken(upgrade, lua.Refused, 0) // only its own keeper can give it up
			b.code(b.eval(b.set.Release, releaseArgs(upgrade, 0, 1)), lua.Granted)
		},
		"downgraded": func(b *bench, lease, _ string) { b.downgrade(lua.Granted, lease, b.fence(lease), "") },
	} {
		t.Run(what, func(t *testing.T) {
			onRW(t, func(b *bench) {
				lease, upgrade, reader, sub := rwToken("a", 1, "r"), rwToken("a", 2, "u1"), rwToken("b", 1, "r"), b.listen("b")
				b.wantAcquire(lua.Granted, lease, 0)
				b.upgrade(lua.Granted, upgrade, lease)
				b.wantAcquire(lua.Waiting, reader, heartbeatTTL)
				_ = b.rdb.ConfigSet(ctx, "maxmemory", "1").Err() // the embedded server has no such thing
				back(b, lease, upgrade)
				_ = b.rdb.ConfigSet(ctx, "maxmemory", "0").Err()
				b.notified(sub, reader)
				b.held(lease, reader)
			})
		})
	}
}

// TestUpgradeWaitsAheadOfWriters, until it is given up, or granted because the other lease has expired.
func TestUpgradeWaitsAheadOfWriters(t *testing.T) {
	onRW(t, func(b *bench) {
		b.listen("c")
		lease, other, writer := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("c", 1, "w16")
		first, second := rwToken("a", 2, "u1"), rwToken("a", 3, "u2")
		b.wantAcquire(lua.Granted, lease, 0)
		b.wantAcquire(lua.Granted, other, 0)
		b.wantAcquire(lua.Waiting, writer, heartbeatTTL)
		b.upgrade(lua.Waiting, first, lease)
		b.waits(first, writer)
		b.code(b.eval(b.set.Release, releaseArgs(first, 0, 1)), lua.Left)
		b.waits(writer)
		b.upgrade(lua.Waiting, second, lease)
		b.endsIn(other, 0)
		b.upgrade(lua.Granted, second, lease)
		b.waits(writer)
	})
}

// TestUpgradeThatMayNotWait: an upgrade leaves the queue when a later attempt has taken its place, or another's upgrade while its keeper was
// away, or when the metadata was lost. A heartbeat learns why, and does not queue it again.
func TestUpgradeThatMayNotWait(t *testing.T) {
	atTime(t, func(b *bench, pass func(time.Duration)) {
		b.listen("a")
		b.listen("b")
		lease, other := rwToken("a", 1, "r"), rwToken("b", 1, "r")
		first, second, theirs := rwToken("a", 2, "u1"), rwToken("a", 3, "u2"), rwToken("b", 2, "u1")
		gone := func(token string, code int) {
			b.Helper()
			for _, got := range [][]any{b.heartbeat(0, token), b.heartbeat(protocol.HeartbeatRejoin, token, 0)} {
				check.That(b, len(got) == 11 && got[8] == int64(code), "a heartbeat of %s replies %v, want code %d", token, got, code)
			}
		}
		b.wantAcquire(lua.Granted, lease, 0)
		b.wantAcquire(lua.Granted, other, 0)
		b.upgrade(lua.Waiting, first, lease)
		b.upgrade(lua.Waiting, second, lease)
		gone(first, lua.Conflict)
		b.waits(second)
		pass(heartbeatTTL * time.Millisecond)
		b.upgrade(lua.Waiting, theirs, other)
		gone(second, lua.Conflict)
		b.waits(theirs)
		b.rdb.Del(ctx, b.keys[1])
		gone(theirs, lua.Refused)
		b.waits()
		b.held(lease, other)
	})
}

// TestGrantOfUpgradeIsUndone: nobody has received the message, so the lease reads as before, and the upgrade is queued again by its keeper.
func TestGrantOfUpgradeIsUndone(t *testing.T) {
	onRW(t, func(b *bench) {
		lease, other, upgrade := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("a", 2, "u1")
		b.wantAcquire(lua.Granted, lease, 0)
		b.wantAcquire(lua.Granted, other, 0)
		b.upgrade(lua.Waiting, upgrade, lease)
		b.code(b.release(other, 0), lua.Granted)
		b.waits()
		b.writes(false)
	})
}

// TestConvertedLeasesEndAtWholeMilliseconds, in all replies: the mark is half of one.
func TestConvertedLeasesEndAtWholeMilliseconds(t *testing.T) {
	atTime(t, func(b *bench, pass func(time.Duration)) {
		b.listen("b")
		lease := rwToken("a", 1, "w16")
		fence := b.wantAcquire(lua.Granted, lease, 0)[0].(int64)
		b.downgrade(lua.Granted, lease, fence, "")
		b.upgrade(lua.Granted, rwToken("a", 2, "u1"), lease)
		check.That(b, b.end(lease) == b.rdb.Time(ctx).Val().UnixMilli()+ttl, "a write lease that writes again is marked")
		b.downgrade(lua.Granted, lease, b.fence(lease), "")
		got := b.inspect(protocol.InspectHolders, 0, 10, "")
		now := b.rdb.Time(ctx).Val().UnixMilli()
		check.That(b, len(got) == 7 && got[4] == int64(ttl) && got[5] == now+ttl && got[6] == int64(1), "%v", got)
		check.That(b, b.wantAcquire(lua.Refused, rwToken("b", 1, "w16"), 0)[1] == int64(ttl), "a try is told another time")
		pass((ttl - 1) * time.Millisecond)
		b.wantAcquire(lua.Granted, rwToken("b", 2, "r"), heartbeatTTL)
		b.held(lease, rwToken("b", 2, "r"))
		pass(time.Millisecond)
		b.wantAcquire(lua.Granted, rwToken("b", 3, "r"), 0)
		b.code(b.renew(lease, 2, ttl), lua.Refused)
	})
}

// TestConvertedLeaseKeepsItsMark, when a late copy of its request makes it last, and when it is cut after the clock was set back. Others are told
// when it ends, in whole ms.
func TestConvertedLeaseKeepsItsMark(t *testing.T) {
	atTime(t, func(b *bench, pass func(time.Duration)) {
		b.listen("c")
		lease, writer := rwToken("a", 1, "r"), rwToken("c", 1, "w16")
		b.wantAcquire(lua.Granted, lease, 0)
		b.upgrade(lua.Granted, rwToken("a", 2, "u1"), lease)
		pass(time.Second)
		check.That(b, b.fastAcquire(lease, "") == 0, "the fast script decides about the holder's request")
		check.That(b, b.wantAcquire(lua.Granted, lease, 0)[0] == b.fence(lease), "the holder's request has another fence")
		b.writes(true)
		left := -b.fastAcquire(rwToken("b", 1, "r"), "")
		check.That(b, left == ttl, "the fast script says that the lease ends in %d ms", left)
		check.That(b, b.wantAcquire(lua.Refused, rwToken("b", 1, "r"), 0)[1] == int64(ttl), "a try is told another time")
		check.That(b, b.wantAcquire(lua.Waiting, writer, heartbeatTTL)[4] == int64(ttl), "a waiter is told another time")
		pass(-2 * time.Hour)
		b.heartbeat(0, writer)
		got := b.inspect(protocol.InspectHolders, 0, 10, "")
		check.That(b, len(got) == 7 && got[4] == int64(ttl) && got[6] == int64(1), "%v", got)
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
			check.That(b, slices.IsSorted(fences) && fences[0] > fence, "fences %v after %d", fences, fence)
			b.notNotified(k, sub)
		}
		d := b.end(all[0]) - b.end(all[249])
		check.That(b, d <= heartbeatTTL && d >= -heartbeatTTL, "claims end %d ms apart", d)
	})
}

func TestClockSetBackDoesNotProlongReadLeases(t *testing.T) {
	t.Parallel()
	atTime(t, func(b *bench, pass func(time.Duration)) {
		r, longer, w := rwToken("a", 1, "r"), rwToken("b", 1, "r"), rwToken("c", 1, "w16")
		fence := b.wantAcquire(lua.Granted, r, 0)[0].(int64)
		b.wantAcquire(lua.Granted, longer, 0)
		b.code(b.renew(longer, 2, 3600000), lua.Granted)
		b.code(b.renew(longer, 2, 2*ttl), lua.Granted) // a later one to less changes nothing
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
		f := b.wantAcquire(lua.Granted, rwToken("c", 3, "r"), 0)[0].(int64)
		check.That(b, f > fence, "fence %d after %d", f, fence)
		b.code(b.release(longer, 0), lua.Granted)
		b.code(b.renew(r, 1, 2*ttl), lua.Granted) // without metadata no longer ttl is recorded
		b.heartbeat(0)
		if left := b.end(r) - now; left != ttl {
			b.Errorf("the lease lasts %d ms, its ttl is %d", left, ttl)
		}
		b.code(b.renew(r, 1, 2*ttl), lua.Granted)
		got := b.heartbeat(0, r) // a holder that did not learn of its grant
		check.That(b, len(got) == 11 && got[8] == int64(lua.Held) && got[10] == now+ttl && b.end(r) == now+ttl,
			"the lease is reported as %v, its ttl is %d", got, ttl)
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
				got := b.inspect(protocol.InspectHolders, place, 4, last)
				must.That(b, pages <= 40, "there is no end")
				for i := 2; i < len(got); i += 5 {
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
				check.That(b, listed[token] || slices.Contains(gone, token), "%s was not listed", token)
			}
		})
	}
}
