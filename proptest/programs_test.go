package proptest

import (
	"context"
	"flag"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"pgregory.net/rapid"
)

// This file is what the simulations of leases that processes share and of permits that they take ahead have in common: worlds in which
// each process runs programs that acquire again and again.

// simulatePrograms runs schedules: a part of as many as were asked for, or a few that are always the same.
func simulatePrograms(t *testing.T, part float64, usually int, schedule func(*world), reached ...string) {
	run := newRun(t)
	if !checksSet { // a default run shows whether a change has broken something; others search
		defer setFlag("rapid.seed", setFlag("rapid.seed", "1"))
		part = float64(usually) / checks
	}
	schedules := 0
	checkPart(t, part, func(r *rapid.T) {
		schedules++
		run.simulate(r, nil, func(w *world) {
			defer w.stop()
			w.times = usual
			schedule(w)
		})
	})
	if schedules < many {
		reached = nil
	}
	run.report(reached...)
}

// checkPart is rapid.Check with a fraction of the checks.
func checkPart(t *testing.T, part float64, sequence func(*rapid.T)) {
	checks := flag.Lookup("rapid.checks").Value
	all := checks.String()
	defer func() { _ = checks.Set(all) }()
	n, err := strconv.Atoi(all)
	if err == nil {
		err = checks.Set(strconv.Itoa(max(1, int(part*float64(n)))))
	}
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, sequence)
}

// disturbance draws a fault, or something else that may happen, its process, and for how long it may last.
func (w *world) disturbance(r *rapid.T, longest time.Duration, all []string) (what string, p *process, d time.Duration) {
	p = draw(r, w.processes, "process")
	d = duration(r, longest)
	what = rapid.SampledFrom(all).Draw(r, "fault")
	w.note("%s, process %d, %v", what, p.id, d)
	w.reach(what)
	return what, p, d
}

// faults are those that inject knows.
var faults = []string{"replies lost", "duplicates", "cut off", "frozen", "slow", "disconnected", "crash", "server frozen", "clock back"}

// inject injects one of faults, which mostly ends after d.
func (w *world) inject(r *rapid.T, what string, p *process, d time.Duration) {
	l, after := p.link, func(f func()) { time.AfterFunc(d, f) }
	switch what {
	case "replies lost":
		l.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), rapid.SampledFrom(replyFaults).Draw(r, "fault"))
	case "duplicates":
		l.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), rapid.SampledFrom(replyFaults).Draw(r, "fault")|faultnet.Copy)
		after(func() { _ = l.Replay() })
	case "cut off", "frozen":
		l.Freeze(what == "frozen")
		after(l.Thaw)
	case "slow":
		l.Slow(d/4, d/2)
		after(func() { l.Slow(0, 0) })
	case "disconnected":
		l.Refuse(true)
		l.Cut()
		after(func() { l.Refuse(false) })
	case "crash":
		if len(w.in(crashed)) == 0 && len(w.processes) > 1 {
			l.Kill()
			p.wake(crashed)
		}
	case "server frozen":
		synctest.Wait()
		w.server.freeze()
		after(w.server.thaw)
	case "clock back":
		w.server.jump(-d * 10)
		w.setBack += d * 10
	default:
		panic(what)
	}
}

// conclude ends all faults, and checks that each process is served then, within that time, and that
// nothing is left when what remains on purpose is gone.
func (w *world) conclude(within, remains time.Duration, advance func(time.Duration), promise string, served func(context.Context, *process) error) {
	w.server.thaw()
	for _, p := range w.in(running) {
		p.link.recover()
	}
	advance(8*time.Second + w.settling()) // until the last fault would have ended anyway
	for _, p := range w.in(running) {     // one after the other
		ctx, cancel := context.WithTimeout(context.Background(), within)
		if err := served(ctx, p); err != nil {
			w.breaks(promise, "process %d at the end: %v", p.id, err)
		}
		cancel()
	}
	w.stop()
	for _, p := range w.processes {
		_ = p.rdb.Close() // those that crashed would dial for as long as time passes
	}
	time.Sleep(2*time.Minute + w.setBack + remains)
	w.checkLeft(true, w.server.keys())
}
