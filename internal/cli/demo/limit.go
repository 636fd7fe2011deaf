package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

const (
	apiName   = "api"
	apiAtOnce = 4  // calls that it stands at the same time,
	apiMany   = 20 // and in any
	apiWindow = time.Second

	// Calls arrive a little after they were permitted, some more so than others. As long as the difference is within the
	// margin, the limit holds at the API for certain if permits return after its window and the margin.
	apiMargin = 250 * time.Millisecond

	callersMany  = 4
	callersBulky = 2 // besides
	bulk         = 2 // what one of their calls counts
	apiStruck    = time.Second

	// apiSlack is how much later than the end of its lease the permits of one that was killed may be in use again: others
	// have to want them, and must be permitted by the clock.
	apiSlack = 2 * time.Second
)

// calls is the part of the demo in which processes call an API that has limits, and one is killed in a call.
type calls struct {
	*show
	rdb     *redis.Client
	limit   *semaphore.Semaphore // for looking
	workers []*worker
	began   time.Time

	together int // the most at once, as the API counts
	killed   *worker
	struck   time.Time
	back     time.Duration // until what it held was in use again
	bulky    int           // calls of those that take more
}

// demoAPI is the limits that all keep to.
func demoAPI(k *lockkeeper.Keeper) (*semaphore.Semaphore, error) {
	return semaphore.New(k, apiName, apiMany, &semaphore.Options{Per: apiWindow + apiMargin, AtOnce: apiAtOnce, TTL: demoTTL})
}

func newCalls(s *show, k *lockkeeper.Keeper, rdb *redis.Client) (*calls, error) {
	limit, err := demoAPI(k)
	if err != nil {
		return nil, err
	}
	c := &calls{show: s, rdb: rdb, limit: limit}
	for i := range callersMany {
		c.workers = append(c.workers, &worker{id: fmt.Sprintf("caller-%d", i+1), role: "call"})
	}
	for i := range callersBulky {
		c.workers = append(c.workers, &worker{id: fmt.Sprintf("bulk-%d", i+1), role: "call-in-bulk"})
	}
	return c, nil
}

func (c *calls) take(w *worker, e event, stopping bool) {
	if c.began.IsZero() {
		c.began = time.Now()
	}
	if e.State != "holds" {
		return
	}
	bulky := w.role == "call-in-bulk"
	if bulky {
		c.bulky++
	}
	c.together = max(c.together, e.Together)
	if !c.tty {
		c.say("%s calls; at once: %d", w.id, e.Together)
	}
	switch {
	case c.killed == nil && bulky && !stopping && w.since.Sub(c.began) >= apiStruck:
		c.strike(w)
	// What a worker tells may be older than the blow, so the server is asked, too.
	case c.killed != nil && c.back == 0 && e.Together > apiAtOnce-bulk && c.held(c.killed) == 0:
		c.back = time.Since(c.struck)
		c.say("the permits of %s are in use again %v later: its lease was of %v at the most", c.killed.id, c.back.Round(100*time.Microsecond), demoTTL)
	}
}

// strike kills a worker in its call, if it still is. The API sees that its connection is gone and is done with it.
func (c *calls) strike(w *worker) {
	permits := c.held(w)
	if permits == 0 {
		return // the next time
	}
	if err := kill(w); err != nil {
		c.say("%s cannot be struck here: %v", w.id, err)
		return
	}
	c.killed, c.struck = w, time.Now()
	w.state, w.since = "killed", c.struck
	c.say("%s is killed in its call; it holds %d permits", w.id, permits)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := depart.Run(ctx, c.rdb, []string{"demo:inside:" + apiName}, w.id).Err(); err != nil {
		c.say("the API: %v", err)
	}
}

// held is how many permits a worker holds, as the server has it.
func (c *calls) held(w *worker) (permits int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := c.limit.Holders(ctx)
	if err != nil {
		c.say("who holds permits: %v", err)
	}
	for _, h := range list {
		if h.Keeper == w.keeper {
			permits += h.Permits
		}
	}
	return permits
}

func (c *calls) paint(b *strings.Builder) {
	fmt.Fprintln(b)
	for _, w := range c.workers {
		state := w.state
		if state == "holds" {
			state = "calls"
		}
		w.paint(b, state)
	}
	inside := look(c.workers, c.limit.Holders, func(h semaphore.Holder) string { return h.Keeper })
	waiting := look(c.workers, c.limit.Waiters, func(w semaphore.Waiter) string { return w.Keeper })
	fmt.Fprintf(b, "\n  permits with: %s\n", strings.Join(inside, " "))
	fmt.Fprintf(b, "  in line:      %s\n", strings.Join(waiting, " "))
	fmt.Fprintf(b, "  at most %d at once\n", c.together)
}

// arrival is a call as the API saw it.
type arrival struct {
	at      time.Time // when it came,
	granted time.Time // and when it was permitted: both by the server's clock
	permits int
}

// arrivals is what the API has written down.
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

// mostWithin is the most permits that calls took less than d apart, by one of their times.
func mostWithin(calls []arrival, d time.Duration, when func(arrival) time.Time) (most int) {
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

func (c *calls) sum() bool {
	all, err := c.arrivals()
	if err != nil || len(all) == 0 {
		c.say("the API has seen nothing: %v", err)
		return false
	}
	total := 0
	least, longest := time.Duration(1<<62), time.Duration(0) // on the way to the API
	for _, a := range all {
		total += a.permits
		way := a.at.Sub(a.granted)
		least, longest = min(least, way), max(longest, way)
	}
	came := mostWithin(all, apiWindow, func(a arrival) time.Time { return a.at })
	permitted := mostWithin(all, apiWindow+apiMargin, func(a arrival) time.Time { return a.granted })
	fmt.Fprintf(c.out, "\ncalls seen by the API:  %d, of which %d count for %d\n", len(all), c.bulky, bulk)
	fmt.Fprintf(c.out, "at once:                %d at most, %d allowed\n", c.together, apiAtOnce)
	fmt.Fprintf(c.out, "in any second:          %d at most, %d allowed\n", came, apiMany)
	fmt.Fprintf(c.out, "on the way to it:       up to %v longer than the fastest; the margin is %v\n", (longest - least).Round(100*time.Microsecond), apiMargin)
	if c.killed != nil {
		fmt.Fprintf(c.out, "killed in a call:       %s; its permits were in use again %v later (its lease was of %v at the most)\n",
			c.killed.id, c.back.Round(100*time.Microsecond), demoTTL)
	}
	// Without the margin only what was permitted is sure.
	within := permitted <= apiMany && (came <= apiMany || longest-least > apiMargin)
	return within && c.together <= apiAtOnce && c.bulky > 1 && c.back > 0 && c.back < demoTTL+apiSlack
}
