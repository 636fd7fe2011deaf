package demo

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

const (
	fairTTL  = 800 * time.Millisecond
	turnTime = 140 * time.Millisecond

	calls   = 8 // in any window
	window  = 600 * time.Millisecond
	atOnce  = 3
	callTTL = 500 * time.Millisecond
)

// acts returns the acts in their order.
func acts() []*play {
	all := []*play{
		{kind: "fair", noun: "turn", limit: 1, perform: takeTurns, Act: timeline.Act{
			Caption: "Fair lock: the holder is killed and a waiter frozen; the others keep order.",
			Lanes:   []string{"w1", "w2", "w3", "w4", "w5"}, Span: 2400 * time.Millisecond,
			Legend: "  █ holds, with fence  · waits  x killed  ~ frozen",
		}},
		{kind: "mutex", noun: "lease", limit: 1, perform: writeLate, others: 2, Act: timeline.Act{
			Caption: "Fence: a process is frozen while it holds the lock, and writes too late.",
			Lanes:   []string{"A", "B", "store without a check", "store that checks"}, Span: 1200 * time.Millisecond,
			Legend: "  █ holds  ~ frozen  ─ stored  ░ stored too late  ! refused",
		}},
		{kind: "rwlock", noun: "write", limit: 1, perform: readAndWrite, Act: timeline.Act{
			Caption: "Read-write lock: readers of a process share a lease for 20 ms.",
			Lanes:   []string{"reader1", "reader2", "reader3", "writer"}, Span: 1500 * time.Millisecond,
			Legend: "  ▒ reads from memory  · waits, or asks the server  █ writes, with fence",
		}},
		{kind: "ratelimit", noun: "call", limit: atOnce, perform: callAPI, Act: timeline.Act{
			Caption: fmt.Sprintf("Rate limit: %d calls in any %v, %d at once; a caller is killed in a call.", calls, window, atOnce),
			Lanes:   []string{"c1", "c2", "c3", "c4"}, Span: 2200 * time.Millisecond,
			Legend: "  █ calls  · waits  x killed",
		}},
	}
	if !canFreeze {
		all = slices.Delete(all, 1, 2)
	}
	for i, p := range all {
		p.Caption = fmt.Sprintf("%d. %s", i+1, p.Caption)
	}
	return all
}

// queue returns the live waiters at the server, in order.
func queue(p *play) (queue []*worker) {
	for _, x := range p.inspect().Waiters {
		i := slices.IndexFunc(p.workers, func(w *worker) bool { return w.keeper == x.Keeper })
		if i >= 0 && x.Alive && p.workers[i].state != timeline.Frozen {
			queue = append(queue, p.workers[i])
		}
	}
	return queue
}

// takeTurns is the act of the fair lock.
func takeTurns(p *play) string {
	var next *worker // must acquire the lock next; nil if that is not known
	p.observe = func(w *worker, e event) {
		switch e.State {
		case timeline.Idle:
			w.send("lock") // again
		case timeline.Holding:
			first := append(queue(p), nil)[0]
			if next != nil && next != w && next == first { // otherwise the machine paused it, and it has lost its place
				p.violated("%s acquired the lock out of order: %s was first in the queue", w.name, next.name)
			}
			next = first
		}
	}
	turn := func() *worker {
		w := p.holder()
		p.pause(turnTime)
		p.release(w)
		return w
	}
	for _, w := range p.workers {
		w.send("lock")
	}
	turn()
	turn()
	p.holder()
	p.pause(2 * turnTime) // so that the lease has been renewed
	var waiting []*worker
	p.until(func() bool { waiting = queue(p); return len(waiting) == len(p.workers)-1 })
	killed, second, what := p.holder(), waiting[1], ""
	at := p.force(killed, timeline.Killed, killed.cmd.Process.Kill())
	if canFreeze {
		p.force(second, timeline.Frozen, process.Suspend(second.cmd.Process))
		what = "; " + second.name + " is frozen in the queue"
	}
	p.note(at, "%s is killed while it holds the lock%s", killed.name, what)
	w := p.holder()
	recovery := rounded(w.granted.Sub(at))
	p.note(w.granted, "%s holds the lock, %v after the kill: the lease has expired", w.name, recovery)
	verdict := fmt.Sprintf("1 holder at a time, in order; the killed holder was replaced after %v (ttl %v)", recovery, fairTTL)
	before, w := turn(), p.holder()
	if canFreeze {
		skip := rounded(max(w.granted.Sub(before.freed), 0))
		p.note(w.granted, "%s, whose turn it is, is frozen; %s holds the lock %v later", second.name, w.name, skip)
		verdict += fmt.Sprintf(", the frozen waiter cost the others %v", skip)
		process.Resume(second.cmd.Process)
		p.force(second, timeline.Waiting, nil)
		next = nil
		for n := second.grants; second.grants == n; p.holder() {
			turn()
		}
	}
	p.pause(turnTime)
	return verdict
}

