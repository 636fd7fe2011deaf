package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

const (
	cacheName    = "cache"
	cacheTTL     = 5 * time.Second
	cacheReaders = 3
	cacheWrites  = 3
	writeTime    = 60 * time.Millisecond

	// memoryRate is how many reads a second of one process cannot be served by a server, but by memory.
	memoryRate = 50_000
)

// cache is the act of the read-write lock.
type cache struct {
	*play
	writer  *worker
	reads   []int       // of each reader
	began   []time.Time // of each reader
	fast    []bool      // whether each reader reads from memory now
	writes  int
	longest time.Duration // wait of the writer
}

// cacheLock is the lock of the act.
func cacheLock(k *lockkeeper.Keeper) (*rwlock.Lock, error) {
	return rwlock.New(k, cacheName, &rwlock.Options{TTL: cacheTTL, Retain: true})
}

func newCache(dir string) *play {
	c := &cache{reads: make([]int, cacheReaders), began: make([]time.Time, cacheReaders), fast: make([]bool, cacheReaders),
		play: newPlay(&timeline.Act{
			Caption: "Read-write lock: readers retain leases in memory until a writer asks.",
			Lanes:   []string{"reader1", "reader2", "reader3", "writer"},
			Legend: []timeline.Word{{State: timeline.Sharing, Text: "reads from memory"}, {State: timeline.Waiting, Text: "waits, or asks the server"},
				{State: timeline.Holding, Text: "writes, after waiting"}},
			Span:   1500 * time.Millisecond,
			Counts: make([]string, cacheReaders+1),
		}, "cache-reader-0", "cache-reader-1", "cache-reader-2", "cache-writer")}
	c.writer = c.workers[cacheReaders]
	for _, w := range c.workers {
		w.shared = filepath.Join(dir, "counters")
	}
	c.play.perform, c.play.observe = c.perform, c.observe
	return c.play
}

// readCache is the part of a reader with an index: it acquires and releases the lock without a pause, in bursts so that other
// processes can run, and reports every 20 ms how often, and whenever it had to wait.
func readCache(index int) func(ctx context.Context, p *part) error {
	return func(ctx context.Context, p *part) error {
		l, err := cacheLock(p.keeper)
		if err != nil {
			return err
		}
		shared, err := openCounters(p.shared)
		if err != nil {
			return err
		}
		inside, writing := &shared[index].n, &shared[cacheReaders].n
		reads, overlaps, lost := 0, 0, false
		since := time.Now()
		report := func(until time.Time, waited time.Duration) {
			p.report(event{State: stateReading, Reads: reads, Duration: until.Sub(since), Waited: waited, Overlaps: overlaps, Lost: lost})
			reads, overlaps, lost, since = 0, 0, false, until.Add(waited)
		}
		for ctx.Err() == nil {
			for burst := time.Now(); time.Since(burst) < 4*time.Millisecond; reads++ {
				asked := time.Now()
				lease, err := l.RLock(ctx)
				if err != nil {
					return err
				}
				if waited := time.Since(asked); waited >= 15*time.Millisecond { // less may be the scheduler of the system
					report(asked, waited)
				}
				inside.Add(1)
				if writing.Load() != 0 {
					overlaps++
				}
				inside.Add(-1)
				if err := lease.Release(ctx); errors.Is(err, lockkeeper.ErrLost) {
					lost = true
				}
			}
			if now := time.Now(); now.Sub(since) >= 20*time.Millisecond {
				report(now, 0)
			}
			time.Sleep(4 * time.Millisecond)
		}
		return nil
	}
}

