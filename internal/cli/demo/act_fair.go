package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

const (
	turnsName = "turns"
	turnsTTL  = 800 * time.Millisecond
	turnTime  = 140 * time.Millisecond
)

// turns is the act of the fair lock.
type turns struct {
	*play
	lock   *fair.Lock // only for queries
	holder *worker
	next   string // the worker that must acquire the lock next; "" if that is not known
	frozen *worker

	counts   map[*worker]int
	granted  time.Time             // when the holder was granted the lock
	released map[*worker]time.Time // when each worker began to release it the last time
}

// turnsLock is the lock that the workers of the act take turns with.
func turnsLock(k *lockkeeper.Keeper) (*fair.Lock, error) {
	return fair.New(k, turnsName, &fair.Options{TTL: turnsTTL})
}

func newTurns(k *lockkeeper.Keeper) (*turns, error) {
	lock, err := turnsLock(k)
	if err != nil {
		return nil, err
	}
	t := &turns{lock: lock, counts: map[*worker]int{}, released: map[*worker]time.Time{}, play: newPlay(&timeline.Act{
		Caption: "Fair lock: the holder is killed and a waiter frozen; the others keep order.",
		Lanes:   []string{"w1", "w2", "w3", "w4", "w5"},
		Legend: []timeline.Word{{State: timeline.Holding, Text: "holds, with fence"}, {State: timeline.Waiting, Text: "waits"},
			{State: timeline.Killed, Text: "killed"}, {State: timeline.Frozen, Text: "frozen"}},
		Span:   2400 * time.Millisecond,
		Counts: make([]string, 5),
	}, "turn", "turn", "turn", "turn", "turn")}
	t.play.perform, t.play.observe = t.perform, t.observe
	return t, nil
}

// takeTurns is the part of a worker: it holds the lock until it is told to release it, and queues again.
func takeTurns(ctx context.Context, p *part) error {
	l, err := turnsLock(p.keeper)
	if err != nil {
		return err
	}
	resource := role{name: turnsName, exclusive: true}
	for {
		p.report(event{State: stateWaiting})
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		e := event{State: stateHolding, Fence: lease.Fence(), At: time.Now()}
		if err := resource.enter(ctx, p.rdb, p.id, &e); err != nil {
			return err
		}
		p.report(e)
		p.await(lease.Context(ctx))
		if err := resource.leave(ctx, p.rdb, p.id); err != nil {
			return err
		}
		freed := time.Now() // before the next holder is granted it, whose event may come first
		err = lease.Release(ctx)
		p.report(event{State: stateReleasing, At: freed, Lost: errors.Is(err, lockkeeper.ErrLost)})
	}
}

func (t *turns) observe(w *worker, e event) {
	switch lane := t.lane(w); e.State {
	case stateWaiting:
		t.mark(lane, timeline.Waiting, "")
	case stateReleasing:
		t.mark(lane, timeline.Idle, "")
		t.released[w] = e.At
		if t.holder == w {
			t.holder = nil
		}
	case stateHolding:
		t.mark(lane, timeline.Holding, t.rank(e.Fence))
		t.counts[w]++
		t.Counts[lane] = fmt.Sprintf("%d turns", t.counts[w])
		if t.counts[w] == 1 {
			t.Counts[lane] = "1 turn"
		}
		if e.Inside != "" && !t.gone(e.Inside) {
			t.suspected("%s acquired the lock while %s held it", w.id, e.Inside)
		}
		queue := t.queue()
		// A waiter that the machine paused has lost its place, and is no longer the first one.
		if t.next != "" && t.next != w.id && len(queue) > 0 && queue[0] == t.next {
			t.suspected("%s acquired the lock out of order: %s was first in the queue", w.id, t.next)
		}
		t.next = ""
		if len(queue) > 0 {
			t.next = queue[0]
		}
		t.holder, t.granted = w, e.At
	}
}

// gone reports whether a worker was killed or frozen while it held the lock.
func (t *turns) gone(id string) bool {
	return slices.ContainsFunc(t.workers, func(w *worker) bool { return w.id == id && w.state == stateKilled })
}

