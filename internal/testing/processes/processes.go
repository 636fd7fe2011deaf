// Package processes runs tests of several processes on one embedded server, in virtual time. Its own tests are those of what several packages
// do together: calls that are sent inline, messages that do not arrive, replies that no server sends, copies of a process, and forgotten leases.
package processes

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

const (
	TTL               = 3 * time.Second // of mutexes
	HeartbeatInterval = 200 * time.Millisecond
)

var background = context.Background()

// Bubble is an embedded server in virtual time.
type Bubble struct{ *embedded.Server }

// Run is embedded.Run with a Bubble.
func Run(t *testing.T, test func(b *Bubble)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) { test(&Bubble{s}) })
}

// Must ends the test at an error.
func (b *Bubble) Must(err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

// With starts a keeper with these options, on a client of its own.
func (b *Bubble) With(o *lockkeeper.Options) *lockkeeper.Keeper {
	b.Helper()
	return keepers.New(b, redistest.On(b, b.Network(), time.Second), o)
}

// Process is a keeper with a client and a network of its own. It records the calls of its hooks.
type Process struct {
	*lockkeeper.Keeper
	RDB redistest.Client
	Net *faultnet.Net
	b   *Bubble

	mu     sync.Mutex
	events []Event
}

// Event is a call of a hook.
type Event struct {
	Hook string
	lockkeeper.Event
}

// Process starts a process.
func (b *Bubble) Process() *Process {
	b.Helper()
	return b.ProcessWith(time.Second, lockkeeper.Options{})
}

// ProcessWith starts a process with these options, whose client waits readTimeout for a reply, or without a limit if it is -1.
func (b *Bubble) ProcessWith(readTimeout time.Duration, o lockkeeper.Options) *Process {
	b.Helper()
	n := b.Network()
	p := &Process{b: b, Net: n, RDB: redistest.On(b, n, readTimeout)}
	hook := func(name string) func(lockkeeper.Event) {
		return func(e lockkeeper.Event) {
			check.That(b, e.Context != nil && (e.Request == 0) == (name == "WakeupLost"),
				"%s: the context is %v, the request %d", name, e.Context, e.Request)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.events = append(p.events, Event{name, e})
		}
	}
	o.Hooks = lockkeeper.Hooks{
		AcquireStart: hook("AcquireStart"), AcquireDone: hook("AcquireDone"), Queued: hook("Queued"),
		WakeupReceived: hook("WakeupReceived"), WakeupLost: hook("WakeupLost"), Renewed: hook("Renewed"),
		Lost: hook("Lost"), Released: hook("Released"),
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = HeartbeatInterval
	}
	if o.Logger == nil {
		o.Logger = quiet.Logger(nil)
	}
	p.Keeper = keepers.New(b, p.RDB, &o)
	b.Cleanup(n.Restore)
	return p
}

// Events returns the calls of hooks since it was last called.
func (p *Process) Events() []Event {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	events := slices.Clone(p.events)
	p.events = nil
	return events
}

// Mutex returns a mutex.
func (p *Process) Mutex(name string) *mutex.Mutex {
	p.b.Helper()
	return must.Get(mutex.New(p.Keeper, name, &mutex.Options{TTL: TTL}))(p.b)
}

// RWLock returns the read-write lock x.
func (p *Process) RWLock(options *rwlock.Options) *rwlock.Lock {
	p.b.Helper()
	return must.Get(rwlock.New(p.Keeper, "x", options))(p.b)
}

// Hold acquires a mutex.
func (p *Process) Hold(name string) *lockkeeper.Lease {
	p.b.Helper()
	return must.Get(p.Mutex(name).TryLock(background))(p.b)
}

// LockAsync starts a Lock of a mutex, and returns once it waits in the queue.
func (p *Process) LockAsync(name string) <-chan *lockkeeper.Lease {
	p.b.Helper()
	m, got := p.Mutex(name), make(chan *lockkeeper.Lease, 1)
	go func() {
		lease, err := m.Lock(background)
		must.Report(p.b, err)
		got <- lease
	}()
	synctest.Wait()
	return got
}

// Call makes calls. After twenty of them, the next one is sent in its caller's goroutine.
func (p *Process) Call(times int) {
	p.b.Helper()
	for range times {
		_, _, err := p.Mutex("x").Holder(background)
		p.b.Must(err)
		synctest.Wait()
	}
}
