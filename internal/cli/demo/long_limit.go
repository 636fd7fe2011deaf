package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

const (
	apiName   = "api"
	apiAtOnce = 4  // calls at once
	apiMany   = 20 // calls in any window
	apiWindow = time.Second

	// Calls reach the API some time after they were permitted, and the delays differ. The limit holds at the API as long as they
	// differ by no more than this margin, which the workers add to the window.
	apiMargin = 250 * time.Millisecond

	singleCallers = 4
	bulkCallers   = 2
	bulkPermits   = 2 // of each call of a bulk caller
	killAfter     = time.Second

	// maxReuseDelay is how long after the end of the lease of a killed worker its permits may remain unused: other workers
	// must need them, and the limit per window must permit the calls.
	maxReuseDelay = 2 * time.Second
)

// calls is the scenario in which workers call an API that has limits, and one is killed during a call.
type calls struct {
	*screen
	rdb     *redis.Client
	limit   *ratelimit.Limiter // only for queries
	workers []*worker
	started time.Time

	maxConcurrent int // permits of the calls in progress at the API
	killed        *worker
	killedAt      time.Time
	reusedAfter   time.Duration // from the kill until the permits of the worker were in use again
	bulkCalls     int
}

// demoAPI are the limits that all workers observe.
func demoAPI(k *lockkeeper.Keeper) (*ratelimit.Limiter, error) {
	return ratelimit.New(k, apiName, apiMany, apiWindow+apiMargin, &ratelimit.Options{MaxConcurrent: apiAtOnce, TTL: demoTTL})
}

func newCalls(s *screen, k *lockkeeper.Keeper, rdb *redis.Client) (*calls, error) {
	limit, err := demoAPI(k)
	if err != nil {
		return nil, err
	}
	c := &calls{screen: s, rdb: rdb, limit: limit}
	for i := range singleCallers {
		c.workers = append(c.workers, &worker{id: fmt.Sprintf("caller-%d", i+1), role: "call"})
	}
	for i := range bulkCallers {
		c.workers = append(c.workers, &worker{id: fmt.Sprintf("bulk-%d", i+1), role: "bulk-call"})
	}
	return c, nil
}

func (c *calls) handle(w *worker, e event, stopping bool) {
	if c.started.IsZero() {
		c.started = time.Now()
	}
	if e.State != stateHolding {
		return
	}
	bulk := w.role == "bulk-call"
	if bulk {
		c.bulkCalls++
	}
	c.maxConcurrent = max(c.maxConcurrent, e.Concurrent)
	if !c.tty {
		c.printf("%s calls; permits in use: %d", w.id, e.Concurrent)
	}
	switch {
	case c.killed == nil && bulk && !stopping && w.since.Sub(c.started) >= killAfter:
		c.kill(w)
	// The event may be older than the kill, so check at the server that the lease has expired.
	case c.killed != nil && c.reusedAfter == 0 && e.Concurrent > apiAtOnce-bulkPermits && c.held(c.killed) == 0:
		c.reusedAfter = time.Since(c.killedAt)
		c.printf("the permits of %s are in use again %v later: its lease expires after at most %v", c.killed.id, rounded(c.reusedAfter), demoTTL)
	}
}

// kill kills a worker during its call, unless the call has ended. The API notices that the connection is closed, and ends the
// call.
func (c *calls) kill(w *worker) {
	permits := c.held(w)
	if permits == 0 {
		return // try again at the next call
	}
	if err := kill(w.cmd.Process); err != nil {
		c.printf("fault injection into %s failed: %v", w.id, err)
		return
	}
	c.killed, c.killedAt = w, time.Now()
	w.state, w.since = stateKilled, c.killedAt
	c.printf("%s is killed during a call; it holds %d permits", w.id, permits)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := leave.Run(ctx, c.rdb, []string{"demo:inside:" + apiName}, w.id).Err(); err != nil {
		c.printf("the API: %v", err)
	}
}