// queue returns the live waiters at the server, in order.
func (t *turns) queue() []string {
	return workerIDs(t.workers, func(ctx context.Context) ([]lockkeeper.Waiter, error) {
		all, err := t.lock.Waiters(ctx)
		return slices.DeleteFunc(all, func(w lockkeeper.Waiter) bool {
			return !w.Alive || t.frozen != nil && w.Keeper == t.frozen.keeper
		}), err
	}, func(w lockkeeper.Waiter) string { return w.Keeper })
}

// turn waits for a holder and lets it release the lock after a while. It returns when that was.
func (t *turns) turn() (freed time.Time, err error) {
	if err := t.until(func() bool { return t.holder != nil }); err != nil {
		return freed, err
	}
	holder, before := t.holder, t.released[t.holder]
	if err := t.pause(turnTime); err != nil {
		return freed, err
	}
	t.send(holder, "release")
	err = t.until(func() bool { return !t.released[holder].Equal(before) })
	return t.released[holder], err
}

func (t *turns) perform() error {
	for _, w := range t.workers {
		t.send(w, "go")
	}
	for range 2 {
		if _, err := t.turn(); err != nil {
			return err
		}
	}
	// The holder is killed and the second waiter frozen, when all are in the queue.
	if err := t.until(func() bool { return t.holder != nil && len(t.queue()) == len(t.workers)-1 }); err != nil {
		return err
	}
	if err := t.pause(turnTime); err != nil {
		return err
	}
	recovery, left, err := t.crash()
	if err != nil {
		return err
	}
	if recovery < left-5*time.Millisecond {
		t.violated("the lease of the killed holder had %v left, but another process held the lock after %v", left, recovery)
	}
	t.noteAt(t.granted, "%s holds the lock, %s after the kill: the lease has expired", t.holder.id, seconds(recovery))
	freed, err := t.turn()
	if err != nil {
		return err
	}
	if err := t.until(func() bool { return t.holder != nil }); err != nil {
		return err
	}
	skip := max(t.granted.Sub(freed), 0)
	t.noteAt(t.granted, "%s, whose turn it is, is frozen; %s holds the lock %s later", t.frozen.id, t.holder.id, seconds(skip))
	frozen := t.frozen
	t.resume()
	for before := t.counts[frozen]; t.counts[frozen] == before; {
		if _, err := t.turn(); err != nil {
			return err
		}
		if err := t.until(func() bool { return t.holder != nil }); err != nil {
			return err
		}
	}
	if err := t.pause(turnTime); err != nil {
		return err
	}
	t.finish("1 holder at a time, in order; the killed holder was replaced after %s (ttl %s), the frozen waiter cost the others %s",
		seconds(recovery), seconds(turnsTTL), seconds(skip))
	return nil
}

// crash kills the holder and freezes the second waiter. It returns when the next worker holds the lock: how long that took, and
// how much of the lease was left.
func (t *turns) crash() (recovery, left time.Duration, err error) {
	killed, queue := t.holder, t.queue()
	if len(queue) < 2 || killed == nil {
		return 0, 0, errLate
	}
	if err := t.kill(killed); err != nil {
		return 0, 0, err
	}
	at := time.Now()
	if h, held, err := t.lock.Holder(t.ctx); err == nil && held && h.Keeper == killed.keeper {
		left = h.ExpiresIn
	}
	for _, w := range t.workers {
		if w.id == queue[1] {
			t.frozen = w
		}
	}
	if err := t.freeze(t.frozen); err != nil {
		return 0, 0, err
	}
	t.noteAt(at, "%s is killed while it holds the lock; %s is frozen in the queue", killed.id, t.frozen.id)
	t.holder = nil
	err = t.until(func() bool { return t.holder != nil })
	return t.granted.Sub(at), left, err
}

// resume continues the frozen worker, which queues again.
func (t *turns) resume() {
	process.Resume(t.frozen.cmd.Process)
	t.frozen.state = stateWaiting
	t.mark(t.lane(t.frozen), timeline.Waiting, "")
	t.frozen, t.next = nil, ""
}
