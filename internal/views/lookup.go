package views

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/redis/go-redis/v9"
)

// This file looks up how many holders and waiters names have, by a few plain commands for each: a script would take the server ten
// times as long. Package protocol says what the keys contain.

// lookup is one name to be looked up.
type lookup struct {
	protocol.ParsedKey // the key by which the name was found
	keys               protocol.Keys

	exists bool // the lock's key exists; set by lookUp

	left    *redis.DurationCmd // until the lock's key expires
	holder  *redis.StringCmd   // if the lock is a string: how it begins
	holders *redis.IntCmd      // if it is a zset: how many leases it has
	last    *redis.ZSliceCmd   // and the lease that ends last
	limits  *redis.StringCmd   // if its kind has limits
	waiters *redis.IntCmd
	heads   []*redis.ZSliceCmd // the first waiter of each class; one of them has waited longest
}

// lookUp returns the entries of names. now is the server's time in µs. It blocks for a round trip, or two if there are rate limits
// without leases.
func lookUp(rdb *client.Client, names []*lookup, now int64) ([]Entry, error) {
	ctx := context.Background()
	pipe := rdb.Pipeline()
	for _, x := range names {
		x.ask(ctx, pipe, now)
	}
	if err := server.Execute(pipe); err != nil {
		return nil, err
	}
	entries := make([]Entry, len(names))
	takings := rdb.Pipeline()
	for i, x := range names {
		entries[i] = x.entry(now)
		if limits, ok := x.takes(); ok {
			x.askTakings(ctx, takings, limits, now)
		}
	}
	if takings.Len() == 0 {
		return entries, nil
	}
	if err := server.Execute(takings); err != nil {
		return nil, err
	}
	for i, x := range names {
		if limits, ok := x.takes(); ok {
			entries[i].Holders, entries[i].ExpiresIn, entries[i].Keeper = x.leases(func(score float64) time.Duration { return claim.Duration(limits.ReturnIn(int64(score), now)) })
		}
	}
	return entries, nil
}

// ask adds the commands for the name to a pipeline. now is the server's time in µs.
func (x *lookup) ask(ctx context.Context, pipe redis.Pipeliner, now int64) {
	x.left = pipe.PTTL(ctx, x.keys.Lock)
	if x.Set.OneHolder {
		x.holder = pipe.GetRange(ctx, x.keys.Lock, 0, protocol.MaxTokenLength)
	} else {
		x.askLeases(ctx, pipe, "("+strconv.FormatInt(now/1000, 10), protocol.EndlessLease, true)
		if x.Set.Limit != nil {
			x.limits = pipe.HGet(ctx, x.keys.Meta, "limits")
		}
	}
	x.waiters = pipe.ZCount(ctx, x.keys.Queue, "-inf", protocol.BehindWaiters)
	x.heads = nil
	for _, from := range protocol.QueueClasses(x.Set) {
		x.heads = append(x.heads, pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: x.keys.Queue, Start: from, Stop: protocol.BehindWaiters, ByScore: true, Count: 1,
		}))
	}
}

// askLeases asks for the number of members with scores in a range, and for the one with the highest score, or the lowest.
func (x *lookup) askLeases(ctx context.Context, pipe redis.Pipeliner, low, high string, highest bool) {
	x.holders = pipe.ZCount(ctx, x.keys.Lock, low, high)
	if highest {
		low, high = high, low
	}
	x.last = pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{Key: x.keys.Lock, Start: low, Stop: high, ByScore: true, Rev: highest, Count: 1})
}

// takes returns the limits of a rate limit without leases, whose holders are the requests whose permits have not returned. It reports
// false for other names.
func (x *lookup) takes() (protocol.Limits, bool) {
	if x.limits == nil {
		return protocol.Limits{}, false
	}
	limits, ok := protocol.ParseLimits(x.limits.Val())
	return limits, ok && limits.AtOnce == 0
}

func (x *lookup) askTakings(ctx context.Context, pipe redis.Pipeliner, limits protocol.Limits, now int64) {
	x.askLeases(ctx, pipe, "-inf", strconv.FormatInt(limits.Returned(now), 10), false)
}

// entry returns what was found. It is empty if a key has another type.
func (x *lookup) entry(now int64) Entry {
	entry := Entry{Kind: x.Set.Kind, Name: x.Name}
	x.exists = x.left.Val() != -2
	if x.holder == nil {
		entry.Holders, entry.ExpiresIn, entry.Keeper = x.leases(func(score float64) time.Duration { return claim.Duration(int64(score) - now/1000) })
	} else if token, err := x.holder.Result(); err != nil {
		return entry
	} else if x.exists && !protocol.IsRecord(token) {
		entry.Holders, entry.ExpiresIn = 1, expiresIn(x.left.Val())
		entry.Keeper = keeperOf(token)
	}
	entry.Waiters = int(x.waiters.Val())
	for _, head := range x.heads {
		for _, z := range head.Val() {
			waited := now - protocol.TicketOf(x.Set, int64(z.Score)) // µs
			entry.LongestWait = max(entry.LongestWait, claim.Duration(waited/1000))
		}
	}
	return entry
}

// leases returns the number of leases, the time until the last of them ends, and its keeper. left returns the time until a score.
func (x *lookup) leases(left func(score float64) time.Duration) (n int, last time.Duration, keeper string) {
	for _, z := range x.last.Val() {
		last = max(left(z.Score), 0)
		token, _ := z.Member.(string)
		keeper = keeperOf(strings.TrimPrefix(token, "@"))
	}
	return int(x.holders.Val()), last, keeper
}

// keeperOf returns the keeper of a token; "" of another library's.
func keeperOf(token string) string {
	t, _ := protocol.ParseToken(token)
	return t.Keeper
}

// expiresIn returns the time to live of a key that PTTL has returned; -1 if it has no expiry.
func expiresIn(left time.Duration) time.Duration {
	if left < 0 {
		return -1
	}
	return left
}