// held returns how many permits the worker holds at the server.
func (c *calls) held(w *worker) (permits int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := c.limit.Holders(ctx)
	if err != nil {
		c.printf("listing the holders failed: %v", err)
	}
	for _, h := range list {
		if h.Keeper == w.keeper {
			permits += h.Permits
		}
	}
	return permits
}

func (c *calls) stateText() string {
	var b strings.Builder
	fmt.Fprintln(&b)
	for _, w := range c.workers {
		w.writeLine(&b, "calling")
	}
	holders := workerIDs(c.workers, c.limit.Holders, func(h lockkeeper.Holder) string { return h.Keeper })
	waiting := workerIDs(c.workers, c.limit.Waiters, func(w lockkeeper.Waiter) string { return w.Keeper })
	fmt.Fprintf(&b, "\n  holders: %s\n", strings.Join(holders, " "))
	fmt.Fprintf(&b, "  queue:   %s\n", strings.Join(waiting, " "))
	fmt.Fprintf(&b, "  at most %d at once\n", c.maxConcurrent)
	return b.String()
}

// arrival is a call as the API has recorded it, with times of the clock of the server.
type arrival struct {
	at      time.Time
	granted time.Time // when the call was permitted
	permits int
}

// arrivals returns the calls that the API has recorded.
func (c *calls) arrivals() ([]arrival, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	lines, err := c.rdb.LRange(ctx, "demo:calls:"+apiName, 0, -1).Result()
	if err != nil {
		return nil, err
	}
	all := make([]arrival, len(lines))
	for i, line := range lines {
		var at, granted int64
		if _, err := fmt.Sscan(line, &at, &granted, &all[i].permits); err != nil {
			return nil, err
		}
		all[i].at, all[i].granted = time.UnixMicro(at), time.UnixMicro(granted)
	}
	return all, nil
}

// maxWithin returns the largest number of permits of calls in any window of length d, by the given time of each call.
func maxWithin(calls []arrival, d time.Duration, when func(arrival) time.Time) (most int) {
	calls = slices.SortedFunc(slices.Values(calls), func(a, b arrival) int { return when(a).Compare(when(b)) })
	first, sum := 0, 0
	for _, c := range calls {
		sum += c.permits
		for when(c).Sub(when(calls[first])) >= d {
			sum -= calls[first].permits
			first++
		}
		most = max(most, sum)
	}
	return most
}

func (c *calls) summarize() bool {
	all, err := c.arrivals()
	if err != nil || len(all) == 0 {
		c.printf("the API has recorded no calls: %v", err)
		return false
	}
	total := 0
	shortest, longest := time.Duration(1<<62), time.Duration(0) // delays until the calls reached the API
	for _, a := range all {
		total += a.permits
		delay := a.at.Sub(a.granted)
		shortest, longest = min(shortest, delay), max(longest, delay)
	}
	arrived := maxWithin(all, apiWindow, func(a arrival) time.Time { return a.at })
	permitted := maxWithin(all, apiWindow+apiMargin, func(a arrival) time.Time { return a.granted })
	fmt.Fprintf(c.out, "\ncalls:                  %d, of which %d count as %d\n", len(all), c.bulkCalls, bulkPermits)
	fmt.Fprintf(c.out, "at once:                at most %d, allowed %d\n", c.maxConcurrent, apiAtOnce)
	fmt.Fprintf(c.out, "in any second:          at most %d, allowed %d\n", arrived, apiMany)
	fmt.Fprintf(c.out, "delays of calls:        differ by %v; the margin is %v\n", rounded(longest-shortest), apiMargin)
	if c.killed != nil {
		fmt.Fprintf(c.out, "killed during a call:   %s; its permits were in use again %v later (the lease expires after at most %v)\n",
			c.killed.id, rounded(c.reusedAfter), demoTTL)
	}
	// If the delays differ by more than the margin, only the times at which calls were permitted are bounded.
	within := permitted <= apiMany && (arrived <= apiMany || longest-shortest > apiMargin)
	return within && c.maxConcurrent <= apiAtOnce && c.bulkCalls > 1 && c.reusedAfter > 0 && c.reusedAfter < demoTTL+maxReuseDelay
}
