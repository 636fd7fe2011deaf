package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// limiter is a library that lets so many calls pass in a second.
type limiter struct {
	name     string
	module   string
	settings string
	open     func(t redistest.TB, at target, perSecond int) func(name string) pass
}

// pass asks once whether a call may pass.
type pass func(ctx context.Context) (bool, error)

var limiters = []limiter{
	{
		name: "lockkeeper ratelimit", settings: "a window of a second, Allow",
		open: rateLimit(nil),
	},
	{
		name: "lockkeeper ratelimit, Ahead", settings: "the same; permits are taken ahead",
		open: rateLimit(&ratelimit.Options{Ahead: true}),
	},
	{
		name: "redis_rate", module: "github.com/go-redis/redis_rate/v10",
		settings: "PerSecond, whose burst is the limit",
		open:     redisRate(func(n int) redis_rate.Limit { return redis_rate.PerSecond(n) }),
	},
	{
		name: "redis_rate, burst 1", module: "github.com/go-redis/redis_rate/v10",
		settings: "one call at a time, evenly spaced",
		open: redisRate(func(n int) redis_rate.Limit {
			return redis_rate.Limit{Rate: n, Burst: 1, Period: time.Second}
		}),
	},
}

func rateLimit(o *ratelimit.Options) func(t redistest.TB, at target, perSecond int) func(name string) pass {
	return func(t redistest.TB, at target, perSecond int) func(name string) pass {
		k := keeper(t, at.rdb(t), lockkeeper.Options{})
		return func(name string) pass {
			l, err := ratelimit.New(k, name, perSecond, time.Second, o)
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context) (bool, error) {
				r, err := l.Allow(ctx)
				return r.Allowed, err
			}
		}
	}
}

func redisRate(limit func(perSecond int) redis_rate.Limit) func(t redistest.TB, at target, perSecond int) func(name string) pass {
	return func(t redistest.TB, at target, perSecond int) func(name string) pass {
		l, most := redis_rate.NewLimiter(at.rdb(t)), limit(perSecond)
		return func(name string) pass {
			return func(ctx context.Context) (bool, error) {
				r, err := l.Allow(ctx, name, most)
				return err == nil && r.Allowed > 0, err
			}
		}
	}
}

// limit is 16 callers, each through a client of its own, who ask again and again: of a limit that they do not reach, and
// of one of 1,000 per second.
//
//	calls/s         calls that were answered, with yes or no
//	passed/s        calls that passed
//	most-in-second  the most calls that passed in any second, wherever it begins: those that began after its beginning
//	                and were answered before its end, so it may have been more
func limit(b *bench) {
	const callers = 16
	n := pick(b, 3, 1)
	for _, c := range []struct {
		of        string
		perSecond int
		span      time.Duration
	}{
		{"limit/open", 100_000_000, pick(b, time.Second, 200*time.Millisecond)},
		{"limit/closed", 1000, pick(b, 2500*time.Millisecond, 1200*time.Millisecond)},
	} {
		rounds(n, len(limiters), func(i int) {
			l := limiters[i]
			b.turn(c.of, l.name, func(s *stage) {
				name := b.name()
				var asks []pass
				for range callers {
					of := l.open(s, b.at, c.perSecond)
					_, err := of(b.name())(ctx) // connects and loads the script; the name's first window counts
					s.must(err)
					asks = append(asks, of(name))
				}
				var mu sync.Mutex
				var passed []interval
				var calls atomic.Int64
				var failed atomic.Pointer[error]
				var wg sync.WaitGroup
				began := time.Now()
				for _, ask := range asks {
					wg.Go(func() {
						var mine []interval
						for time.Since(began) < c.span {
							from := time.Since(began)
							ok, err := ask(ctx)
							if err != nil {
								failed.Store(&err)
								return
							}
							calls.Add(1)
							if ok && c.of == "limit/closed" {
								mine = append(mine, interval{from, time.Since(began)})
							}
						}
						mu.Lock()
						passed = append(passed, mine...)
						mu.Unlock()
					})
				}
				wg.Wait()
				took := time.Since(began).Seconds()
				if err := failed.Load(); err != nil {
					s.Fatal(*err)
				}
				b.results.add(c.of, l.name, "calls/s", "1/s", float64(calls.Load())/took)
				if c.of == "limit/closed" {
					b.results.add(c.of, l.name, "passed/s", "1/s", float64(len(passed))/took)
					b.results.add(c.of, l.name, "most-in-second", "1", float64(mostWithin(passed, time.Second)))
				}
			})
		})
	}
}

// interval is from the beginning of a call to its answer.
type interval struct{ from, to time.Duration }

// mostWithin is the most intervals that lie in one window of this length.
func mostWithin(list []interval, window time.Duration) int {
	// Some best window begins where an interval does. Those in it are counted as it moves on: one comes in when the window
	// reaches its end, and goes out when the window leaves its beginning behind.
	list = slices.DeleteFunc(slices.Clone(list), func(i interval) bool { return i.to > i.from+window })
	byFrom := slices.SortedFunc(slices.Values(list), func(a, z interval) int { return int(a.from - z.from) })
	byTo := slices.SortedFunc(slices.Values(list), func(a, z interval) int { return int(a.to - z.to) })
	most, in, next := 0, 0, 0
	for _, first := range byFrom {
		for ; next < len(byTo) && byTo[next].to <= first.from+window; next++ {
			in++
		}
		most = max(most, in)
		in--
	}
	return most
}
