// Command worker is a process of the rollout test: it takes locks of every kind as fast as it can, and looks from inside whether they
// exclude. The test builds it twice: from these sources, and from those of an earlier commit, beside which it has to work; so it uses only
// the API that both have.
//
// It reads commands from its standard input: "load SECONDS", which prints what it has done; "queue ID", which prints "queued ID" and
// later "held ID"; and "release", which ends what queue has acquired.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

const (
	permits       = 3 // of the semaphore
	limit, window = 40, 500 * time.Millisecond
)

var ctx = context.Background()

// enter notes at the server that a holder is inside, with its fence, and returns what is wrong about that. A sum of more than ARGV[2] of
// weights ARGV[1] must not be inside; a fence must be larger than all before if no more than one holder can be inside.
var enter = redis.NewScript(`
local inside = redis.call('INCRBY', KEYS[1], ARGV[1])
if inside > tonumber(ARGV[2]) then return 'a weight of ' .. inside .. ' is inside, of ' .. ARGV[2] end
local last = redis.call('GET', KEYS[2]) or '0'
if ARGV[3] == '0' then return '' end
redis.call('SET', KEYS[2], ARGV[3])
if #ARGV[3] < #last or #ARGV[3] == #last and ARGV[3] <= last then return 'fence ' .. ARGV[3] .. ' after ' .. last end
return ''`)

type worker struct {
	rdb     redis.UniversalClient
	keeper  *lockkeeper.Keeper
	done    map[string]*atomic.Int64
	release chan struct{}
	queued  chan struct{}
}

func main() {
	var rdb redis.UniversalClient = redis.NewClient(&redis.Options{Addr: os.Args[1]})
	if len(os.Args) > 2 { // the server is a Cluster of one shard
		rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: os.Args[1:2]})
	}
	w := &worker{rdb: rdb, done: map[string]*atomic.Int64{}, release: make(chan struct{}), queued: make(chan struct{}, 100)}
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.Hooks{Queued: func(ev lockkeeper.Event) {
		if ev.Name == "order" {
			select {
			case w.queued <- struct{}{}:
			default:
			}
		}
	}}})
	must(err)
	w.keeper = k
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		command, arg, _ := strings.Cut(in.Text(), " ")
		switch command {
		case "load":
			d, err := time.ParseDuration(arg)
			must(err)
			w.load(d)
		case "queue":
			w.queue(arg)
		case "release":
			w.release <- struct{}{}
		}
	}
	must(k.Close())
}

// queue waits for the lock whose order is checked.
func (w *worker) queue(id string) {
	l, err := fair.New(w.keeper, "order", nil)
	must(err)
	for len(w.queued) > 0 {
		<-w.queued
	}
	held := make(chan struct{})
	go func() {
		lease, err := l.Lock(ctx)
		must(err)
		close(held)
		fmt.Println("held", id)
		<-w.release
		must(lease.Release(ctx))
	}()
	select {
	case <-w.queued:
		fmt.Println("queued", id)
	case <-held:
	}
}

// load takes locks of every kind for so long, by several goroutines each.
func (w *worker) load(d time.Duration) {
	m, err := mutex.New(w.keeper, "m", nil)
	must(err)
	f, err := fair.New(w.keeper, "f", &fair.Options{TTL: 3 * time.Second}) // the claim of a waiter is its whole ttl
	must(err)
	rw, err := rwlock.New(w.keeper, "rw", nil)
	must(err)
	s, err := semaphore.New(w.keeper, "s", permits, nil)
	must(err)
	r, err := ratelimit.New(w.keeper, "r", limit, window, nil)
	must(err)
	end := time.Now().Add(d)
	var all sync.WaitGroup
	loop := func(kind string, goroutines int, once func() error) {
		n := &atomic.Int64{}
		w.done[kind] = n
		for range goroutines {
			all.Go(func() {
				for time.Now().Before(end) {
					must(once())
					n.Add(1)
				}
			})
		}
	}
	loop("mutex", 2, func() error { return w.inside("m", 1, 1, m.Lock) })
	loop("fair", 2, func() error { return w.inside("f", 1, 1, f.Lock) })
	loop("write", 1, func() error { return w.inside("rw", 1000, 1000, rw.Lock) })
	loop("read", 2, func() error { return w.inside("rw", 1, 999, rw.RLock) })
	loop("permit", 3, func() error { return w.inside("s", 1, permits, permitOf(s)) })
	loop("allow", 1, func() error { return w.allow(r) })
	all.Wait()
	for kind, n := range w.done {
		fmt.Println("done", kind, n.Load())
	}
	fmt.Println("end")
}

// permitOf returns what acquires one permit of a semaphore. Acquire of earlier commits, with whose sources this is built as well, takes
// the number of permits.
func permitOf(s any) func(context.Context) (*lockkeeper.Lease, error) {
	if s, ok := s.(interface {
		Acquire(context.Context) (*lockkeeper.Lease, error)
	}); ok {
		return s.Acquire
	}
	before := s.(interface {
		Acquire(context.Context, int) (*lockkeeper.Lease, error)
	})
	return func(ctx context.Context) (*lockkeeper.Lease, error) { return before.Acquire(ctx, 1) }
}

// inside acquires, looks whether others are inside whom this excludes, and releases.
func (w *worker) inside(name string, weight, most int, lock func(context.Context) (*lockkeeper.Lease, error)) error {
	lease, err := lock(ctx)
	if err != nil {
		return err
	}
	fence := uint64(0)
	if weight == most { // no other is inside
		fence = lease.Fence()
	}
	wrong, err := enter.Run(ctx, w.rdb, []string{"{" + name + "}:inside", "{" + name + "}:fence"}, weight, most, fence).Text()
	if err != nil {
		return err
	}
	if wrong != "" {
		fmt.Println("wrong", name, wrong)
	}
	time.Sleep(time.Millisecond)
	if err := w.rdb.DecrBy(ctx, "{"+name+"}:inside", int64(weight)).Err(); err != nil {
		return err
	}
	return errors.Join(lease.Err(), lease.Release(ctx))
}

// allow asks a rate limit, and prints when it was allowed, by the server's clock: between two times in µs.
func (w *worker) allow(r *ratelimit.Limiter) error {
	before := w.rdb.Time(ctx).Val()
	result, err := r.Allow(ctx)
	if err != nil {
		return err
	}
	if result.Allowed {
		fmt.Println("allowed", before.UnixMicro(), w.rdb.Time(ctx).Val().UnixMicro())
	}
	time.Sleep(2 * time.Millisecond)
	return nil
}

func must(err error) {
	if err != nil {
		fmt.Println("wrong", err)
		os.Exit(1)
	}
}
