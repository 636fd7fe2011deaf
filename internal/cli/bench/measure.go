package bench

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/handoff"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

const (
	goroutines = 64
	rounds     = 3 // in which every case has a turn
	ttl        = 30 * time.Second
	// cleanupTimeout limits the deletion of the keys.
	cleanupTimeout = 2 * time.Second
)

// bench measures one deployment.
type bench struct {
	rdb     redis.UniversalClient
	prefix  string
	name    string // begins the names of all keys
	keepers [2]*lockkeeper.Keeper
	pair    *handoff.Pair
}

// benchCase is something to measure: what each of a number of goroutines does again and again.
type benchCase struct {
	id         string
	goroutines int
	do         func(ctx context.Context, goroutine int) (time.Duration, error) // returns how long it took
	durations  []time.Duration
	elapsed    time.Duration
}

func open(t *redisurl.Target, prefix, name string) (*bench, error) {
	b := &bench{rdb: t.WithoutRetries().Client(), prefix: prefix, name: name, pair: handoff.New()}
	for i := range b.keepers {
		k, err := lockkeeper.New(b.rdb, &lockkeeper.Options{
			Prefix: prefix, NoPrefix: prefix == "", MetadataTTL: time.Minute, NoOwner: true,
			Logger: slog.New(slog.DiscardHandler), Hooks: lockkeeper.Hooks{Queued: b.pair.Queued},
			Retry: lockkeeper.RetryPolicy{MaxElapsed: answerTimeout},
		})
		if err != nil {
			_ = b.rdb.Close()
			return nil, err
		}
		b.keepers[i] = k
	}
	return b, nil
}

// close releases what is held and deletes all keys, in bounded time.
func (b *bench) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, k := range b.keepers {
			_ = k.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(cleanupTimeout):
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	p := b.rdb.Pipeline()
	for i := range goroutines {
		p.Del(ctx, b.plainKey(i))
		b.deleteKeys(ctx, p, b.lockName(i), lua.Mutex.Kind)
	}
	b.deleteKeys(ctx, p, b.name, lua.Fair.Kind)
	b.deleteKeys(ctx, p, b.name, lua.RateLimit.Kind)
	_, _ = p.Exec(ctx)
	_ = b.rdb.Close()
}

func (b *bench) deleteKeys(ctx context.Context, p redis.Pipeliner, name, kind string) {
	if keys, err := protocol.KeysOf(b.prefix, name, kind, false); err == nil {
		p.Del(ctx, keys.All()...)
	}
}

func (b *bench) lockName(i int) string { return fmt.Sprintf("%s:%d", b.name, i) }
func (b *bench) plainKey(i int) string { return fmt.Sprintf("%s%s:plain:%d", b.prefix, b.name, i) }

// timed measures do.
func timed(do func() error) (time.Duration, error) {
	start := time.Now()
	err := do()
	return time.Since(start), err
}

// cases returns all cases. The lock of the hand-off is held from now on.
func (b *bench) cases(ctx context.Context) ([]*benchCase, error) {
	setDel := func(ctx context.Context, i int) (time.Duration, error) {
		return timed(func() error {
			if err := b.rdb.SetArgs(ctx, b.plainKey(i), "token", redis.SetArgs{Mode: "NX", TTL: ttl}).Err(); err != nil {
				return err
			}
			return b.rdb.Del(ctx, b.plainKey(i)).Err()
		})
	}
	var locks []*mutex.Mutex
	for i := range goroutines {
		m, err := mutex.New(b.keepers[0], b.lockName(i), &mutex.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		locks = append(locks, m)
	}
	lock := func(ctx context.Context, i int) (time.Duration, error) {
		return timed(func() error {
			lease, err := locks[i].Lock(ctx)
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		})
	}
	limiter, err := ratelimit.New(b.keepers[0], b.name, 1_000_000, time.Second, nil)
	if err != nil {
		return nil, err
	}
	if err := b.pair.Lock(ctx, b.keepers, b.name); err != nil {
		return nil, err
	}
	return []*benchCase{
		{id: "ping", goroutines: 1, do: func(ctx context.Context, _ int) (time.Duration, error) {
			return timed(func() error { return b.rdb.Ping(ctx).Err() })
		}},
		{id: "set_del", goroutines: 1, do: setDel},
		{id: "lock", goroutines: 1, do: lock},
		{id: "set_del_64", goroutines: goroutines, do: setDel},
		{id: "lock_64", goroutines: goroutines, do: lock},
		{id: "handoff", goroutines: 1, do: func(ctx context.Context, _ int) (time.Duration, error) { return b.pair.HandOver(ctx) }},
		{id: "allow", goroutines: 1, do: func(ctx context.Context, _ int) (time.Duration, error) {
			return timed(func() error {
				_, err := limiter.Allow(ctx)
				return err
			})
		}},
	}, nil
}

// measure runs all cases, in turns.
func (b *bench) measure(ctx context.Context, total time.Duration, progress *terminal.Progress) ([]result, error) {
	first, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := b.rdb.Ping(first).Err(); err != nil {
		return nil, fmt.Errorf("the server does not answer: %w", err)
	}
	cases, err := b.cases(first)
	if err != nil {
		return nil, err
	}
	turn := total / time.Duration(rounds*len(cases))
	for round := range rounds {
		for i, c := range cases {
			progress.Show("measuring %s, %d of %d", titles[c.id], round*len(cases)+i+1, rounds*len(cases))
			if err := c.run(ctx, turn); err != nil {
				return nil, fmt.Errorf("%s: %w", titles[c.id], err)
			}
		}
	}
	return summarize(cases), b.pair.Release(ctx)
}

// run repeats the case for the duration of a turn, at least once per goroutine.
func (c *benchCase) run(ctx context.Context, turn time.Duration) error {
	var wg sync.WaitGroup
	all, errs := make([][]time.Duration, c.goroutines), make([]error, c.goroutines)
	start := time.Now()
	for g := range c.goroutines {
		wg.Go(func() {
			for len(all[g]) == 0 || time.Since(start) < turn {
				d, err := c.do(ctx, g)
				if err != nil {
					errs[g] = err
					return
				}
				all[g] = append(all[g], d)
			}
		})
	}
	wg.Wait()
	c.elapsed += time.Since(start)
	c.durations = append(c.durations, slices.Concat(all...)...)
	for _, err := range errs { // of several, one says enough
		if err != nil {
			return err
		}
	}
	return nil
}
