package measure_test

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// acquire is how a lease of the name x is had.
type acquire func(context.Context) (*lockkeeper.Lease, error)

// TestCountsStayLow guards what costs time against growing unnoticed. Unlike times, these counts are the same on every
// machine. A change that makes one larger has to say why, and raise it here.
func TestCountsStayLow(t *testing.T) {
	redistest.Need(t)
	for _, c := range []struct {
		name     string
		new      func(*lockkeeper.Keeper) (acquire, error)
		calls    float64 // that the scripts of a Lock and its Release make, uncontended
		allocs   float64 // of a Lock and its Release, in this process
		handoff  float64 // client commands for each acquisition when 8 keepers want it
		passing  float64 // calls inside scripts for each of these
		messages float64 // for each of these
	}{
		{"mutex", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := mutex.New(k, "x", nil)
			return l.Lock, err
		}, 7.1, 42, 2.2, 26.9, 1},
		{"fair", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := fair.New(k, "x", nil)
			return l.Lock, err
		}, 8.1, 42, 2.2, 26.9, 1},
		{"rwlock read", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := rwlock.New(k, "x", nil)
			return l.RLock, err
		}, 11.1, 42, 2.2, 12.4, 0.1},
		{"rwlock write", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := rwlock.New(k, "x", nil)
			return l.Lock, err
		}, 11.1, 42, 2.2, 32.9, 1},
		{"semaphore", func(k *lockkeeper.Keeper) (acquire, error) {
			s, err := semaphore.New(k, "x", 1, nil)
			return func(ctx context.Context) (*lockkeeper.Lease, error) { return s.Acquire(ctx, 1) }, err
		}, 11.1, 42, 2.2, 30.9, 1},
		{"semaphore by the clock", func(k *lockkeeper.Keeper) (acquire, error) {
			s, err := semaphore.New(k, "x", 1_000_000, &semaphore.Options{Per: time.Minute})
			return func(ctx context.Context) (*lockkeeper.Lease, error) { return s.Acquire(ctx, 1) }, err
		}, 8.3, 26, 1.1, 8.5, 0.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t)
			n := &counter{t, s.Client()}
			lock := n.keeper(s, c.new)
			n.once(lock)
			runs := 0
			n.reset()
			allocs := testing.AllocsPerRun(200, func() {
				n.once(lock)
				runs++
			})
			calls, commands := n.calls()
			n.check("calls inside scripts", float64(calls-commands)/float64(runs), c.calls)
			n.check("allocations", allocs, c.allocs)

			var locks []acquire
			for range 8 {
				locks = append(locks, n.keeper(s, c.new))
			}
			n.reset()
			const each = 25
			var wg sync.WaitGroup
			for _, l := range locks {
				wg.Go(func() {
					for range each {
						n.once(l)
					}
				})
			}
			wg.Wait()
			calls, commands = n.calls()
			n.check("client commands for each acquisition", float64(commands)/(8*each), c.handoff)
			n.check("calls inside scripts for each acquisition", float64(calls-commands)/(8*each), c.passing)
			n.check("messages for each acquisition", float64(n.stat("publish"))/(8*each), c.messages)
		})
	}
}

type counter struct {
	*testing.T
	rdb *redis.Client
}

func (n *counter) keeper(s *redistest.Server, make func(*lockkeeper.Keeper) (acquire, error)) acquire {
	n.Helper()
	k, err := lockkeeper.New(s.Client(), &lockkeeper.Options{Heartbeat: 5 * time.Second, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = k.Close() })
	l, err := make(k)
	if err != nil {
		n.Fatal(err)
	}
	return l
}

func (n *counter) once(l acquire) {
	lease, err := l(ctx)
	if err == nil {
		err = lease.Release(ctx)
	}
	if err != nil {
		n.Error(err)
	}
}

func (n *counter) check(what string, got, most float64) {
	n.Helper()
	n.Logf("%s: %.2f, at most %.2f", what, got, most)
	if got > most {
		n.Errorf("%s: %.2f, at most %.2f", what, got, most)
	}
}

func (n *counter) reset() {
	n.Helper()
	if err := n.rdb.ConfigResetStat(ctx).Err(); err != nil {
		n.Fatal(err)
	}
}

// calls is how many commands the server has run, those in scripts included, and how many of them were scripts.
func (n *counter) calls() (all, scripts int) {
	n.Helper()
	scripts = n.stat("evalsha") + n.stat("eval")
	for _, name := range []string{"config|resetstat", "info", "subscribe", "unsubscribe", "hello", "client|setinfo", "ping"} {
		all -= n.stat(name)
	}
	return all + n.stat(""), scripts
}

// stat is how often a command was run; "" is all of them.
func (n *counter) stat(command string) (calls int) {
	n.Helper()
	info, err := n.rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		n.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		count, _, _ := strings.Cut(rest, ",")
		if command == "" || name == command {
			c, _ := strconv.Atoi(count)
			calls += c
		}
	}
	return calls
}