// writeCache is the part of the writer: it writes whenever it is told to.
func writeCache(ctx context.Context, p *part) error {
	l, err := cacheLock(p.keeper)
	if err != nil {
		return err
	}
	shared, err := openCounters(p.shared)
	if err != nil {
		return err
	}
	writing := &shared[cacheReaders].n
	inside := func() (n int) {
		for i := range cacheReaders {
			n += int(shared[i].n.Load())
		}
		return n
	}
	for p.await(ctx) != "" {
		p.report(event{State: stateWaiting})
		asked := time.Now()
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		waited := time.Since(asked)
		writing.Store(1)
		overlaps := inside()
		p.report(event{State: stateHolding, Fence: lease.Fence(), Duration: waited})
		select {
		case <-time.After(writeTime):
		case <-lease.Done():
		}
		writing.Store(0)
		err = lease.Release(ctx)
		p.report(event{State: stateReleasing, Overlaps: overlaps, Lost: errors.Is(err, lockkeeper.ErrLost)})
	}
	return nil
}

func (c *cache) observe(w *worker, e event) {
	lane := c.lane(w)
	if e.Overlaps > 0 {
		c.suspected("%d reads during a write", e.Overlaps)
	}
	switch e.State {
	case stateReading:
		c.read(lane, e)
	case stateWaiting:
		c.mark(lane, timeline.Waiting, "")
	case stateHolding:
		c.rank(e.Fence)
		c.longest = max(c.longest, e.Duration)
		c.mark(lane, timeline.Holding, seconds(e.Duration))
	case stateReleasing:
		c.mark(lane, timeline.Idle, "")
		c.writes++
		c.Counts[lane] = fmt.Sprintf("%d writes", c.writes)
	}
}

// read notes the reads of a lane since its previous report.
func (c *cache) read(lane int, e event) {
	if c.began[lane].IsZero() {
		c.began[lane] = e.At.Add(-e.Duration - e.Waited)
	}
	c.reads[lane] += e.Reads
	state := timeline.Waiting
	c.fast[lane] = float64(e.Reads) >= memoryRate*e.Duration.Seconds()
	if c.fast[lane] {
		state = timeline.Sharing
	}
	c.since(lane, e.Duration+e.Waited, state)
	if e.Waited > 0 {
		c.since(lane, e.Waited, timeline.Waiting)
	}
	c.Counts[lane] = perSecond(c.rate(lane))
}

// since notes that a lane has been in a state for d, or since its previous event if that is shorter.
func (c *cache) since(lane int, d time.Duration, s timeline.State) {
	from := max(c.at()-d, 0)
	if done := c.Segments(lane, c.at()); len(done) > 0 {
		last := done[len(done)-1]
		if last.State == s {
			return
		}
		from = max(from, last.From)
	}
	c.Add(from, lane, s, "")
}

// rate returns how many times a second a reader has read.
func (c *cache) rate(lane int) float64 {
	return float64(c.reads[lane]) / time.Since(c.began[lane]).Seconds()
}

// perSecond formats a rate.
func perSecond(r float64) string {
	if r >= 1e6 {
		return fmt.Sprintf("%.1f M/s", r/1e6)
	}
	return fmt.Sprintf("%.0f k/s", r/1e3)
}

func (c *cache) perform() error {
	for _, w := range c.workers[:cacheReaders] {
		c.send(w, "go")
	}
	for i := range cacheReaders {
		if err := c.until(func() bool { return c.fast[i] }); err != nil {
			return err
		}
	}
	c.send(c.writer, "go")
	for n := range cacheWrites {
		if err := c.pause(220 * time.Millisecond); err != nil {
			return err
		}
		c.send(c.writer, "write")
		if err := c.until(func() bool { return c.writes > n }); err != nil {
			return err
		}
	}
	if err := c.pause(250 * time.Millisecond); err != nil {
		return err
	}
	total := 0.0
	for i := range cacheReaders {
		total += c.rate(i)
	}
	c.finish("%s reads per second, none during a write; the writer waited %s at most", perSecondText(total), seconds(c.longest))
	return nil
}

// perSecondText formats a rate for a sentence.
func perSecondText(r float64) string {
	if r >= 1e6 {
		return fmt.Sprintf("%.1f million", r/1e6)
	}
	return fmt.Sprintf("%.0f thousand", r/1e3)
}
