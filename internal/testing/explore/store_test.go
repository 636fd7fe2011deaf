package explore

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"pgregory.net/rapid"
)

// TestStoreMatchesServer runs the same calls on a store and on the embedded server, and compares replies, messages and all data: a
// hundred times with -explore, else thirty.
func TestStoreMatchesServer(t *testing.T) {
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	rdb := redistest.At(t, mini.Addr())
	var mu sync.Mutex
	var heard []string
	sub := mini.NewSubscriber()
	t.Cleanup(sub.Close)
	go func() {
		for m := range sub.Messages() {
			mu.Lock()
			heard = append(heard, m.Channel+" "+m.Message)
			mu.Unlock()
		}
	}()
	if checks := flag.Lookup("rapid.checks").Value; !*large && checks.String() == "100" {
		_ = checks.Set("30")
		defer func() { _ = checks.Set("100") }()
	}
	rapid.Check(t, func(r *rapid.T) {
		mini.FlushAll()
		c := &config{requests: maxRequests, keeperOf: together}
		c.set = rapid.SampledFrom([]*lua.Set{lua.Mutex, lua.Fair, lua.RWLock, lua.Semaphore}).Draw(r, "primitive")
		if c.set == lua.RWLock {
			c.flags = rapid.SampledFrom([][maxRequests]string{readWrite, upgrades, upgradesTwo, downgrades, attempts, rivals}).Draw(r, "flags")
		}
		if c.set == lua.Semaphore {
			c.flags = heldPermits
			c.permits = [maxRequests]int64{1, 2, 1, 1}
		}
		srv := newServer(c.set, c.tokens(), nil)
		srv.origin = conversions[c.flags].origin
		data := &store{keys: map[string]*value{}}
		listening := map[string]bool{}
		now := int64(start)
		for range rapid.IntRange(1, 40).Draw(r, "calls") {
			if rapid.IntRange(0, 3).Draw(r, "a subscription changes") == 0 {
				channel := wakePrefix + keeperID(rapid.IntRange(0, 1).Draw(r, "of keeper"))
				if listening[channel] = !listening[channel]; listening[channel] {
					sub.Subscribe(channel)
				} else {
					sub.Unsubscribe(channel)
				}
			}
			now += rapid.SampledFrom([]int64{0, 0, 1, 500, 1000, 2000}).Draw(r, "ms pass")
			mini.SetTime(time.UnixMilli(now))
			k := call{
				script:   script(rapid.IntRange(int(fastAcquire), int(rejoin)).Draw(r, "script")),
				requests: uint8(1 << rapid.IntRange(0, maxRequests-1).Draw(r, "of request")),
				try:      rapid.Bool().Draw(r, "try"), tombstone: rapid.Bool().Draw(r, "tombstone"), unused: rapid.Bool().Draw(r, "unused"),
				ttl: rapid.SampledFrom([]int16{1000, ttl, 4000}).Draw(r, "ttl"),
			}
			if k.script >= heartbeat {
				k.requests = uint8(rapid.SampledFrom([]int{1, 2, 3, 4}).Draw(r, "of requests"))
				for q := range k.places {
					k.places[q] = rapid.SampledFrom([]int64{0, now*1000 - 5, now * 1000}).Draw(r, "place")
				}
			}
			if k.script == downgrade {
				k.fence = rapid.SampledFrom([]int64{1, now * 1000, now*1000 + 9}).Draw(r, "fence")
				k.upgrade = int8(rapid.IntRange(0, maxRequests).Draw(r, "upgrade"))
			}
			if srv.text[k.script] == "" {
				k.script = renew
			}
			if k.script == fastAcquire && srv.origin[k.list()[0]] > 0 {
				k.script = acquire
			}
			keys, argv := srv.arguments(k)
			text := srv.text[k.script]
			data.now = now
			reply, sent, err := srv.in.run(data, func(channel string) bool { return listening[channel] }, text, keys, argv)
			if err != nil {
				r.Fatal(err)
			}
			args := make([]any, len(argv))
			for i, x := range argv {
				args[i] = x
			}
			v, err := rdb.Eval(context.Background(), text, keys, args...).Result()
			if err != nil {
				r.Fatal(err)
			}
			if got, want := fmt.Sprint(reply), strings.Trim(fmt.Sprint(v), "[]"); strings.Trim(got, "[]") != want {
				r.Fatalf("%s: the store replies %s, the server %s", srv.describe(srv.call(k)), got, want)
			}
			var want []string
			for _, m := range sent {
				want = append(want, m.channel+" "+m.text)
			}
			var got []string
			for range 2000 {
				mu.Lock()
				got = slices.Clone(heard)
				mu.Unlock()
				if len(got) >= len(want) {
					break
				}
				time.Sleep(time.Millisecond)
			}
			mu.Lock()
			heard = nil
			mu.Unlock()
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				r.Fatalf("%s: the store published %q, the server %q", srv.describe(srv.call(k)), want, got)
			}
			data.expire()
			if got, want := data.String(), storeOf(mini, now).String(); got != want {
				r.Fatalf("%s at %d: the store has\n%s\nthe server\n%s", srv.describe(srv.call(k)), now, got, want)
			}
		}
		for channel, on := range listening {
			if on {
				sub.Unsubscribe(channel)
			}
		}
	})
}

func storeOf(mini *miniredis.Miniredis, now int64) *store {
	s := &store{now: now, keys: map[string]*value{}}
	for _, key := range mini.Keys() {
		v := s.make(key)
		if left := mini.TTL(key); left > 0 {
			v.expires = now + left.Milliseconds()
		}
		switch mini.Type(key) {
		case "zset":
			scores, _ := mini.SortedSet(key)
			for name, score := range scores {
				s.zadd(key, []string{number(score), name})
			}
		case "hash":
			names, _ := mini.HKeys(key)
			slices.Sort(names)
			for _, name := range names {
				v.fields = append(v.fields, field{name, mini.HGet(key, name)})
			}
		default:
			v.text, _ = mini.Get(key)
		}
	}
	return s
}
