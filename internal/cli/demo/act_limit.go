package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

const (
	quotaName   = "quota"
	quotaCalls  = 8 // in any window
	quotaWindow = 600 * time.Millisecond
	quotaAtOnce = 3
	quotaTTL    = 500 * time.Millisecond
)

// quota is the act of the rate limit.
type quota struct {
	*play
	server  *server
	limit   *ratelimit.Limiter // only for queries
	calls   map[*worker]int
	granted []arrival // of all calls, with the time at which they were permitted
	atOnce  int
	hanging bool // the worker that is to be killed is in a call that does not end
	victim  *worker
}

// quotaLimit is the limit of the act.
func quotaLimit(k *lockkeeper.Keeper) (*ratelimit.Limiter, error) {
	return ratelimit.New(k, quotaName, quotaCalls, quotaWindow, &ratelimit.Options{MaxConcurrent: quotaAtOnce, TTL: quotaTTL})
}

func newQuota(s *server) (*play, error) {
	limit, err := quotaLimit(s.keeper)
	if err != nil {
		return nil, err
	}
	q := &quota{server: s, limit: limit, calls: map[*worker]int{}, play: newPlay(&timeline.Act{
		Caption: fmt.Sprintf("Rate limit: %d calls in any %s, %d at once; a caller is killed in a call.", quotaCalls, seconds(quotaWindow), quotaAtOnce),
		Lanes:   []string{"c1", "c2", "c3", "c4"},
		Legend: []timeline.Word{{State: timeline.Holding, Text: "calls"}, {State: timeline.Waiting, Text: "waits"},
			{State: timeline.Killed, Text: "killed"}},
		Span:   2200 * time.Millisecond,
		Counts: make([]string, 4),
	}, "quota", "quota", "quota", "quota")}
	q.victim = q.workers[3]
	q.play.perform, q.play.observe = q.perform, q.observe
	return q.play, nil
}

// callWithin is the part of a worker: it calls the API as often as the limit permits. After the command hang, a call does not end.
func callWithin(ctx context.Context, p *part) error {
	l, err := quotaLimit(p.keeper)
	if err != nil {
		return err
	}
	api := role{name: quotaName, permits: 1}
	for {
		p.report(event{State: stateWaiting})
		lease, err := l.Acquire(ctx)
		if err != nil {
			return err
		}
		e := event{State: stateHolding, Fence: lease.Fence()}
		if err := api.enter(ctx, p.rdb, p.id, &e); err != nil {
			return err
		}
		p.report(e)
		call, end := context.WithTimeout(lease.Context(ctx), time.Duration(50+rand.IntN(40))*time.Millisecond)
		if p.await(call) == "hang" {
			p.report(event{State: stateIdle})
			<-lease.Done()
		}
		end()
		if err := api.leave(ctx, p.rdb, p.id); err != nil {
			return err
		}
		err = lease.Release(ctx)
		p.report(event{State: stateReleasing, Lost: errors.Is(err, lockkeeper.ErrLost)})
	}
}

func (q *quota) observe(w *worker, e event) {
	lane := q.lane(w)
	switch e.State {
	case stateWaiting:
		q.mark(lane, timeline.Waiting, "")
	case stateHolding:
		q.mark(lane, timeline.Holding, "")
		q.calls[w]++
		q.Counts[lane] = fmt.Sprintf("%d calls", q.calls[w])
		q.granted = append(q.granted, arrival{granted: time.UnixMicro(int64(e.Fence)), permits: 1})
		q.atOnce = max(q.atOnce, e.Concurrent)
		if e.Concurrent > quotaAtOnce {
			q.suspected("%d calls at once", e.Concurrent)
		}
	case stateReleasing:
		q.mark(lane, timeline.Idle, "")
	case stateIdle:
		q.hanging = true
	}
}

// held reports whether the victim holds a permit at the server.
func (q *quota) held() bool {
	list, err := q.limit.Holders(q.ctx)
	for _, h := range list {
		if h.Keeper == q.victim.keeper {
			return true
		}
	}
	return err != nil
}

func (q *quota) perform() error {
	for _, w := range q.workers {
		q.send(w, "go")
	}
	if err := q.until(func() bool { return len(q.granted) > quotaCalls+2 && q.calls[q.victim] > 0 }); err != nil {
		return err
	}
	q.send(q.victim, "hang")
	if err := q.until(func() bool { return q.hanging }); err != nil {
		return err
	}
	if err := q.pause(80 * time.Millisecond); err != nil {
		return err
	}
	if err := q.kill(q.victim); err != nil {
		return err
	}
	killed := time.Now()
	q.note("%s is killed during a call, with its permit", q.victim.id)
	// The API notices that the connection is closed, and ends the call.
	if err := leave.Run(q.ctx, q.server.rdb, []string{"demo:inside:" + quotaName}, q.victim.id).Err(); err != nil {
		return err
	}
	if err := q.until(func() bool { return !q.held() }); err != nil {
		return err
	}
	returned := time.Since(killed)
	q.note("its permit is free again %s later: the lease has expired", seconds(returned))
	before := len(q.granted)
	if err := q.until(func() bool { return q.now() >= 7*quotaWindow/2 && len(q.granted) > before }); err != nil {
		return err
	}
	// The server's time has milliseconds, a fence is in µs.
	most := maxWithin(q.granted, quotaWindow-time.Millisecond, func(a arrival) time.Time { return a.granted })
	if most > quotaCalls {
		q.violated("%d calls were permitted within %s", most, seconds(quotaWindow))
	}
	q.finish("at most %d calls in any %s and %d at once; the permit of the killed caller was free again after %s (ttl %s)",
		most, seconds(quotaWindow), q.atOnce, seconds(returned), seconds(quotaTTL))
	return nil
}
