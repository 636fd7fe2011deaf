package demo

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

const (
	fairName    = "orders:42"
	fairWorkers = 6
)

// queue is the scenario in which workers wait for a fair lock, and some are killed or frozen.
type queue struct {
	*screen
	lock    *fair.Lock // only for queries
	workers []*worker

	acquired    int
	overlaps    int
	fenceErrors int // fences that were not larger than the previous one
	outOfOrder  int
	next        string   // the worker that must acquire the lock next
	pending     []*fault // still to be injected
	injected    []*fault
	released    time.Time // when the last holder began to release the lock
}

// fault is a fault that is injected into a worker.
type fault struct {
	after    time.Duration // since the start of the demo; it is injected at the next acquisition
	event    string        // for the line of the event
	title    string        // for the summary
	inject   func(*os.Process) error
	first    bool   // into the first worker of the queue; otherwise into the holder
	state    string // of the worker afterwards
	cause    string // what determines the recovery time
	worker   *worker
	recovery time.Duration // until the next acquisition, from the fault; or from the release, if the holder is alive
}

func kill(p *os.Process) error { return p.Kill() }

// demoFair is the lock that all workers contend for.
func demoFair(k *lockkeeper.Keeper) (*fair.Lock, error) {
	return fair.New(k, fairName, &fair.Options{TTL: demoTTL})
}

func newQueue(s *screen, k *lockkeeper.Keeper) (*queue, error) {
	lock, err := demoFair(k)
	if err != nil {
		return nil, err
	}
	q := &queue{screen: s, lock: lock, pending: []*fault{
		{
			after: time.Second, event: "is killed while it holds the lock", title: "killed while holding",
			inject: kill, state: stateKilled, cause: fmt.Sprintf("the lease expires after at most %v", demoTTL),
		},
		{
			after: 3500 * time.Millisecond, event: "is killed while it is first in the queue", title: "killed while first",
			inject: kill, first: true, state: stateKilled, cause: "its wake-up had no receiver, so the next waiter was notified",
		},
		{
			after: 4500 * time.Millisecond, event: "is frozen while it is first in the queue", title: "frozen while first",
			inject: process.Suspend, first: true, state: stateFrozen,
			cause: fmt.Sprintf("the heartbeat times out after at most %v", demoHeartbeatTimeout),
		},
	}}
	for i := range fairWorkers {
		q.workers = append(q.workers, &worker{id: fmt.Sprintf("worker-%d", i+1), role: "fair"})
	}
	return q, nil
}

func (q *queue) handle(w *worker, e event, stopping bool) {
	if e.State == stateReleasing {
		q.released = w.since
	}
	if e.State != stateHolding {
		return
	}
	q.acquired++
	var last *fault // from which the workers have not recovered yet
	if n := len(q.injected); n > 0 && q.injected[n-1].recovery == 0 {
		last = q.injected[n-1]
	}
	if e.Inside != "" && !(last != nil && last.worker.id == e.Inside) {
		q.overlaps++
	}
	if e.Fence <= e.LastFence {
		q.fenceErrors++
	}
	waiting := q.waiting()
	if last != nil {
		q.recover(last, w)
	} else if q.next != "" && q.next != w.id && !stopping && len(waiting) > 0 && waiting[0] == q.next {
		// A waiter that the machine paused has lost its place, and is no longer the first one. Workers that are stopped leave the queue.
		q.outOfOrder++
		q.printf("%s acquired the lock out of order: %s was first in the queue", w.id, q.next)
	}
	q.next = ""
	if len(waiting) > 0 {
		q.next = waiting[0]
	}
	if !q.tty {
		q.printf("%s holds the lock, fence %d; queue: %s", w.id, e.Fence, strings.Join(waiting, " "))
	}
	if !stopping {
		q.injectNext(w)
	}
}

// recover notes that w was the first to acquire the lock after a fault.
func (q *queue) recover(f *fault, w *worker) {
	since := f.worker.since
	if f.first {
		since = q.released
	}
	f.recovery = max(w.since.Sub(since), time.Microsecond)
	q.printf("%s acquired the lock %v later: %s", w.id, rounded(f.recovery), f.cause)
	if f.state == stateFrozen {
		process.Resume(f.worker.cmd.Process)
		f.worker.state, f.worker.since = stateWaiting, time.Now()
		q.printf("%s is resumed, and waits again", f.worker.id)
	}
}

// waiting is the queue at the server.
func (q *queue) waiting() []string {
	return workerIDs(q.workers, q.lock.Waiters, func(w lockkeeper.Waiter) string { return w.Keeper })
}

// injectNext injects the next fault, if its time has come, into the holder or into the first worker of the queue.
func (q *queue) injectNext(holder *worker) {
	if len(q.pending) == 0 || time.Since(q.start) < q.pending[0].after {
		return
	}
	f := q.pending[0]
	f.worker = holder
	if f.first {
		waiting := q.waiting()
		if len(waiting) < 2 {
			return // try again at the next acquisition
		}
		for _, w := range q.workers {
			if w.id == waiting[0] {
				f.worker = w
			}
		}
	}
	q.pending = q.pending[1:]
	if err := f.inject(f.worker.cmd.Process); err != nil {
		q.printf("fault injection into %s failed: %v", f.worker.id, err)
		return
	}
	q.injected = append(q.injected, f)
	q.next = ""
	f.worker.state, f.worker.since = f.state, time.Now()
	q.printf("%s %s", f.worker.id, f.event)
}

func (q *queue) stateText() string {
	var b strings.Builder
	fmt.Fprintln(&b)
	for _, w := range q.workers {
		w.writeLine(&b, stateHolding)
	}
	fmt.Fprintf(&b, "\n  queue: %s\n", strings.Join(q.waiting(), " "))
	fmt.Fprintf(&b, "  %d acquisitions, %d overlaps\n", q.acquired, q.overlaps)
	return b.String()
}

func (q *queue) summarize() bool {
	increasing := "yes"
	if q.fenceErrors > 0 {
		increasing = fmt.Sprintf("no, %d were not larger than the previous one", q.fenceErrors)
	}
	fmt.Fprintf(q.out, "\nacquisitions:           %d by %d processes\n", q.acquired, len(q.workers))
	fmt.Fprintf(q.out, "overlapping holders:    %d\n", q.overlaps)
	fmt.Fprintf(q.out, "out of order:           %d\n", q.outOfOrder)
	fmt.Fprintf(q.out, "fences increasing:      %s\n", increasing)
	missing := len(q.pending)
	for _, f := range q.injected {
		fmt.Fprintf(q.out, "%-23s %s; next acquisition %v later (%s)\n", f.title+":", f.worker.id, rounded(f.recovery), f.cause)
		if f.recovery == 0 {
			missing++
		}
	}
	return q.overlaps == 0 && q.outOfOrder == 0 && q.fenceErrors == 0 && q.acquired > 0 && missing == 0
}
