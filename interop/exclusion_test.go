package interop

import (
	"context"
	"errors"
	"fmt"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/redis/go-redis/v9"
)

// TestExclusion: a mutex and the locks of these libraries exclude each other, and hand the key to each other.
func TestExclusion(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(*world)
	}{
		{"they_hold", (*world).theyHold},
		{"we_hold", (*world).weHold},
		{"they_release_late", (*world).theyReleaseLate},
		{"we_release_late", (*world).weReleaseLate},
		{"both_count", (*world).bothCount},
	} {
		for _, l := range libraries {
			t.Run(c.name+"/"+strings.ReplaceAll(l.name, " ", "_"), func(t *testing.T) { c.run(newWorld(t, l)) })
		}
	}
}

func (w *world) theyHold() {
	queued := make(chan struct{}, 1)
	opts := options()
	opts.Hooks.Queued = func(lockkeeper.Event) {
		select {
		case queued <- struct{}{}:
		default:
		}
	}
	m, they := w.mutex(opts), w.start()
	they.ask("lock", "acquired")
	if lease, err := m.TryLock(w.ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		w.Fatalf("TryLock while they hold: %v, %v; want ErrNotAcquired", lease, err)
	}
	h, held, err := m.Holder(w.ctx)
	if err != nil || !held || h.Keeper != "" || h.Fence != 0 || h.Token != w.value() {
		w.Errorf("Holder while they hold: %+v, %v, %v; want their token and no keeper", h, held, err)
	}
	type result struct {
		lease *lockkeeper.Lease
		err   error
	}
	got := make(chan result, 1)
	go func() {
		lease, err := m.Lock(w.ctx)
		got <- result{lease, err}
	}()
	select {
	case <-queued:
	case r := <-got:
		w.Fatalf("Lock while they hold: %v, %v; want it to wait", r.lease, r.err)
	}
	they.ask("release", "released")
	r := <-got
	w.must(r.err)
	if v := w.value(); v != r.lease.Token() {
		w.Errorf("the key holds %q, want our token %q", v, r.lease.Token())
	}
	w.must(r.lease.Release(w.ctx))
}

func (w *world) weHold() {
	they := w.start()
	lease := must.Get(w.mutex(options()).Lock(w.ctx))(w)
	they.ask("try", "refused")
	w.must(w.rdb.ConfigResetStat(w.ctx).Err())
	they.send("lock")
	w.s.Await("asked", func(ctx context.Context, rdb *redis.Client) (string, error) {
		stats, err := rdb.Info(ctx, "commandstats").Result()
		if strings.Contains(stats, "cmdstat_set:") || strings.Contains(stats, "cmdstat_eval") {
			return "asked", err
		}
		return stats, err
	})
	if v := w.value(); v != lease.Token() {
		w.Errorf("while they wait the key holds %q, want our token %q", v, lease.Token())
	}
	w.must(lease.Release(w.ctx))
	they.answer("acquired")
	they.ask("release", "released")
	if v := w.value(); v != "" {
		w.Errorf("after their release the key holds %q", v)
	}
}

// The lock passes from them to us while they still hold it, as if their lease had expired.
func (w *world) theyReleaseLate() {
	they, m := w.start(), w.mutex(options())
	they.ask("lock", "acquired")
	w.must(w.rdb.Del(w.ctx, w.key).Err())
	lease := must.Get(m.TryLock(w.ctx))(w)
	if w.silentRelease {
		they.ask("release", "released")
	} else {
		they.ask("release", "not held")
	}
	err := lease.Extend(w.ctx, ttl)
	if w.releasesAnything {
		if !errors.Is(err, lockkeeper.ErrLost) {
			w.Errorf("Extend after their late release: %v, want ErrLost", err)
		}
		return
	}
	w.must(err)
	w.must(lease.Release(w.ctx))
}

func (w *world) weReleaseLate() {
	they, m := w.start(), w.mutex(options())
	lease := must.Get(m.TryLock(w.ctx))(w)
	w.must(w.rdb.Del(w.ctx, w.key).Err())
	they.ask("lock", "acquired")
	token := w.value()
	if err := lease.Release(w.ctx); !errors.Is(err, lockkeeper.ErrLost) {
		w.Errorf("our Release while they hold: %v; want ErrLost", err)
	}
	if v := w.value(); v != token {
		w.Errorf("after our Release the key holds %q, want their token %q", v, token)
	}
	they.ask("release", "released")
}

// Two processes of theirs and two of ours count.
func (w *world) bothCount() {
	theirs, ours := "count n 50 5", "count n 50 5"
	if w.sleeps { // for 2 s: then ours take longer, and both leave room, which is not a matter of exclusion
		theirs, ours = "count n 20 50", "count n 50 100"
		// The server looks for expired BLPOPs when it has handled a command, or ten times a second. On an idle server they would
		// mostly end just after the command that acquires the lock for one of ours.
		ctx, cancel := context.WithCancel(w.ctx)
		defer cancel()
		go func() {
			for ctx.Err() == nil {
				_ = w.rdb.Ping(ctx).Err()
				time.Sleep(time.Millisecond)
			}
		}()
	}
	processes := []*process{w.start(), w.startOurs(), w.start(), w.startOurs()}
	for _, p := range processes { // so that all of them have started
		p.send("count warm-up 1 0")
	}
	for _, p := range processes {
		p.answer("counted")
	}
	commands := []string{theirs, ours, theirs, ours}
	total := 0
	for i, p := range processes {
		var rounds, pause int
		must.Get(fmt.Sscanf(commands[i], "count n %d %d", &rounds, &pause))(w)
		total += rounds
		p.send(commands[i])
	}
	for _, p := range processes {
		p.answer("counted")
	}
	if n, err := w.rdb.Get(w.ctx, "n").Int(); err != nil || n != total {
		w.Errorf("counted to %d, %v, want %d", n, err, total)
	}
	order := must.Get(w.rdb.LRange(w.ctx, "n:order", 0, -1).Result())(w)
	passed := map[string]int{}
	for i := range order[1:] {
		if order[i] != order[i+1] {
			passed["to "+order[i+1]]++
		}
	}
	w.Logf("passed %v", passed)
	if passed["to lockkeeper"] == 0 || passed["to "+w.library.name] == 0 {
		w.Errorf("the lock passed %v, want it in both directions", passed)
	}
}
