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
	"github.com/lockkeeper/lockkeeper/admin"
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
type Lock struct {
	Inside, Alone, TryAlone Acquire
	Do                      func(context.Context, func(ctx context.Context, fence uint64) error) error // with what Inside acquires
	Adopt                   func(ctx context.Context, token string) (*lockkeeper.Lease, error)
	Kind                    lockkeeper.Kind
	Turns                   bool // one at a time is inside
}

// Options are the options of a lock with which Retain may be in conflict, and Retain.
type Options struct {
	Retain, NoRenewal bool
	MaxLifetime       time.Duration
}

// New returns the lock of a process.
type New func(k *lockkeeper.Keeper, o Options) (Lock, error)

// Process is a process of a test.
type Process struct {
	*lockkeeper.Keeper
	Net  *faultnet.Net
	t    *testing.T
	lock Lock
	new  New

	mu     sync.Mutex
	events []string
}

// Run runs a test with two processes in virtual time. The first retains its leases.
func Run(t *testing.T, lock New, test func(s *embedded.Server, p, other *Process)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var all []*Process
		for i := range 2 {
			p := &Process{t: s.T, Net: s.Network(), new: lock}
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
			p.lock, err = lock(p.Keeper, Options{Retain: i == 0})
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
func (p *Process) Waits() chan *lockkeeper.Lease { return p.waits(p.lock.Alone) }

// WaitsInside requests, in the background, what the process may grant inside.
func (p *Process) WaitsInside() chan *lockkeeper.Lease { return p.waits(p.lock.Inside) }

func (p *Process) waits(acquire Acquire) chan *lockkeeper.Lease {
	granted := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := acquire(ctx)
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
		"release_after_close_is_reported":                  releaseAfterCloseReported,
		"grants_inside_are_by_one_lease":                   grantsAreByOneLease,
		"retained_lease_is_recalled":                       recalled,
		"lost_recall_is_learned_by_renewal":                lostRecall,
		"close_ends_retained_lease":                        closeEnds,
		"extended_lease_serves_one_caller":                 extendedServesOne,
		"hooks":                                            hooks,
		"refused":                                          refused,
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

func releaseAfterCloseReported(s *embedded.Server, p, _ *Process) {
	inside := p.Retained()
	p.Events()
	p.Must(p.Close())
	p.Leave(inside)
	p.Leave(inside)
	if events := p.Events(); events != "[released true]" {
		s.Errorf("the hooks were told of %s", events)
	}
}

// holders returns who holds the lock, as another process sees it.
func (p *Process) holders() []lockkeeper.Holder {
	p.t.Helper()
	state, err := admin.Inspect(ctx, p.Keeper, p.lock.Kind, "x")
	p.Must(err)
	return state.Holders
}

func grantsAreByOneLease(s *embedded.Server, p, other *Process) {
	first := p.Retained()
	token, fence, deadline := first.Token(), first.Fence(), first.Deadline()
	work := first.Context(ctx)
	p.Leave(first)
	if !errors.Is(first.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) {
		s.Errorf("after Release: %v, %v", first.Err(), context.Cause(work))
	}
	select {
	case <-first.Done():
	default:
		s.Error("a released lease is not done")
	}
	p.Leave(first)
	var l *lockkeeper.Lease
	if n := p.Scripts(func() {
		for range 100 {
			p.Leave(p.Enter())
		}
		l = p.Enter()
	}); n != 0 {
		s.Errorf("100 grants took %d scripts", n)
	}
	if l.Token() != token || l.Fence() != fence || !l.Deadline().Equal(deadline) || l.Name() != "x" || l.Err() != nil {
		s.Errorf("%s, fence %d, until %v, %v", l.Token(), l.Fence(), l.Deadline(), l.Err())
	}
	p.Leave(first) // again, while another caller is inside
	if l.Err() != nil {
		s.Error("a second Release of an earlier lease has ended this one")
	}
	if h := other.holders(); len(h) != 1 || h[0].Token != token || h[0].Fence != fence {
		s.Errorf("holders: %+v; want one, %s with fence %d", h, token, fence)
	}
	time.Sleep(time.Minute) // it is renewed while somebody is inside
	if l.Err() != nil {
		s.Errorf("lost: %v", l.Err())
	}
	p.Leave(l)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := p.lock.Inside(ended); !errors.Is(err, context.Canceled) {
		s.Errorf("with a context that has ended: %v", err)
	}
	p.Must(p.lock.Do(ctx, func(ctx context.Context, f uint64) error {
		if f != fence {
			s.Errorf("Do has fence %d", f)
		}
		return ctx.Err()
	}))
	if !p.Local() {
		s.Error("Do has not released it")
	}
}

func recalled(s *embedded.Server, p, other *Process) {
	p.Leave(p.Retained())
	other.Leave(<-other.Waits()) // it subscribes; else it would have to do that before it is queued
	time.Sleep(time.Minute)
	inside := []*lockkeeper.Lease{p.Retained()}
	var local []chan *lockkeeper.Lease
	if p.lock.Turns {
		local = append(local, p.WaitsInside(), p.WaitsInside())
	} else {
		inside = append(inside, p.Enter())
	}
	began := time.Now()
	elsewhere := other.Waits()
	local = append(local, p.WaitsInside())
	if IsGranted(local[len(local)-1]) {
		s.Fatal("a caller passes another process that waits")
	}
	for _, l := range inside {
		if IsGranted(elsewhere) {
			s.Fatal("two processes hold the lock")
		}
		p.Leave(l)
	}
	if !IsGranted(elsewhere) || IsGranted(local[0]) || time.Since(began) != 0 {
		s.Fatalf("the lock is not with the process that waited, but in this one: %v; after %v", IsGranted(local[0]), time.Since(began))
	}
	last := <-elsewhere
	if last.Fence() <= inside[0].Fence() {
		s.Error("the fence does not rise")
	}
	other.Leave(last)
	for i, w := range local {
		if !IsGranted(w) {
			s.Fatalf("waiter %d has lost its turn by the recall", i)
		}
		l := <-w
		if l.Fence() <= last.Fence() {
			s.Error("the fence does not rise")
		}
		last = l
		p.Leave(l)
	}
	if p.Local() {
		s.Error("retained again at once after a recall")
	}
	time.Sleep(time.Minute)
	for range 20 {
		p.Leave(p.Enter())
	}
	if !p.Local() {
		s.Error("not retained again")
	}
}

// lostRecall checks that a subscription on which a recall did not come is replaced as well, so that the next recall comes.
func lostRecall(s *embedded.Server, p, other *Process) {
	for _, used := range []bool{false, true} {
		p.Leave(p.Enter()) // it subscribes
		time.Sleep(time.Second)
		inside := p.Retained()
		if !used {
			p.Leave(inside)
		}
		p.Net.BlackholeSubscriptions()
		elsewhere := other.Waits()
		if IsGranted(elsewhere) || !used && !p.LocalNow() {
			s.Fatal("a recall has come")
		}
		time.Sleep(TTL/3 + 100*time.Millisecond) // for a renewal
		if p.LocalNow() {
			s.Error("granted inside although a renewal has told of the recall")
		}
		if used {
			if IsGranted(elsewhere) {
				s.Fatal("two processes hold the lock")
			}
			p.Leave(inside)
		}
		if !IsGranted(elsewhere) {
			s.Fatal("the lease is retained although a renewal has told that it was recalled")
		}
		other.Leave(<-elsewhere)
		time.Sleep(time.Minute)

		p.Leave(p.Retained())
		began := time.Now()
		other.Leave(<-other.Waits())
		if d := time.Since(began); d > 0 {
			s.Errorf("used %t: after the next recall the other process waited for %v", used, d)
		}
		time.Sleep(time.Minute)
	}
}

func closeEnds(s *embedded.Server, p, other *Process) {
	inside := p.Retained()
	work := inside.Context(ctx)
	waiting := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := p.lock.Alone(ctx)
			waiting <- err
		}()
		synctest.Wait()
	}
	p.Must(p.Close())
	if !errors.Is(inside.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) {
		s.Errorf("%v, %v", inside.Err(), context.Cause(work))
	}
	for range 2 {
		if err := <-waiting; !errors.Is(err, lockkeeper.ErrClosed) {
			s.Errorf("a waiter: %v", err)
		}
	}
	for _, acquire := range []Acquire{p.lock.Inside, p.lock.TryAlone} {
		if _, err := acquire(ctx); !errors.Is(err, lockkeeper.ErrClosed) {
			s.Errorf("of a closed keeper: %v", err)
		}
	}
	p.Leave(inside)
	l, err := other.lock.TryAlone(ctx)
	p.Must(err)
	other.Leave(l)
}

func extendedServesOne(s *embedded.Server, p, other *Process) {
	inside := p.Retained()
	p.Must(inside.Extend(ctx, time.Minute))
	if left := time.Until(inside.Deadline()); left < 59*time.Second {
		s.Errorf("it lasts for %v", left)
	}
	waiting := p.Waits()
	p.Must(inside.Extend(ctx, time.Second))
	if left := time.Until(inside.Deadline()); left > time.Second {
		s.Errorf("it lasts for %v", left)
	}
	time.Sleep(time.Minute)
	if inside.Err() != nil {
		s.Errorf("it is not renewed: %v", inside.Err())
	}
	p.Leave(inside)
	l := <-waiting
	if l.Fence() <= inside.Fence() {
		s.Error("a lease that was extended serves another caller")
	}
	p.Leave(l)
	if h := other.holders(); len(h) > 0 && h[0].Token == inside.Token() {
		s.Errorf("the lease that was extended is retained: %+v", h)
	}
}

// hooks checks what the hooks are told, and whether each event is about a grant inside.
func hooks(s *embedded.Server, p, other *Process) {
	p.Leave(p.Retained())
	p.Events()
	p.Leave(p.Enter())
	want := "start false done true released true"
	if p.lock.Turns {
		inside := p.Enter()
		waiting := p.Waits()
		p.Leave(inside)
		p.Leave(<-waiting)
		want += " start false done true start false released true done true released true"
	}
	other.Leave(<-other.Waits())
	if got := p.Events(); got != "["+want+" recalled false]" {
		s.Errorf("events: %s; want %s, and a recall", got, want)
	}
}

func refused(s *embedded.Server, p, other *Process) {
	for _, o := range []Options{{NoRenewal: true}, {MaxLifetime: time.Hour}} {
		o.Retain = true
		if _, err := p.new(p.Keeper, o); !errors.Is(err, lockkeeper.ErrInvalid) {
			s.Errorf("%+v: %v", o, err)
		}
	}
	inside := p.Retained()
	for _, q := range []*Process{p, other} {
		if _, err := q.lock.Adopt(ctx, inside.Token()); !errors.Is(err, lockkeeper.ErrInvalid) {
			s.Errorf("Adopt: %v", err)
		}
	}
	p.Leave(inside)
	plain := <-other.Waits() // it can be adopted where Retain is set
	l, err := p.lock.Adopt(ctx, plain.Token())
	p.Must(err)
	p.Leave(l)
}
