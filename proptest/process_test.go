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

// state is the state of a process.
type state string

const (
	running      state = "running"
	lossy        state = "lossy"        // some of its requests or replies are lost
	unsubscribed state = "unsubscribed" // it is not subscribed and cannot subscribe
	unseen       state = "unseen"       // its subscription is acknowledged, but the server does not count it and no message comes
	disconnected state = "disconnected" // it has no connection and cannot connect
	slow         state = "slow"         // its requests or replies are slow
	frozen       state = "frozen"       // it does not run; the server sees open connections
	crashed      state = "crashed"      // permanently
)

// process is a keeper with a client and a network of its own.
type process struct {
	*lockkeeper.Keeper
	w    *world
	id   int
	rdb  *redis.Client
	link *link
	told *reports

	// Guarded by world.mu.
	state         state
	harmed        bool          // by more than a reply that was lost now and then
	steadyFrom    time.Time     // from when on it is healthy and has settled, if it is running
	degradedAt    time.Time     // when it was last degraded; zero: never
	recoveredAt   time.Time     // when it last recovered
	staleSince    time.Time     // when its subscription last became stale
	lastDuplicate time.Time     // when duplicates of its requests last arrived
	lastActive    time.Time     // when one of its requests was last seen waiting or holding
	thawed        chan struct{} // closed when it is thawed or crashes
}

// join starts another process of a schedule.
func (w *world) join() {
	w.startProcess(func(*process) lockkeeper.Hooks {
		return lockkeeper.Hooks{WakeupReceived: func(e lockkeeper.Event) { w.messageReceived(e.Token) }}
	})
}

// startProcess starts another process, whose keeper has these hooks.
func (w *world) startProcess(hooks func(*process) lockkeeper.Hooks) *process {
	w.mu.Lock()
	id := len(w.processes)
	w.mu.Unlock()
	l := newLink(faultnet.Buffer(w.server.dial), w.lag, int64(id))
	p := &process{w: w, id: id, link: l, told: newReports(), state: running, steadyFrom: time.Now(), rdb: redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Dialer: l.Dial, DialerRetries: 1, ReadTimeout: w.timeout, PoolSize: 100,
		// While goroutines wait for a mutex the clock of a bubble does not advance, so nothing may take time under
		// one.
		MaxRetries: -1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, DisableIdentity: true,
	})}
	var err error
	var ack lockkeeper.ReplicaAck
	if w.replicas {
		ack = lockkeeper.ReplicaAck{Replicas: 1, Timeout: w.acknowledged}
	}
	p.Keeper, err = lockkeeper.New(p.rdb, &lockkeeper.Options{
		NoOwner:           true,
		ReplicaAck:        ack,
		HeartbeatInterval: w.period, HeartbeatTimeout: w.heartbeatTimeout(), MetadataTTL: w.idle,
		Hooks:  p.told.count(hooks(p)),
		Retry:  w.retry,
		Logger: w.logger(),
	})
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes = append(w.processes, p)
	return p
}

// in returns the processes in one of these states.
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

// activeProcesses returns the processes whose program runs.
func (w *world) activeProcesses() []*process {
	return w.in(running, lossy, slow, unsubscribed, unseen, disconnected)
}

// isSteady reports whether the process and the server are healthy and have had time to settle. The caller holds the
// mutex.
func (p *process) isSteady() bool {
	return p.state == running && !time.Now().Before(p.steadyFrom) && !time.Now().Before(p.w.healthyFrom)
}

// neverDegraded reports whether neither the process nor the server was ever degraded. The caller holds the mutex.
func (p *process) neverDegraded() bool {
	return p.state == running && p.degradedAt.IsZero() && p.w.degradedAt.IsZero()
}

// neverHarmed reports whether nothing happened to the process, or just what a lease outlasts. The caller holds the mutex.
func (p *process) neverHarmed() bool {
	w := p.w
	return p.neverDegraded() || !p.harmed && w.degradedAt.IsZero() && !w.quick() && w.timeout == usual.timeout && w.lag <= 2*time.Millisecond
}

