// Package retaining tests in virtual time what the locks with an option Retain have in common.
package retaining

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/redis/go-redis/v9"
)

// TTL is that of the leases by default.
const TTL = 5 * time.Second

var ctx = context.Background()

// Acquire is a method of a lock.
type Acquire func(context.Context) (*lockkeeper.Lease, error)

// Lock is the lock of a process of the name x. Inside is what the process may grant inside, Alone excludes all others.
type Lock struct{ Inside, Alone, TryAlone Acquire }

// New returns the lock of a process.
type New func(k *lockkeeper.Keeper, retain bool) (Lock, error)

// Process is a process of a test.
type Process struct {
	*lockkeeper.Keeper
	Net  *faultnet.Net
	t    *testing.T
	lock Lock

	mu     sync.Mutex
	events []string
}

// Run runs a test with two processes in virtual time. The first retains its leases.
func Run(t *testing.T, lock New, test func(s *embedded.Server, p, other *Process)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var all []*Process
		for i := range 2 {
			p := &Process{t: s.T, Net: s.Network()}
			rdb := redis.NewClient(p.Net.Options(time.Second))
			saw := func(what string) func(lockkeeper.Event) {
				return func(e lockkeeper.Event) {
					p.mu.Lock()
					defer p.mu.Unlock()
					p.events = append(p.events, fmt.Sprintf("%s %v", what, e.Local))
					if (e.Kind == "rwlock") != (e.Mode == "read" || e.Mode == "write") || e.Context == nil || e.Request == 0 {
						s.Errorf("%s: %+v", what, e)
					}
				}
			}
			var err error
			p.Keeper, err = lockkeeper.New(rdb, &lockkeeper.Options{
				Hooks: lockkeeper.Hooks{
					AcquireStart: saw("start"), AcquireDone: saw("done"), Released: saw("released"), Recalled: saw("recalled"), Lost: saw("lost"),
				},
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			p.Must(err)
			p.lock, err = lock(p.Keeper, i == 0)
			p.Must(err)
			s.Cleanup(func() {
				p.Net.Restore()
				_ = p.Close()
				_ = rdb.Close()
			})
			all = append(all, p)
		}
		test(s, all[0], all[1])
	})
}

// Must ends the test if there is an error.
func (p *Process) Must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// Enter acquires a lease that the process may grant inside.
func (p *Process) Enter() *lockkeeper.Lease {
	p.t.Helper()
	l, err := p.lock.Inside(ctx)
	p.Must(err)
	return l
}

// Leave releases a lease.
func (p *Process) Leave(l *lockkeeper.Lease) {
	p.t.Helper()
	p.Must(l.Release(ctx))
}

// Retained makes the process retain a lease, and returns one that was granted by it.
func (p *Process) Retained() *lockkeeper.Lease {
	p.t.Helper()
	p.Leave(p.Enter()) // it subscribes
	synctest.Wait()
	p.Leave(p.Enter()) // it retains
	if !p.Local() {
		p.t.Fatal("no lease is retained")
	}
	return p.Enter()
}

// Scripts returns how many scripts the process has sent during the function.
func (p *Process) Scripts(f func()) int {
	p.Net.ResetCount()
	f()
	return p.Net.Scripts()
}

// Local reports whether a lease is granted inside the process.
func (p *Process) Local() bool {
	p.t.Helper()
	return p.Scripts(func() { p.Leave(p.Enter()) }) == 0
}

// LocalNow reports whether one would be, without waiting for one that is not.
func (p *Process) LocalNow() bool {
	brief, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	local := false
	n := p.Scripts(func() {
		if l, err := p.lock.Inside(brief); err == nil {
			local = true
			p.Leave(l)
		}
	})
	return local && n == 0
}

// Waits requests the lock alone, in the background.
func (p *Process) Waits() chan *lockkeeper.Lease {
	granted := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := p.lock.Alone(ctx)
		if err != nil {
			p.t.Error(err)
		}
		granted <- l
	}()
	synctest.Wait()
	return granted
}

// IsGranted reports whether a request has been granted by now.
func IsGranted(granted chan *lockkeeper.Lease) bool {
	synctest.Wait()
	return len(granted) > 0
}

// Events returns the calls of hooks since the last time, and whether they were about a grant inside.
func (p *Process) Events() string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	p.events = nil
	return fmt.Sprint(events)
}

// Test runs the tests that are the same for all locks.
func Test(t *testing.T, lock New) {
	for name, test := range map[string]func(s *embedded.Server, p, other *Process){
		"unused_retained_lease_delays_nobody":              unusedDelaysNobody,
		"retained_lease_is_not_believed_past_its_deadline": notBelievedPastDeadline,
	} {
		t.Run(name, func(t *testing.T) { Run(t, lock, test) })
	}
}

func unusedDelaysNobody(s *embedded.Server, p, other *Process) {
	p.Leave(p.Retained())
	began := time.Now()
	if _, err := other.lock.TryAlone(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		s.Errorf("a try while another process retains a lease: %v", err)
	}
	synctest.Wait()
	l, err := other.lock.TryAlone(ctx) // the first has recalled it
	other.Must(err)
	if _, err := p.lock.TryAlone(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		s.Errorf("a try while another process holds it: %v", err)
	}
	other.Leave(l)

	time.Sleep(time.Minute)
	p.Leave(p.Retained())
	var granted chan *lockkeeper.Lease
	if n := p.Scripts(func() { granted = other.Waits() }); n != 1 {
		s.Errorf("the lease was given back by %d scripts", n)
	}
	if !IsGranted(granted) || time.Since(began) > time.Minute {
		s.Error("a process waits with nobody inside")
	}
	other.Leave(<-granted)

	time.Sleep(time.Minute)
	p.Leave(p.Retained())
	time.Sleep(TTL * 7 / 3)
	l, err = other.lock.TryAlone(ctx)
	if err != nil {
		s.Fatalf("a lease that was not used for its ttl is kept: %v", err)
	}
	other.Leave(l)
}

func notBelievedPastDeadline(s *embedded.Server, p, _ *Process) {
	for _, idle := range []bool{false, true} {
		inside := p.Retained()
		work := inside.Context(ctx)
		p.Net.Break("evalsha", 1000, faultnet.LoseRequest) // and not the subscription
		time.Sleep(time.Until(inside.Deadline()) - 1)
		if inside.Err() != nil {
			s.Error("lost too early")
		}
		if idle {
			_ = inside.Release(ctx)
		}
		time.Sleep(time.Nanosecond)
		if p.LocalNow() {
			s.Error("granted inside after the deadline")
		}
		if !idle {
			for _, err := range []error{inside.Err(), context.Cause(work), inside.Release(ctx)} {
				if !errors.Is(err, lockkeeper.ErrLost) {
					s.Errorf("not lost: %v", err)
				}
			}
		}
		p.Net.Restore()
		time.Sleep(time.Minute)
	}
}
