package demo

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

const (
	lateName = "report"
	lateTTL  = 400 * time.Millisecond

	uncheckedStore = "demo:store:unchecked"
	checkedStore   = "demo:store:checked"

	uncheckedLane = 2
	checkedLane   = 3
)

// late is the act of the fence.
type late struct {
	*play
	server *server
	holds  map[*worker]string // fences of the holders, as labels
	wrote  int                // writes so far
	lost   bool               // the frozen worker has noticed the loss
}

// lateLock is the lock of the act.
func lateLock(k *lockkeeper.Keeper) (*mutex.Mutex, error) {
	return mutex.New(k, lateName, &mutex.Options{TTL: lateTTL})
}

func newLate(s *server) *play {
	l := &late{server: s, holds: map[*worker]string{}, play: newPlay(&timeline.Act{
		Caption: "Fence: a process is frozen while it holds the lock, and writes too late.",
		Lanes:   []string{"A", "B", "store without a check", "store that checks"},
		Legend: []timeline.Word{{State: timeline.Holding, Text: "holds"}, {State: timeline.Frozen, Text: "frozen"},
			{State: timeline.Stored, Text: "stored"}, {State: timeline.Stale, Text: "stored too late"}, {State: timeline.Refused, Text: "refused"}},
		Span: 1200 * time.Millisecond,
	}, "late", "late")}
	l.play.perform, l.play.observe = l.perform, l.observe
	return l.play
}

// writeBoth writes to two stores. The second one refuses a fence that is smaller than the largest that it has seen. It returns
// whether it has accepted.
var writeBoth = redis.NewScript(`
	redis.call('HSET', KEYS[1], 'by', ARGV[1])
	if tonumber(ARGV[2]) < tonumber(redis.call('HGET', KEYS[2], 'fence') or 0) then return 0 end
	redis.call('HSET', KEYS[2], 'by', ARGV[1], 'fence', ARGV[2])
	return 1`)

// writeLate is the part of a worker. Its writes do not depend on the context of the lease: they stand for a write that was on
// its way already when the process was frozen.
func writeLate(ctx context.Context, p *part) error {
	m, err := lateLock(p.keeper)
	if err != nil {
		return err
	}
	p.report(event{State: stateWaiting})
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	p.report(event{State: stateHolding, Fence: lease.Fence()})
	for p.await(ctx) == "write" {
		accepted, err := writeBoth.Run(ctx, p.rdb, []string{uncheckedStore, checkedStore}, p.id, strconv.FormatUint(lease.Fence(), 10)).Bool()
		if err != nil {
			return err
		}
		p.report(event{State: stateWrote, Refused: !accepted})
	}
	err = lease.Release(ctx)
	p.report(event{State: stateReleasing, Lost: errors.Is(err, lockkeeper.ErrLost)})
	<-ctx.Done()
	return nil
}

func (l *late) observe(w *worker, e event) {
	lane := l.lane(w)
	switch e.State {
	case stateWaiting:
		l.mark(lane, timeline.Waiting, "")
	case stateHolding:
		l.holds[w] = l.rank(e.Fence)
		l.mark(lane, timeline.Holding, l.holds[w])
	case stateWrote:
		l.wrote++
		label := w.id + l.holds[w]
		stale := len(l.holds) == 2 && w == l.workers[0]
		switch {
		case stale && e.Refused:
			l.mark(uncheckedLane, timeline.Stale, label)
			l.mark(checkedLane, timeline.Refused, label)
		case stale:
			l.violated("the store that checks fences accepted %s after %s", label, l.holds[l.workers[1]])
		case e.Refused:
			l.violated("the store refused %s, which is the largest fence", label)
		default:
			l.mark(uncheckedLane, timeline.Stored, label)
			l.mark(checkedLane, timeline.Stored, label)
		}
	case stateReleasing:
		l.mark(lane, timeline.Idle, "")
		if w == l.workers[0] {
			l.lost = e.Lost
		}
	}
}

// write lets a worker write and waits until it has.
func (l *late) write(w *worker) error {
	before := l.wrote
	l.send(w, "write")
	return l.until(func() bool { return l.wrote > before })
}

func (l *late) perform() error {
	a, b := l.workers[0], l.workers[1]
	holds := func(w *worker) func() bool { return func() bool { return l.holds[w] != "" } }
	l.send(a, "go")
	if err := l.until(holds(a)); err != nil {
		return err
	}
	if err := l.write(a); err != nil {
		return err
	}
	if err := l.pause(100 * time.Millisecond); err != nil {
		return err
	}
	if err := l.freeze(a); err != nil {
		return err
	}
	l.note("A is frozen while it holds the lock; B waits")
	l.send(b, "go")
	if err := l.until(holds(b)); err != nil {
		return err
	}
	l.note("the lease of A has expired: B holds the lock, and writes with fence %s", l.holds[b])
	if err := l.pause(100 * time.Millisecond); err != nil {
		return err
	}
	if err := l.write(b); err != nil {
		return err
	}
	if err := l.pause(150 * time.Millisecond); err != nil {
		return err
	}
	process.Resume(a.cmd.Process)
	l.mark(l.lane(a), timeline.Idle, "")
	if err := l.write(a); err != nil {
		return err
	}
	l.note("A is resumed, and writes with fence %s", l.holds[a])
	l.send(a, "release")
	if err := l.until(func() bool { return a.state == stateReleasing }); err != nil {
		return err
	}
	if err := l.pause(300 * time.Millisecond); err != nil { // to let it be seen
		return err
	}
	return l.conclude()
}

// conclude compares what the stores hold.
func (l *late) conclude() error {
	unchecked, err := l.server.rdb.HGet(l.ctx, uncheckedStore, "by").Result()
	if err != nil {
		return err
	}
	checked, err := l.server.rdb.HGet(l.ctx, checkedStore, "by").Result()
	if err != nil {
		return err
	}
	if !l.lost {
		l.violated("A was not told that its lease was lost")
	}
	if checked != "B" || unchecked != "A" {
		l.violated("the store without a check has the write of %s, the one that checks that of %s", unchecked, checked)
	}
	a, b := l.holds[l.workers[0]], l.holds[l.workers[1]]
	l.finish("without a check A%s has replaced B%s, with one it was refused; A was told that it had lost the lock", a, b)
	return nil
}
