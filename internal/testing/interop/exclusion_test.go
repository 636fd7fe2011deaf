package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
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
	queued := make(chan struct{})
	closeOnce := sync.OnceFunc(func() { close(queued) })
	m, they := w.mutex(lockkeeper.Hooks{Queued: func(lockkeeper.Event) { closeOnce() }}), w.start()
	they.ask("lock", "acquired")
	if lease, err := m.TryLock(w.ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		w.Fatalf("TryLock while they hold: %v, %v; want ErrNotAcquired", lease, err)
	}
	h, held, err := m.Holder(w.ctx)
	if err != nil || !held || h.Keeper != "" || h.Fence != 0 || h.Token != w.value() {
		w.Errorf("Holder while they hold: %+v, %v, %v; want their token and no keeper", h, held, err)
	}
	leases := make(chan *lockkeeper.Lease, 1)
	go func() {
		lease, err := m.Lock(w.ctx)
		must.Report(w, err)
		leases <- lease
	}()
	select {
	case <-queued:
	case lease := <-leases:
		w.Fatalf("Lock while they hold: %v; want it to wait", lease)
	}
	they.ask("release", "released")
	w.requireValue((<-leases).Token())
}

func (w *world) weHold() {
	they := w.start()
	lease := must.Get(w.mutex(lockkeeper.Hooks{}).Lock(w.ctx))(w)
	they.ask("try", "refused")
	must.OK(w, w.rdb.ConfigResetStat(w.ctx).Err())
	they.send("lock")
	w.s.Await("asked", func(ctx context.Context, rdb redistest.Client) (string, error) {
		stats, err := rdb.Info(ctx, "commandstats").Result()
		if strings.Contains(stats, "cmdstat_set:") || strings.Contains(stats, "cmdstat_eval") {
			return "asked", err
		}
		return stats, err
	})
	w.requireValue(lease.Token())
	must.OK(w, lease.Release(w.ctx))
	they.answer("acquired")
	they.ask("release", "released")
	w.requireValue("")
}

// The lock passes from them to us while they still hold it, as if their lease had expired.
func (w *world) theyReleaseLate() {
	they, m := w.start(), w.mutex(lockkeeper.Hooks{})
	they.ask("lock", "acquired")
	must.OK(w, w.rdb.Del(w.ctx, w.key).Err())
	lease := must.Get(m.TryLock(w.ctx))(w)
	answer := "not held"
	if w.silentRelease {
		answer = "released"
	}
	they.ask("release", answer)
	err := lease.Extend(w.ctx, ttl)
	if w.releasesAnything {
		check.That(w, errors.Is(err, lockkeeper.ErrLost), "Extend after their late release: %v, want ErrLost", err)
		return
	}
	must.OK(w, err)
	must.OK(w, lease.Release(w.ctx))
}

func (w *world) weReleaseLate() {
	they, m := w.start(), w.mutex(lockkeeper.Hooks{})
	lease := must.Get(m.TryLock(w.ctx))(w)
	must.OK(w, w.rdb.Del(w.ctx, w.key).Err())
	they.ask("lock", "acquired")
	token := w.value()
	err := lease.Release(w.ctx)
	check.That(w, errors.Is(err, lockkeeper.ErrLost), "our Release while they hold: %v; want ErrLost", err)
	w.requireValue(token)
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
	total := 0
	for i, command := range []string{theirs, ours, theirs, ours} {
		var rounds, pause int
		must.Get(fmt.Sscanf(command, "count n %d %d", &rounds, &pause))(w)
		total += rounds
		processes[i].send(command)
	}
	for _, p := range processes {
		p.answer("counted")
	}
	n, err := w.rdb.Get(w.ctx, "n").Int()
	check.That(w, err == nil && n == total, "counted to %d, %v, want %d", n, err, total)
	order := must.Get(w.rdb.LRange(w.ctx, "n:order", 0, -1).Result())(w)
	passed := map[string]int{}
	for i := range order[1:] {
		if order[i] != order[i+1] {
			passed["to "+order[i+1]]++
		}
	}
	check.That(w, passed["to lockkeeper"] != 0 && passed["to "+w.library.name] != 0,
		"the lock passed %v, want it in both directions", passed)
}