// degrade puts a running process into another state for d.
func (p *process) degrade(s state, d time.Duration) {
	w := p.w
	w.mu.Lock()
	// Requests that are lost for a moment are retried in time; but with a message lost shortly before, a short lease
	// that a waiter was granted without knowing it can expire by then.
	if s != lossy || d >= w.heartbeatTimeout() || w.quick() || w.timeout > usual.timeout || time.Since(p.staleSince) < w.heartbeatTimeout() {
		w.markUnwellLocked(p)
	}
	w.noteLocked("process %d is %s for %v", p.id, s, d)
	if p.isSteady() || p.degradedAt.IsZero() {
		p.degradedAt = time.Now()
	}
	p.state, p.harmed = s, true
	if s == frozen {
		p.thawed = make(chan struct{})
	}
	w.tally["a process is "+string(s)]++
	w.mu.Unlock()
	switch s {
	case unsubscribed:
		p.link.Refuse(true)
		p.link.CutSubscriptions()
	case unseen:
		w.server.hide(p.ID(), true)
		p.link.CutSubscriptions()
	case disconnected:
		p.link.Down()
	case frozen:
		p.link.Freeze(rapid.Bool().Draw(w.r, "reads are frozen"))
	}
	w.after(d, func() { p.recover(s) })
}

// markUnwellLocked marks the waiters of the process as unhealthy.
func (w *world) markUnwellLocked(p *process) {
	for _, q := range w.requests {
		if q.p == p {
			q.healthySince = time.Time{}
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
	p.recoveredAt, p.steadyFrom = now, now.Add(w.settling()+4*w.lag)
	if late := p.link.tail(); late > 0 || s == frozen { // requests that were sent before and given up may still arrive
		p.steadyFrom, p.lastDuplicate = p.steadyFrom.Add(late), now.Add(late)
	}
	w.mu.Unlock()
	p.link.recover()
	if s == unseen {
		w.server.hide(p.ID(), false)
		p.link.CutSubscriptions()
	}
	p.wake(running)
}

// wake puts a process into a state in which its goroutines run.
func (p *process) wake(s state) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.state = s
	if p.thawed != nil {
		close(p.thawed)
		p.thawed = nil
	}
}

// crash ends a process: nothing that it does reaches the server any more, and its results are ignored. Another
// process replaces it.
func (p *process) crash() { p.crashAfterHandover(nil) }

// crashAfterHandover is crash after the program has handed over the token of a lease, which it does not use any
// more.
func (p *process) crashAfterHandover(handed *request) {
	w := p.w
	w.mu.Lock()
	w.noteLocked("process %d crashes", p.id)
	w.tally["a process is crashed"]++
	w.markUnwellLocked(p)
	var until []time.Time
	for _, q := range w.requests {
		if q.p == p && q != handed && q.believesHeld() {
			q.deadline = q.lease.Deadline()
			until = append(until, q.deadline)
		}
	}
	w.mu.Unlock()
	p.link.Kill()
	p.wake(crashed)
	p.link.Thaw()
	go func() { _ = p.Close() }() // so that it does no more work
	for _, at := range until {
		w.after(time.Until(at), func() {}) // checks the state
	}
	w.join()
}

// awaitRunning waits until the process runs, and reports false if it has crashed.
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

// makeSubscriptionStale silences the subscription of a process. Only messages are lost, so its waiters remain
// healthy until its keeper notices it and replaces the subscription.
func (p *process) makeSubscriptionStale() {
	w := p.w
	w.mu.Lock()
	if p.isSteady() || p.degradedAt.IsZero() {
		p.degradedAt = time.Now()
	}
	if p.staleSince = time.Now(); p.state == lossy {
		w.markUnwellLocked(p)
	}
	w.noteLocked("the subscription of process %d is stale", p.id)
	w.mu.Unlock()
	p.link.BlackholeSubscriptions()
}
