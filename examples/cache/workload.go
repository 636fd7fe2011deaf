package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// workload is what is done in each of the ways.
type workload struct {
	processes, readers int           // readers of each process
	pause              time.Duration // of a reader between two reads, on average
	rewrite            time.Duration // between two writes
	length             time.Duration
}

// result is what came of one way.
type result struct {
	name     string
	length   time.Duration
	reads    int
	mixed    int           // reads whose parts were of two versions
	stale    int           // reads of an older version than had been written when they began
	oldest   time.Duration // for how long the version of a stale read had been replaced
	commands int64         // that all clients sent; a script counts as one
	waits    []time.Duration
	writes   int
}

// document is what is cached: of which version each of its parts is.
type document struct{ title, text int }

// source is what the cache is built from. It is slow.
type source struct{ version atomic.Int64 }

func (s *source) fetch() document {
	time.Sleep(20 * time.Millisecond)
	n := int(s.version.Add(1))
	return document{n, n}
}

// history is when each version was written completely.
type history struct {
	mu      sync.Mutex // guards what follows
	written []time.Time
}

// add notes that all versions up to n are written, or replaced.
func (h *history) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.written) <= n {
		h.written = append(h.written, time.Now())
	}
}

// latest is the newest version that is written.
func (h *history) latest() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.written) - 1
}

// replaced returns how long before a moment version n was replaced.
func (h *history) replaced(n int, at time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return at.Sub(h.written[n+1])
}

var errOver = errors.New("the time is over")

// run does the workload in one way. Connect returns a new client.
func (w workload) run(ctx context.Context, way way, connect func() *redis.Client) (*result, error) {
	s := &setup{workload: w, source: &source{}, history: &history{}, result: &result{name: way.name, length: w.length}}
	var commands counter
	s.client = func() *redis.Client {
		rdb := connect()
		rdb.AddHook(&commands)
		s.closing(rdb.Close)
		return rdb
	}
	defer s.close()
	write, err := way.open(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := write(ctx); err != nil { // so that there is something to read
		return nil, err
	}
	var processes []read
	for range w.processes {
		p, err := s.newProcess(ctx)
		if err != nil {
			return nil, err
		}
		processes = append(processes, p)
	}
	before := s.history.latest()
	s.waits = nil
	commands.n.Store(0)

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer time.AfterFunc(w.length, func() { fail(errOver) }).Stop()
	var all sync.WaitGroup
	// loop does something, after a pause, until the time is over or something fails. What has begun is finished: a write that
	// stops half-way would leave a mix behind.
	loop := func(pause func() time.Duration, do func(ctx context.Context) error) {
		all.Go(func() {
			for {
				select {
				case <-time.After(pause()):
				case <-ctx.Done():
					return
				}
				if err := do(context.WithoutCancel(ctx)); err != nil {
					fail(err)
				}
			}
		})
	}
	loop(func() time.Duration { return w.rewrite }, write)
	for _, f := range s.background {
		loop(func() time.Duration { return w.rewrite / 10 }, f)
	}
	tallies := make([]result, w.processes*w.readers)
	for i := range tallies {
		loop(func() time.Duration { return rand.N(2 * w.pause) }, func(ctx context.Context) error {
			return tallies[i].read(ctx, s.history, processes[i%w.processes])
		})
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errOver) {
		return nil, err
	}
	s.commands, s.writes = commands.n.Load(), s.history.latest()-before
	for _, t := range tallies {
		s.reads += t.reads
		s.mixed += t.mixed
		s.stale += t.stale
		s.oldest = max(s.oldest, t.oldest)
	}
	return s.result, nil
}

// read reads the document once and notes what came of it.
func (r *result) read(ctx context.Context, h *history, read read) error {
	began, latest := time.Now(), h.latest()
	d, err := read(ctx)
	if err != nil {
		return err
	}
	r.reads++
	if d.title != d.text {
		r.mixed++
	}
	if n := min(d.title, d.text); n < latest {
		r.stale++
		r.oldest = max(r.oldest, h.replaced(n, began))
	}
	return nil
}

// counter counts the commands that a client sends. It is a redis.Hook.
type counter struct{ n atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
