package proptest

import (
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"pgregory.net/rapid"
)

// state is how a process fares.
type state string

const (
	running state = "running"
	lossy   state = "lossy"   // some of its requests or answers are lost
	muted   state = "muted"   // it is not subscribed and cannot be
	away    state = "away"    // it has no connection and gets none
	slow    state = "slow"    // its requests or answers take long
	frozen  state = "frozen"  // it does not run; the server sees open connections
	crashed state = "crashed" // for good
)

// process is a keeper with a client and a network of its own.
type process struct {
	*lockkeeper.Keeper
	w    *world
	id   int
	rdb  *redis.Client
	link *link

	// Guarded by world.mu.
	state    state
	steady   time.Time     // from when on it is whole and has settled, if it is running
	hurt     time.Time     // when it was last whole before that; zero: it always was
	back     time.Time     // when it came back
	deafened time.Time     // when its subscription was last deafened
	copied   time.Time     // when copies of what it has sent last came
	lined    time.Time     // when one of its requests was last seen in line or holding
	thawed   chan struct{} // closed when a frozen one runs again, or never will
}

// join starts one more process.
func (w *world) join() {
	w.mu.Lock()
	id := len(w.processes)
	w.mu.Unlock()
	l := newLink(faultnet.Buffer(w.server.dial), w.lag, int64(id))
	p := &process{w: w, id: id, link: l, state: running, steady: time.Now(), rdb: redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Dialer: l.Dial, DialerRetries: 1, ReadTimeout: w.timeout, PoolSize: 100,
		// While goroutines wait for a lock the clock of a bubble stands still, so nothing may take time under one.
		MaxRetries: -1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, DisableIdentity: true,
	})}
	var err error
	p.Keeper, err = lockkeeper.New(p.rdb, &lockkeeper.Options{
		HeartbeatInterval: w.period, HeartbeatTimeout: w.life(), MetadataTTL: idle,
		Hooks: lockkeeper.Hooks{
			WakeupReceived: func(e lockkeeper.Event) { w.messageReceived(e.Token) },
		},
		Retry:  lockkeeper.RetryPolicy{MaxElapsed: -1},
		Logger: silent,
	})
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes = append(w.processes, p)
}

// in is all processes in one of the states.
func (w *world) in(states ...state) []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*process
	for _, p := range w.processes {
		if slices.Contains(states, p.state) {
			list = append(list, p)
		}
	}
	return list
}

// activeProcesses is the processes whose program goes on.
func (w *world) activeProcesses() []*process { return w.in(running, lossy, slow, muted, away) }

// isSteady says whether the process and the server are whole and have had the time to settle. The caller has the lock.
func (p *process) isSteady() bool {
	return p.state == running && !time.Now().Before(p.steady) && !time.Now().Before(p.w.sound)
}

// neverDegraded says whether nothing was ever done to the process or the server. The caller has the lock.
func (p *process) neverDegraded() bool {
	return p.state == running && p.hurt.IsZero() && p.w.ill.IsZero()
}

// degrade brings a process that is running into another state, which lasts for d.
func (p *process) degrade(s state, d time.Duration) {
	w := p.w
	w.mu.Lock()
	// Requests that are lost for a moment are made good in time; but with a message lost shortly before, a short lease can be
	// over by then that a waiter was granted and has not heard of.
	if s != lossy || d >= w.life() || w.quick() || w.timeout > usual.timeout || time.Since(p.deafened) < w.life() {
		w.markUnwellLocked(p)
	}
	w.noteLocked("process %d is %s for %v", p.id, s, d)
	if p.isSteady() || p.hurt.IsZero() {
		p.hurt = time.Now()
	}
	p.state = s
	if s == frozen {
		p.thawed = make(chan struct{})
	}
	w.tally["a process is "+string(s)]++
	w.mu.Unlock()
	switch s {
	case muted:
		p.link.Refuse(true)
		p.link.CutSubscriptions()
	case away:
		p.link.Down()
	case frozen:
		p.link.Freeze(rapid.Bool().Draw(w.r, "reads stand still"))
	}
	w.after(d, func() { p.recover(s) })
}

// markUnwellLocked says that the waiters of the process are not well off.
func (w *world) markUnwellLocked(p *process) {
	for _, q := range w.requests {
		if q.p == p {
			q.well = time.Time{}
		}
	}
}

// recover ends a state.
func (p *process) recover(s state) {
	w := p.w
	w.mu.Lock()
	if p.state != s { // it has crashed meanwhile
		w.mu.Unlock()
		return
	}
	now := time.Now()
	w.noteLocked("process %d runs again", p.id)
	p.back, p.steady = now, now.Add(w.settling()+4*w.lag)
	if late := p.link.tail(); late > 0 || s == frozen { // what was sent before, and given up, may come yet
		p.steady, p.copied = p.steady.Add(late), now.Add(late)
	}
	w.mu.Unlock()
	p.link.Refuse(false)
	p.link.Restore()
	p.link.Slow(0, 0)
	p.link.Thaw()
	p.wake(running)
}

// wake brings a process into a state in which its goroutines do not stand still.
func (p *process) wake(s state) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.state = s
	if p.thawed != nil {
		close(p.thawed)
		p.thawed = nil
	}
}

// crash ends a process: nothing that it does reaches the server any more, and nobody looks at its results. Another
// takes its place.
func (p *process) crash() { p.crashAfterHandover(nil) }

// crashAfterHandover is crash, where the program hands the token of a lease on first, and does not use it any more.
func (p *process) crashAfterHandover(handed *request) {
	w := p.w
	w.mu.Lock()
	w.noteLocked("process %d crashes", p.id)
	w.tally["a process is crashed"]++
	w.markUnwellLocked(p)
	var until []time.Time
	for _, q := range w.requests {
		if q.p == p && q != handed && q.believesHeld() {
			q.until = q.lease.Deadline()
			until = append(until, q.until)
		}
	}
	w.mu.Unlock()
	p.link.Kill()
	p.wake(crashed)
	p.link.Thaw()
	go func() { _ = p.Close() }() // so that it keeps nobody busy
	for _, at := range until {
		w.after(time.Until(at), func() {}) // looks
	}
	w.join()
}

// awaitRunning returns when the process runs; it says whether it will.
func (p *process) awaitRunning() bool {
	for {
		p.w.mu.Lock()
		s, thawed := p.state, p.thawed
		p.w.mu.Unlock()
		switch s {
		case frozen:
			<-thawed
		case crashed:
			return false
		default:
			return true
		}
	}
}

// makeSubscriptionStale lets nothing through on the subscription of a process. Nothing is lost by that but messages, so its waiters
// are still well off, until its keeper finds out and replaces the subscription.
func (p *process) makeSubscriptionStale() {
	w := p.w
	w.mu.Lock()
	if p.isSteady() || p.hurt.IsZero() {
		p.hurt = time.Now()
	}
	if p.deafened = time.Now(); p.state == lossy {
		w.markUnwellLocked(p)
	}
	w.noteLocked("process %d is deaf", p.id)
	w.mu.Unlock()
	p.link.BlackholeSubscriptions()
}