// writeLate is the act of the fence. Its stores are kept by the demo itself.
func writeLate(p *play) string {
	var unchecked, checked uint64 // the fences of the last writes that the stores have accepted
	writes := 0
	a, b := p.workers[0], p.workers[1]
	p.observe = func(w *worker, e event) {
		if !e.Writes {
			return
		}
		writes++
		without, with := timeline.Stored, timeline.Stored
		if e.Fence < checked {
			without, with = timeline.Stale, timeline.Refused
		} else {
			checked = e.Fence
		}
		unchecked = e.Fence
		at, lane, label := p.since(e.At), len(p.workers), w.name+w.rank
		p.Add(timeline.Event{At: at, Lane: lane, State: without, Label: label})
		p.Add(timeline.Event{At: at, Lane: lane + 1, State: with, Label: label})
	}
	write := func(w *worker) {
		before := writes
		w.send("write")
		p.until(func() bool { return writes > before })
	}
	a.send("lock")
	write(p.holder())
	p.pause(100 * time.Millisecond)
	p.note(p.force(a, timeline.Frozen, process.Suspend(a.cmd.Process)), "A is frozen while it holds the lock; B waits")
	b.send("lock")
	p.holder()
	p.note(b.granted, "the lease of A has expired: B holds the lock")
	p.pause(100 * time.Millisecond)
	p.note(time.Now(), "B writes with fence %s", b.rank)
	write(b)
	p.pause(150 * time.Millisecond)
	process.Resume(a.cmd.Process)
	p.note(p.force(a, timeline.Idle, nil), "A is resumed, and writes with fence %s", a.rank)
	write(a)
	p.release(a)
	p.pause(300 * time.Millisecond) // to let it be seen
	if a.lost {
		p.losses-- // it is part of the act
	} else {
		p.violated("A was not told that its lease was lost")
	}
	if unchecked != a.fence || checked != b.fence {
		p.violated("the store without a check has the write with fence %d, the one that checks that with %d", unchecked, checked)
	}
	return fmt.Sprintf("without a check A%s has replaced B%s, with one it was refused; A was told that it had lost the lock", a.rank, b.rank)
}

// readAndWrite is the act of the read-write lock.
func readAndWrite(p *play) string {
	readers, writer := p.workers[:3], p.workers[3]
	longest := time.Duration(0)
	p.observe = func(_ *worker, e event) { longest = max(longest, e.Waited) }
	for _, w := range readers {
		w.send("read")
	}
	for _, w := range readers {
		p.until(func() bool { return w.reads > 0 })
	}
	for range 3 {
		p.pause(220 * time.Millisecond)
		writer.send("lock")
		p.holder()
		p.pause(4 * longBreak)
		p.release(writer)
	}
	p.pause(250 * time.Millisecond)
	if n := p.Together(timeline.Sharing, timeline.Holding); n > 0 {
		p.violated("%d processes read during a write", n)
	}
	return fmt.Sprintf("%s million reads per second, none during a write; the writer waited %v at most", p.millions(readers...), rounded(longest))
}

// callAPI is the act of the rate limit.
func callAPI(p *play) string {
	var granted []time.Time
	victim := p.workers[3]
	hangs := func(w *worker) bool { return w == victim && w.grants == 3 } // in the call in which it is killed
	p.observe = func(w *worker, e event) {
		switch e.State {
		case timeline.Idle:
			w.send("lock") // again
		case timeline.Holding:
			granted = append(granted, time.UnixMicro(int64(e.Fence))) // the fence of a call is the time at which it was permitted
			if !hangs(w) {
				time.AfterFunc(time.Duration(50+rand.IntN(40))*time.Millisecond, func() { w.send("release") })
			}
		}
	}
	for _, w := range p.workers {
		w.send("lock")
	}
	p.until(func() bool { return hangs(victim) })
	p.pause(80 * time.Millisecond)
	killed := p.force(victim, timeline.Killed, victim.cmd.Process.Kill())
	p.note(killed, "%s is killed during a call, with its permit", victim.name)
	p.until(func() bool {
		return !slices.ContainsFunc(p.inspect().Holders, func(h lockkeeper.Holder) bool { return h.Keeper == victim.keeper })
	})
	returned := rounded(time.Since(killed))
	p.note(time.Now(), "its permit is free again %v later: the lease has expired", returned)
	before := len(granted)
	p.until(func() bool { return time.Since(p.start) >= 7*window/2 && len(granted) > before })
	slices.SortFunc(granted, time.Time.Compare)
	for i := calls; i < len(granted); i++ {
		if d := granted[i].Sub(granted[i-calls]); d < window-time.Millisecond { // the server's time has milliseconds, a fence is in µs
			p.violated("%d calls were permitted within %v", calls+1, d)
		}
	}
	return fmt.Sprintf("at most %d calls in any %v and %d at once; the permit of the killed caller was free again after %v (ttl %v)",
		calls, window, p.Together(timeline.Holding, timeline.Holding), returned, callTTL)
}
